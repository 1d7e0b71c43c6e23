"""Brings what libraries return as log-sum-exp into one form: `(total_q, num_heads)`, fp32, natural logarithm.

Rows that see no key have −inf, or the sink where there are sinks. No waiting for the device.
"""

from __future__ import annotations

import math

import torch

from pagedbench.backends.indices import query_positions
from pagedbench.tensors.call import Call


def from_heads_first(lse: torch.Tensor, call: Call) -> torch.Tensor:
    """From `(num_heads, total_q)` or `(batch, num_heads, query_len)`, the forms of the FlashAttention family."""
    lse = lse.transpose(1, 2).reshape(-1, lse.shape[1]) if lse.dim() == 3 else lse.t()
    return lse[: call.spec.total_q]


def empty_rows(lse: torch.Tensor, call: Call) -> torch.Tensor:
    """+inf, which FlashAttention-2 and -3 write for rows that see no key, becomes −inf, or the sink."""
    if call.sinks is None:
        return torch.nan_to_num(lse, nan=math.nan, posinf=-math.inf, neginf=-math.inf)  # one kernel; NaN stays NaN
    return torch.where(lse == math.inf, call.sinks.float(), lse)


def flashinfer(lse: torch.Tensor) -> torch.Tensor:
    """From a logarithm to base 2. FlashInfer's «infinity» is 50,000: a row that sees no key has -50,000 plus the
    logarithm of how many keys were masked, which is -inf; no real row comes near."""
    return torch.where(lse < -49_900.0, -math.inf, lse * math.log(2.0))


def flash_attention_2(lse: torch.Tensor, call: Call, longest: int) -> torch.Tensor:
    """The form of FlashAttention-2 and its descendants: heads first, +inf for empty rows, shifted by ALiBi.

    `longest` is the length, in keys, by which the library tells whether a window hides any: `max_seqlen_k`, or what a
    row of the block table can hold.
    """
    return _without_alibi_shift(empty_rows(from_heads_first(lse, call), call), call, longest)


def _without_alibi_shift(lse: torch.Tensor, call: Call, longest: int) -> torch.Tensor:
    """Its causal kernels add `slope * j` for key j, which is `slope * position` too much; its local ones, which it
    takes for a window shorter than the longest sequence, add what they should."""
    left, right = call.spec.window_size
    causal = (call.spec.causal or right == 0) and not 0 <= left < longest
    if call.alibi_slopes is None or not causal:
        return lse
    return lse - query_positions(call)[:, None] * call.alibi_slopes.float()
