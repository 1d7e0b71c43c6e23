"""FlashAttention-3, as tokenspeed-fa3 3.0.0 has it."""

from dense import append, attend, gather, split


def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale=None, causal=False,
    window_size=(-1, -1), softcap=0.0, num_splits=1, return_attn_probs=False, sinks=None,
):  # fmt: skip
    lists = split(q, cu_seqlens_q), split(k, cu_seqlens_k), split(v, cu_seqlens_k)
    out, lse = attend(*lists, scale=softmax_scale, causal=causal, window=window_size, softcap=softcap, sinks=sinks)
    return (out, lse.T) if return_attn_probs else out


def flash_attn_with_kvcache(
    q, k_cache, v_cache, k=None, v=None, cache_seqlens=None, page_table=None, cu_seqlens_q=None,
    cu_seqlens_k_new=None, max_seqlen_q=None, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
    num_splits=0, return_softmax_lse=False, sinks=None,
):  # fmt: skip
    ragged = cu_seqlens_q is not None
    queries, lengths = split(q, cu_seqlens_q) if ragged else list(q), cache_seqlens
    if k is not None:
        new = [split(t, cu_seqlens_k_new) if ragged else list(t) for t in (k, v)]
        append((k_cache, v_cache), new, page_table, cache_seqlens)
        lengths = cache_seqlens + cache_seqlens.new_tensor([len(tokens) for tokens in new[0]])
    lists = queries, gather(k_cache, page_table, lengths), gather(v_cache, page_table, lengths)
    out, lse = attend(*lists, scale=softmax_scale, causal=causal, window=window_size, softcap=softcap, sinks=sinks)
    if not ragged:
        out, lse = out.view(*q.shape[:-1], -1), lse.view(*q.shape[:-1]).transpose(1, 2)
    return (out, lse if not ragged else lse.T, None, None) if return_softmax_lse else out
