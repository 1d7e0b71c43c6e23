"""Joins the partial results of sequences whose keys were split over several programs.

Each split left an output normalised over its own keys and their log-sum-exp, so the whole is the average of the
outputs, weighted by exp(lse). The order of summation is that of the splits: equal calls give equal bits.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_rows", "num_splits"])
def combine_kernel(
    partial_out_ptr, partial_lse_ptr, out_ptr, lse_ptr, num_rows, num_splits,
    HEAD_DIM_V: tl.constexpr, PAD_DIM_V: tl.constexpr, PAD_SPLITS: tl.constexpr,
):  # fmt: skip
    """One program a row (query token, head). Grid: `(num_rows,)`, `num_rows = total_q * num_heads`.

    `partial_out` `(num_splits, num_rows, HEAD_DIM_V)` and `partial_lse` `(num_splits, num_rows)` fp32, natural
    logarithm; `out` `(num_rows, HEAD_DIM_V)`, `lse` `(num_rows,)`; all contiguous.
    """
    row = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, PAD_SPLITS)
    partial = split.to(tl.int64) * num_rows + row
    lse = tl.load(partial_lse_ptr + partial, mask=split < num_splits, other=float("-inf"))
    # All splits empty: the peak is -inf, and subtracting it would give NaN.
    peak = tl.max(lse, 0)
    shift = tl.where(peak > float("-inf"), peak, 0.0)
    weights = tl.exp(lse - shift)
    total = tl.sum(weights, 0)
    divisor = tl.where(total > 0, total, 1.0)

    dims = tl.arange(0, PAD_DIM_V)
    exists = (split < num_splits)[:, None] & (dims < HEAD_DIM_V)[None, :]
    values = tl.load(partial_out_ptr + partial[:, None] * HEAD_DIM_V + dims[None, :], mask=exists, other=0.0)
    out = tl.sum(values * (weights / divisor)[:, None], 0)
    tl.store(out_ptr + row * HEAD_DIM_V + dims, out.to(out_ptr.dtype.element_ty), mask=dims < HEAD_DIM_V)
    tl.store(lse_ptr + row, tl.where(total > 0, shift + tl.log(divisor), float("-inf")))
