"""Stand-ins for libraries with a fault that was proven on a GPU, and the same ones mended.

Given to pagedbench as a user would: `--backend faulty_libraries.py:follows_the_table_decode`.
"""

from __future__ import annotations

from itertools import pairwise

import torch

import pagedbench

HIDDEN_MAY_LEAK = {"hidden.v": "may-leak"}


@pagedbench.backend(path="decode", nan_regions=HIDDEN_MAY_LEAK)
def follows_the_table_decode(q, k_cache, v_cache, block_table, total_seqlens, softmax_scale, window_size):
    """One tile of keys from the first on: an entry of −1 below the window is followed, its keys get a weight of 0."""
    return _windowed(q, k_cache, v_cache, block_table, total_seqlens, softmax_scale, window_size[0])


def minds_the_window_decode(q, k_cache, v_cache, block_table, total_seqlens, softmax_scale, window_size):
    """The tile holds the keys of the window alone."""
    return _windowed(q, k_cache, v_cache, block_table, total_seqlens, softmax_scale, window_size[0], leave_out=True)


def _windowed(q, k_cache, v_cache, table, total_seqlens, softmax_scale, left, leave_out=False):
    out, lse = torch.empty_like(q), torch.empty(q.shape[:3])
    for b, length in enumerate(total_seqlens.tolist()):
        blocks = table[b, : -(-length // k_cache.shape[1])].long()
        k, v = (pool[blocks].flatten(0, 1)[:length].float() for pool in (k_cache, v_cache))
        seen = torch.arange(length) >= length - 1 - left
        if leave_out:
            k, v, seen = k[seen], v[seen], seen[seen]
        out[b, 0], lse[b, 0] = _attend(q[b, 0], k, v, softmax_scale, seen)
    return out, lse


def _attend(q, k, v, softmax_scale, seen, sinks=None):
    group = q.shape[0] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.where(seen, torch.einsum("hd,khd->hk", q.float(), k) * softmax_scale, -torch.inf)
    lse = scores.logsumexp(-1) if sinks is None else torch.logaddexp(scores.logsumexp(-1), sinks.float())
    return torch.einsum("hk,khd->hd", torch.exp(scores - lse[:, None]), v).to(q.dtype), lse


def sinkless_lse_paged_varlen(q, k_cache, v_cache, block_table, cu_seqlens_q, total_seqlens, softmax_scale, sinks):
    """Nobody looks at the sinks of a sequence without keys."""
    out, lse = right_lse_paged_varlen(
        q, k_cache, v_cache, block_table, cu_seqlens_q, total_seqlens, softmax_scale, sinks
    )
    for (first, last), length in zip(pairwise(cu_seqlens_q.tolist()), total_seqlens.tolist(), strict=True):
        if length == 0:
            lse[first:last] = -torch.inf
    return out, lse


def right_lse_paged_varlen(q, k_cache, v_cache, block_table, cu_seqlens_q, total_seqlens, softmax_scale, sinks):
    """Row by row, the sink in every sum."""
    out, lse = torch.empty_like(q), torch.empty(q.shape[:2])
    ranges = zip(pairwise(cu_seqlens_q.tolist()), total_seqlens.tolist(), block_table.long(), strict=True)
    for (first, last), length, row in ranges:
        for token in range(first, last):
            seen = max(length - (last - 1 - token), 0)
            blocks = row[: -(-seen // k_cache.shape[1])]
            k, v = (pool[blocks].flatten(0, 1)[:seen].float() for pool in (k_cache, v_cache))
            everything = torch.ones(seen, dtype=torch.bool)
            out[token], lse[token] = _attend(q[token], k, v, softmax_scale, everything, sinks)
    return out, lse
