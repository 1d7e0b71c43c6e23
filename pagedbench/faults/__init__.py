"""The catalogue of ways for a kernel to be wrong."""
