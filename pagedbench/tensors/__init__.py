"""The numbers: logical Q, K and V, the pool, the paged cache, and the call a backend is given."""
