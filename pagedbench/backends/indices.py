"""Index arrays in the forms that libraries want, made from a `Call`. No attention here."""

from __future__ import annotations

import torch

from pagedbench.scenario.model import Attention
from pagedbench.tensors.call import Call, CallSpec, HostArrays


def host_arrays(call: Call) -> HostArrays:
    """Host copies of the index arrays: those the call came with, or made now (which waits for the device)."""
    if call.host is not None:
        return call.host
    return HostArrays(
        cu_seqlens_q=call.cu_seqlens_q.cpu(),
        cu_seqlens_k=call.cu_seqlens_k.cpu(),
        cache_seqlens=call.cache_seqlens.cpu(),
        total_seqlens=call.total_seqlens.cpu(),
        block_table=call.block_table.cpu(),
    )


def query_positions(call: Call) -> torch.Tensor:
    """`(total_q,)` int64, the key that each query token is aligned with (bottom-right), on the device."""
    starts, total = call.cu_seqlens_q.long(), call.total_seqlens.long()
    token = torch.arange(call.q.shape[0], device=call.q.device)
    sequence = torch.searchsorted(starts[1:].contiguous(), token, right=True)
    return total[sequence] - (starts[sequence + 1] - token)


def kernel_window(spec: CallSpec | Attention) -> tuple[int, int]:
    """(left, right) for functions in which a causal window has 0 on its right."""
    left, right = spec.window_size
    return (left, 0 if spec.causal and left >= 0 else right)
