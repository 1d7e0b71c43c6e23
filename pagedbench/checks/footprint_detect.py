"""Detection: one coded call for V and a few for K tell which rows read a wrong set of slots, not yet which.

Right rows give the sums that their keys must give, in every channel; `location` is `footprint_locate.py`'s job.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from pagedbench.backends.base import Output, Traits
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
    with_unread,
)
from pagedbench.checks.footprint_codes import Rows, expected_sums, included_keys, odd_codes, rows_of, sum_codes
from pagedbench.layout.batch import BatchLayout
from pagedbench.scenario.model import Scenario
from pagedbench.tensors.fill import UNREAD, slot_map
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
    multiplied with to get them; `included` `(total_k, heads)` are the keys that counted."""

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
    many keys it sees, `mass` its denominator, `lse` and the `slack` that it has, fp64; `scale`, fp32, the factor from
    output to sums.
    """

    call: CodedCall
    coding: Coding
    numbers: CodedNumbers
    included: torch.Tensor
    wanted: torch.Tensor
    keys: torch.Tensor
    mass: torch.Tensor
    scale: torch.Tensor
    lse: torch.Tensor
    slack: torch.Tensor

    def part(self, number: int, parts: int) -> _Coded:
        """One of several calls whose heads are beside each other in this one."""
        kv, q = (_share(of.shape[1], number, parts) for of in (self.included, self.keys))
        rows = {name: getattr(self, name)[:, q] for name in ("wanted", "keys", "mass", "scale", "lse", "slack")}
        call, numbers = self.call.of_heads(kv), self.numbers.of_heads(kv)
        return dataclasses.replace(self, call=call, numbers=numbers, included=self.included[:, kv], **rows)


def _share(heads: int, number: int, parts: int) -> slice:
    return slice(number * heads // parts, (number + 1) * heads // parts)


def detect(context: CheckContext, side: Side, attempt: int = 0) -> Deviation:
    """One coded call. On the V side every key counts; on the K side a random half does."""
    scenario, layout, device = context.scenario, context.layout, torch.device(context.device)
    if has_small_image(scenario, layout, device):
        attempts = k_attempts(context) if side == "K" else 1
        coded = _all_coded(scenario, layout, context.inputs, side, attempts, device)[attempt]
    else:
        coded = _coded(scenario, layout, side, 17 * attempt, 1, device)
    return _judge(context, side, run_coded(context, coded.call, coded.coding, coded.numbers), coded)


# New inputs, as after a kernel that was found wrong, have no codes yet: what it may have written over is not used.
@kept(0, many=4, small=lambda *_: True)
def _all_coded(
    scenario: Scenario, layout: BatchLayout, inputs: LogicalInputs, side: Side, attempts: int, device: torch.device
) -> list[_Coded]:
    """The coded calls of all attempts, made at once, and with images: small ones cost launches alone."""
    together = _coded(scenario, layout, side, 0, attempts, device)
    slots = slot_map(layout, device).slots(*UNREAD)
    numbers = with_unread(together.numbers, together.call, together.coding, slots)
    together = dataclasses.replace(together, numbers=numbers)
    parts = [together.part(number, attempts) for number in range(attempts)] if attempts > 1 else [together]
    return [dataclasses.replace(part, numbers=with_image(part.numbers, scenario, layout)) for part in parts]


def _coded(
    scenario: Scenario, layout: BatchLayout, side: Side, seed: int, attempts: int, device: torch.device
) -> _Coded:
    """A coded call, or one that has the heads of several beside each other. No image yet."""
    spec, k_side = scenario.attention, side == "K"
    generator = torch.Generator(device).manual_seed(1009 * scenario.inputs.seed + seed + k_side)
    rows, shape = rows_of(layout, device), (layout.total_k, attempts * spec.num_kv_heads, spec.head_dim_v)
    included = included_keys(layout, shape[1], generator) if k_side else None
    codes = sum_codes(included, shape, layout, generator)
    unread = _unread_codes(shape, layout, generator)
    unread_in = _unread_included(shape, layout, generator) if k_side else None
    call, coding = (
        CodedCall(layout.total_q, codes, included, unread, unread_in),
        coding_for(scenario, _typical_count(layout), k_side=k_side),
    )
    counting = codes.new_ones(shape[:2], dtype=torch.bool) if included is None else included
    sums, counts = expected_sums(codes, counting, rows)
    wanted, keys = (of_heads.repeat_interleave(spec.group_size, 1) for of_heads in (sums, counts.double()))
    mass = coding.mass(keys)
    lse = torch.log(mass).add_(coding.peak)
    return _Coded(
        call,
        coding,
        coded_numbers(scenario, call, coding),
        counting,
        wanted,
        keys,
        mass,
        scale=(mass / (coding.amplitude * spec.v_scale)).float(),
        lse=lse,
        slack=(HALF_CODE / mass).clamp_(max=0.1).add_(lse.abs(), alpha=_LSE_TOLERANCE).add_(_LSE_TOLERANCE),
    )


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
    traits, rows = context.backend.traits_for(context.path), rows_of(context.layout, context.device)
    decoded = output.out * coded.scale[..., None]
    judged = None if rows.live is None else rows.live[:, None]
    if rows.some_blind:
        # A row that sees nothing is exactly zero, whatever its mass would be.
        empty = coded.keys == 0
        decoded = torch.where(empty[..., None], torch.where(output.out == 0, 0.0, math.inf), decoded)
        if traits.empty_rows == "untouched":
            judged = ~empty if judged is None else judged & ~empty
    wrong = ~_right_sums((decoded - coded.wanted).abs_(), traits)
    lse = _wrong_lse(output, coded, rows, traits.tanh_error)
    if judged is not None:
        wrong, lse = wrong & judged, lse & judged
    return Deviation(side, wrong, lse, decoded, coded.wanted, coded.mass, coded.included, coded.coding)


def _right_sums(off: torch.Tensor, traits: Traits) -> torch.Tensor:
    """Rows whose sums are those of their keys, by how far off they are in each channel.

    Rounded partial results make every channel a little wrong, by chance by more than half a code in one of thousands;
    another set of slots makes almost all of them wrong by a code, and a channel out of place its own by two.
    """
    if not traits.rounded_partials:
        return (off < HALF_CODE).all(-1)
    return (off < 3 * HALF_CODE).all(-1) & (off.square().mean(-1) < HALF_CODE**2)


def _wrong_lse(output: Output, coded: _Coded, rows: Rows, tanh_error: float) -> torch.Tensor:
    """Rows whose LSE is not that of their keys and sink, to half a key or to fp32's own error."""
    lse, right, of_tanh = output.lse, coded.lse, tanh_error * coded.coding.peak
    if lse is None:
        return torch.zeros_like(right, dtype=torch.bool)
    close = (lse - right).abs_() <= (coded.slack + of_tanh if of_tanh else coded.slack)
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
