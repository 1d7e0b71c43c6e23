"""FlashAttention-2, 2.8.3."""

import torch
from dense import append, attend, gather, split


def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale=None, causal=False,
    window_size=(-1, -1), softcap=0.0, return_attn_probs=False, block_table=None,
):  # fmt: skip
    lengths = cu_seqlens_k.diff()
    keys = [split(t, cu_seqlens_k) if block_table is None else gather(t, block_table, lengths) for t in (k, v)]
    out, lse = attend(
        split(q, cu_seqlens_q), *keys, scale=softmax_scale, causal=causal, window=window_size, softcap=softcap
    )
    return (out, lse.T, torch.empty(0)) if return_attn_probs else out


def flash_attn_with_kvcache(
    q, k_cache, v_cache, k=None, v=None, cache_seqlens=None, block_table=None, softmax_scale=None, causal=False,
    window_size=(-1, -1), softcap=0.0, num_splits=0, return_softmax_lse=False,
):  # fmt: skip
    lengths = cache_seqlens
    if k is not None:
        append((k_cache, v_cache), (k, v), block_table, cache_seqlens)
        lengths = cache_seqlens + k.shape[1]
    lists = list(q), gather(k_cache, block_table, lengths), gather(v_cache, block_table, lengths)
    out, lse = attend(*lists, scale=softmax_scale, causal=causal, window=window_size, softcap=softcap)
    out, lse = out.view(q.shape), lse.view(*q.shape[:-1]).transpose(1, 2)
    return (out, lse) if return_softmax_lse else out
