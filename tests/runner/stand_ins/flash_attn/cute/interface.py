"""FlashAttention-4, 4.0.0b36."""

from dense import attend, gather, split


def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None, seqused_k=None,
    page_table=None, softmax_scale=None, causal=False, window_size=(None, None), learnable_sink=None, softcap=0.0,
    num_splits=1, return_lse=False,
):  # fmt: skip
    keys = [split(t, cu_seqlens_k) if page_table is None else gather(t, page_table, seqused_k) for t in (k, v)]
    out, lse = attend(
        split(q, cu_seqlens_q),
        *keys,
        scale=softmax_scale,
        causal=causal,
        window=window_size,
        softcap=softcap,
        sinks=learnable_sink,
        blind=-float("inf") if learnable_sink is None else learnable_sink,
    )
    return out, lse.T if return_lse else None
