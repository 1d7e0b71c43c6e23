"""Detection: one coded call for V and a few for K tell which rows read a wrong set of slots, not yet which.

Right rows give the sums that their keys must give, in every channel; `location` is `footprint_locate.py`'s job.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from pagedbench.backends.base import Output
from pagedbench.checks.base import CheckContext
from pagedbench.checks.footprint_calls import CodedCall, Coding, coding_for, run_coded
from pagedbench.checks.footprint_codes import Rows, expected_sums, included_keys, odd_codes, rows_of, sum_codes
from pagedbench.layout.batch import BatchLayout

Side = Literal["K", "V"]
# Half a code: anything further from the right sum is another set of slots.
HALF_CODE = 0.5
# Independent bits per slot, over heads and calls, that a wrongly read K must agree with to stay unseen.
K_BITS = 6
_LSE_TOLERANCE = 2e-5
# Codes of slots that must not be read repeat after so many slots: only such slots may share a code.
_UNREAD_PERIOD = 4093


@dataclass(frozen=True)
class Deviation:
    """One coded call that came out wrong: `sums` and `lse` `(total_q, num_heads)` bool mark the rows, `decoded` and
    `wanted` `(total_q, num_heads, channels)` are the sums and `mass` `(total_q, num_heads)` what the output was
    multiplied
    with to get them; `included` `(total_k, heads)` are the keys that counted."""

    side: Side
    sums: torch.Tensor
    lse: torch.Tensor
    decoded: torch.Tensor
    wanted: torch.Tensor
    mass: torch.Tensor
    included: torch.Tensor
    coding: Coding

    @property
    def found(self) -> bool:
        """Whether any row is wrong."""
        return bool((self.sums | self.lse).any())


def detect(context: CheckContext, side: Side, attempt: int = 0) -> Deviation:
    """One coded call. On the V side every key counts; on the K side a random half does."""
    spec, layout, device = context.scenario.attention, context.layout, context.device
    seed = 1009 * context.scenario.inputs.seed + 17 * attempt + (side == "K")
    generator = torch.Generator(device).manual_seed(seed)
    rows = rows_of(layout, device)
    heads, channels = spec.num_kv_heads, spec.head_dim_v
    included = (
        included_keys(layout, heads, generator)
        if side == "K"
        else torch.ones(layout.total_k, heads, dtype=torch.bool, device=device)
    )
    codes = sum_codes(included, channels, layout, generator)
    period = max(1, min(_UNREAD_PERIOD, layout.num_blocks * layout.block_size))
    unread = odd_codes((period, heads, channels), generator)
    unread_in = odd_codes((period, heads), generator) > (0 if side == "K" else -8)
    call = CodedCall(codes, included, lambda at: unread[at % period], lambda at: unread_in[at % period])
    coding = coding_for(context.scenario, _typical_count(layout), k_side=side == "K")
    sums, counts = expected_sums(codes, included, rows)
    return _judge(context, side, run_coded(context, call, coding), (sums, counts, included), rows, coding)


def _judge(
    context: CheckContext,
    side: Side,
    output: Output,
    expected: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    rows: Rows,
    coding: Coding,
) -> Deviation:
    sums, counts, included = expected
    group = context.scenario.attention.group_size
    counts = counts.repeat_interleave(group, 1).double()
    wanted = sums.repeat_interleave(group, 1)
    unit = coding.amplitude * context.scenario.attention.v_scale
    mass = coding.mass(counts)
    decoded = output.out.float() * (mass / unit)[..., None].float()
    empty = counts == 0
    # A row that sees nothing is exactly zero, whatever its mass would be.
    decoded = torch.where(empty[..., None], torch.where(output.out == 0, 0.0, math.inf), decoded)
    traits = context.backend.traits_for(context.path)
    judged = rows.live[:, None] & (~empty if traits.empty_rows == "untouched" else True)
    wrong = ~((decoded - wanted).abs() < HALF_CODE).all(-1) & judged
    lse = _wrong_lse(output, mass, coding, judged, traits.tanh_error)
    return Deviation(side, wrong, lse, decoded, wanted, mass, included, coding)


def _wrong_lse(
    output: Output, mass: torch.Tensor, coding: Coding, judged: torch.Tensor, tanh_error: float
) -> torch.Tensor:
    """Rows whose LSE is not that of their keys and sink, to half a key or to fp32's own error."""
    lse = output.lse
    if lse is None:
        return torch.zeros_like(mass, dtype=torch.bool)
    right, lse = coding.peak + torch.log(mass), lse.double()
    slack = (HALF_CODE / mass).clamp(max=0.1) + _LSE_TOLERANCE * (1 + right.abs()) + tanh_error * coding.peak
    close = torch.where(right.isfinite(), (lse - right).abs() <= slack, lse == right)
    return ~close & judged


def k_attempts(context: CheckContext) -> int:
    """Calls with fresh bits that the K side needs to reach `K_BITS` bits a slot."""
    return -(-K_BITS // context.scenario.attention.num_kv_heads)


def _typical_count(layout: BatchLayout) -> int:
    """The keys that half of the live rows see at most; rows without keys left out."""
    seen = (layout.visible_to - layout.visible_from)[~layout.dead[layout.row_sequence()]]
    seen = np.sort(seen[seen > 0])
    return int(seen[(len(seen) - 1) // 2]) if len(seen) else 1
