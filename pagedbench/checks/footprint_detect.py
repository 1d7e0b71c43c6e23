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
from pagedbench.checks.footprint_calls import (
    CodedCall,
    CodedNumbers,
    Coding,
    SlotCodes,
    coded_numbers,
    coding_for,
    run_coded,
    with_image,
)
from pagedbench.checks.footprint_codes import Rows, expected_sums, included_keys, odd_codes, rows_of, sum_codes
from pagedbench.layout.batch import BatchLayout
from pagedbench.scenario.model import Scenario
from pagedbench.tensors.identity import kept
from pagedbench.tensors.inputs import LogicalInputs
from pagedbench.tensors.prepare import has_small_image

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


@dataclass(frozen=True)
class _Coded:
    """A coded call before it is run, the same on every path and for every backend, and what must come out of it.

    `included` `(total_k, heads)` bool. For each row `(total_q, num_heads)`: `wanted` its sums, by channel; `keys` how
    many keys it sees and `mass` its denominator, fp64; `scale`, fp32, what its output is multiplied with.
    """

    call: CodedCall
    coding: Coding
    numbers: CodedNumbers
    rows: Rows
    included: torch.Tensor
    wanted: torch.Tensor
    keys: torch.Tensor
    mass: torch.Tensor
    scale: torch.Tensor


def detect(context: CheckContext, side: Side, attempt: int = 0) -> Deviation:
    """One coded call. On the V side every key counts; on the K side a random half does."""
    device = torch.device(context.device)
    coded = _coded(context.scenario, context.layout, context.inputs, side, attempt, device)
    return _judge(context, side, run_coded(context, coded.call, coded.coding, coded.numbers), coded)


# New inputs, as after a kernel that was found wrong, have no codes yet: what it may have written over is not used.
@kept(
    0, many=8, small=lambda scenario, layout, inputs, side, attempt, device: has_small_image(scenario, layout, device)
)
def _coded(
    scenario: Scenario, layout: BatchLayout, inputs: LogicalInputs, side: Side, attempt: int, device: torch.device
) -> _Coded:
    spec, k_side = scenario.attention, side == "K"
    generator = torch.Generator(device).manual_seed(1009 * scenario.inputs.seed + 17 * attempt + k_side)
    rows, shape = rows_of(layout, device), (layout.total_k, spec.num_kv_heads, spec.head_dim_v)
    included = included_keys(layout, spec.num_kv_heads, generator) if k_side else None
    codes = sum_codes(included, shape, layout, generator)
    unread = _unread_codes(shape, layout, generator)
    call = CodedCall(
        layout.total_q, codes, included, unread, _unread_included(shape, layout, generator) if k_side else None
    )
    coding = coding_for(scenario, _typical_count(layout), k_side=k_side)
    numbers = with_image(coded_numbers(scenario, call, coding), scenario, layout, call, coding)
    counting = codes.new_ones(shape[:2], dtype=torch.bool) if included is None else included
    sums, counts = expected_sums(codes, counting, rows)
    wanted, keys = (of_heads.repeat_interleave(spec.group_size, 1) for of_heads in (sums, counts.double()))
    mass = coding.mass(keys)
    scale = (mass / (coding.amplitude * spec.v_scale)).float()
    return _Coded(call, coding, numbers, rows, counting, wanted, keys, mass, scale)


def _unread_codes(shape: tuple[int, int, int], layout: BatchLayout, generator: torch.Generator) -> SlotCodes:
    """Codes of slots that must not be read, for every slot of the pool."""
    period = _period(layout)
    codes = odd_codes((period, *shape[1:]), generator)
    return lambda at: codes[at % period if period == _UNREAD_PERIOD else at]


def _unread_included(shape: tuple[int, int, int], layout: BatchLayout, generator: torch.Generator) -> SlotCodes:
    """Which of them would count if they were read: a random half."""
    period = _period(layout)
    drawn = torch.randint(0, 2, (period, shape[1]), generator=generator, device=generator.device, dtype=torch.int8)
    return lambda at: drawn.view(torch.bool)[at % period if period == _UNREAD_PERIOD else at]


def _period(layout: BatchLayout) -> int:
    return max(1, min(_UNREAD_PERIOD, layout.num_blocks * layout.block_size))


def _judge(context: CheckContext, side: Side, output: Output, coded: _Coded) -> Deviation:
    traits, rows = context.backend.traits_for(context.path), coded.rows
    decoded = output.out.float() * coded.scale[..., None]
    judged = None if rows.live is None else rows.live[:, None]
    if rows.some_blind:
        # A row that sees nothing is exactly zero, whatever its mass would be.
        empty = coded.keys == 0
        decoded = torch.where(empty[..., None], torch.where(output.out == 0, 0.0, math.inf), decoded)
        if traits.empty_rows == "untouched":
            judged = ~empty if judged is None else judged & ~empty
    wrong = ~((decoded - coded.wanted).abs_() < HALF_CODE).all(-1)
    lse = _wrong_lse(output, coded.mass, coded.coding, rows, traits.tanh_error)
    if judged is not None:
        wrong, lse = wrong & judged, lse & judged
    return Deviation(side, wrong, lse, decoded, coded.wanted, coded.mass, coded.included, coded.coding)


def _wrong_lse(output: Output, mass: torch.Tensor, coding: Coding, rows: Rows, tanh_error: float) -> torch.Tensor:
    """Rows whose LSE is not that of their keys and sink, to half a key or to fp32's own error."""
    lse = output.lse
    if lse is None:
        return torch.zeros_like(mass, dtype=torch.bool)
    right = torch.log(mass).add_(coding.peak)
    slack = (HALF_CODE / mass).clamp_(max=0.1).add_(right.abs(), alpha=_LSE_TOLERANCE)
    close = (lse - right).abs_() <= slack.add_(_LSE_TOLERANCE + tanh_error * coding.peak)
    if rows.some_blind:  # without a sink theirs is −inf
        close = torch.where(right.isfinite(), close, lse == right)
    return ~close


def k_attempts(context: CheckContext) -> int:
    """Calls with fresh bits that the K side needs to reach `K_BITS` bits a slot."""
    return -(-K_BITS // context.scenario.attention.num_kv_heads)


@kept(4)
def _typical_count(layout: BatchLayout) -> int:
    """The keys that half of the live rows see at most; rows without keys left out."""
    seen = (layout.visible_to - layout.visible_from)[~layout.dead[layout.row_sequence()]]
    seen = np.sort(seen[seen > 0])
    return int(seen[(len(seen) - 1) // 2]) if len(seen) else 1
