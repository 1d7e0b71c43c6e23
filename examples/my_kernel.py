"""A paged decode kernel of one's own, as pagedbench takes it: one function, which gets what its arguments name.

It has a bug, on purpose. It looks right, and is right for most lengths:

    pagedbench run docs-decode --backend examples/my_kernel.py:my_decode
"""

from __future__ import annotations

import torch


def my_decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k_new: torch.Tensor | None,
    v_new: torch.Tensor | None,
    block_table: torch.Tensor,
    cache_seqlens: torch.Tensor,
    softmax_scale: float,
) -> torch.Tensor:
    """One query token a sequence: append its key and value, then read the cache block by block.

    `q` `(batch, 1, num_heads, head_dim)`; the caches `(num_blocks, block_size, num_kv_heads, head_dim)`; `k_new` and
    `v_new` like one token of a cache, or None when nothing is appended; `cache_seqlens` counts the keys before it.
    """
    block_size = k_cache.shape[1]
    out = torch.empty_like(q)
    for sequence, cached in enumerate(cache_seqlens.tolist()):
        blocks = block_table[sequence, : (cached + block_size - 1) // block_size]
        length = cached
        if k_new is not None and v_new is not None:
            block, offset = block_table[sequence, cached // block_size], cached % block_size
            k_cache[block, offset], v_cache[block, offset] = k_new[sequence, 0], v_new[sequence, 0]
            length += 1
        k, v = (cache[blocks].flatten(0, 1)[:length] for cache in (k_cache, v_cache))
        out[sequence, 0] = _attend(q[sequence, 0], k, v, softmax_scale)
    return out


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, softmax_scale: float) -> torch.Tensor:
    """`q` `(num_heads, head_dim)`, `k` and `v` `(keys, num_kv_heads, head_dim)`; softmax in fp32."""
    group = q.shape[0] // k.shape[1]
    k, v = (t.float().repeat_interleave(group, dim=1) for t in (k, v))
    weights = (torch.einsum("hd,khd->hk", q.float(), k) * softmax_scale).softmax(-1)
    return torch.einsum("hk,khd->hd", weights, v).to(q.dtype)
