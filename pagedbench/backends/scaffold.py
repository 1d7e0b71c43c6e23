"""The text of a new backend's file. It imports nothing from pagedbench: a kernel stays usable on its own."""

from __future__ import annotations

_TEMPLATE = '''"""NAME: a paged-attention decode kernel for pagedbench.

Check and time it:      pagedbench run docs-decode --backend NAME.py:NAME_decode
Put it to every check:  pagedbench check edge --backend NAME.py:NAME_decode
Beside another:         pagedbench run docs-decode --backend NAME.py:NAME_decode --backend torch

The path is told by the function's name (..._decode, ..._varlen, ..._paged_varlen). Arguments are passed by name: take
those you need. One that you leave out is a feature you do not have, and scenarios that need it are skipped: there is no
`window_size` here, so no sliding windows. All arguments: python -m pydoc pagedbench.backends.user
"""

import torch


def NAME_decode(q, k_cache, v_cache, k_new, v_new, block_table, cache_seqlens, softmax_scale):
    """Append the new tokens in place, then attend.

    q (batch, query_len, num_heads, head_dim); k_cache, v_cache (num_blocks, block_size, num_kv_heads, head_dim);
    k_new, v_new (batch, query_len, num_kv_heads, head_dim), or None if nothing is appended;
    block_table (batch, max_blocks_per_seq) int32, where entries that are not needed may be -1 or rubbish;
    cache_seqlens (batch,) int32, the keys in the cache before the new tokens.
    Returns the output, shaped like q, and if you have it the natural log-sum-exp (batch, query_len, num_heads).
    """
    batch, query_len, num_heads, head_dim = q.shape
    block_size, num_kv_heads = k_cache.shape[1:3]
    total = cache_seqlens.long()  # keys to attend to

    # 1. Append. Leave k_new and v_new out of the arguments, and pagedbench writes them before the call.
    if k_new is not None:
        position = total[:, None] + torch.arange(query_len, device=q.device)
        block = block_table.long().gather(1, position // block_size)
        k_cache[block, position % block_size] = k_new
        v_cache[block, position % block_size] = v_new
        total = total + query_len

    # 2. Attend. REPLACE FROM HERE with your kernel; this is plain torch, written to be read.
    #    Keys behind a sequence's end repeat its first one, so that no entry is followed that is not needed, and no
    #    rubbish in unread slots meets a weight of zero (0 * NaN is NaN).
    key = torch.arange(block_table.shape[1] * block_size, device=q.device)[None, :]
    exists = key < total[:, None]
    place = torch.where(exists, key, 0)
    block = block_table.long().gather(1, place // block_size)
    block = torch.where((total > 0)[:, None], block, 0)
    k = k_cache[block, place % block_size].float().repeat_interleave(num_heads // num_kv_heads, dim=2)
    v = v_cache[block, place % block_size].float().repeat_interleave(num_heads // num_kv_heads, dim=2)
    v = v.masked_fill(~exists[:, :, None, None], 0.0)

    scores = torch.einsum("bqhd,bkhd->bqhk", q.float() * softmax_scale, k)
    aligned = total[:, None] - query_len + torch.arange(query_len, device=q.device)  # causal, bottom-right
    aligned = aligned[:, :, None]
    scores = scores.masked_fill(~(exists[:, None] & (key[:, None] <= aligned))[:, :, None], float("-inf"))
    lse = torch.logsumexp(scores, dim=-1)
    weights = torch.exp(scores - lse.clamp(min=-1e30)[..., None])  # a row that sees no key: exp(-inf) is 0, never NaN
    return torch.einsum("bqhk,bkhd->bqhd", weights, v).to(q.dtype), lse
'''


def text(name: str) -> str:
    """A file that passes as it stands, for a kernel of that name (a Python identifier)."""
    return _TEMPLATE.replace("NAME", name)
