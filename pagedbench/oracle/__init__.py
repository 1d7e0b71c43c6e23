"""The fp64 answer, made from logical K and V before paging."""
