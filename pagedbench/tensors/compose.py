"""Images of many variants of a small batch at once: one gather of all their rows, one scatter into one allocation.

Made one by one they cost launches alone. Only where memory is plain: a dense NHD pool whose unread slots hold NaN, as
the guard pattern is, and no key hidden; all else is for `prepare`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pagedbench.layout.batch import BatchLayout, IntArray
from pagedbench.layout.regions import Region
from pagedbench.scenario.model import Scenario
from pagedbench.tensors.arena import ALIGNMENT, GUARD_PATTERN
from pagedbench.tensors.fill import UNREAD, Fill, cached_keys, slot_map
from pagedbench.tensors.inputs import LogicalInputs, new_token_keys
from pagedbench.tensors.placed import PlacedBatch, placed
from pagedbench.tensors.pool import PoolShape
from pagedbench.tensors.transfer import all_to_device

_MOST_UNITS = 1 << 13


@dataclass(frozen=True)
class Variant:
    """Another layout, and for each of its query tokens and keys the one that it is in the inputs."""

    layout: BatchLayout
    tokens: IntArray
    keys: IntArray


@dataclass(frozen=True)
class _Rows:
    """Bytes of a row of K, V and Q."""

    k: int
    v: int
    q: int

    @classmethod
    def of(cls, inputs: LogicalInputs) -> _Rows:
        return cls(*(math.prod(x.shape[1:]) * x.element_size() for x in (inputs.k, inputs.v, inputs.q)))

    @property
    def unit(self) -> int:
        """Bytes that every row, and the place of every piece of an arena, is a multiple of."""
        return math.gcd(ALIGNMENT, self.k, self.v, self.q)


def is_plain(
    scenario: Scenario, layout: BatchLayout, inputs: LogicalInputs, fill: Fill, device: torch.device | str
) -> bool:
    """Whether images of a batch's variants can be composed, and are small."""
    batch, unit = placed(scenario, layout, device), _Rows.of(inputs).unit
    poison = (values.get(region) for values in (fill.k, fill.v) for region in UNREAD)
    return (
        unit % 2 == 0
        and batch.plan.total // unit <= _MOST_UNITS
        and all(isinstance(value, float) and math.isnan(value) for value in poison)
        and layout.trash_block is None
        and not layout.dead.any()
        and not slot_map(layout, device).counts[Region.HIDDEN]
        and _is_dense(batch.shape)
    )


def _is_dense(shape: PoolShape) -> bool:
    """Whether slot follows slot, in K and in V."""
    heads, size = shape.num_kv_heads, shape.block_size
    dense = [(size * heads * dim, heads * dim, dim, 1) for dim in (shape.head_dim, shape.head_dim_v)]
    return [(at.offset, at.stride) for at in shape.placings] == [(0, stride) for stride in dense]


def compose(
    scenario: Scenario, inputs: LogicalInputs, variants: Sequence[Variant], device: torch.device | str
) -> list[torch.Tensor]:
    """For each variant the memory of its call up to the tables, as an image for `prepare`. See `is_plain`."""
    rows = _Rows.of(inputs)
    batches = [placed(scenario, variant.layout, device) for variant in variants]
    sizes = [batch.tables_at for batch in batches]
    begins = np.cumsum([0, *sizes[:-1]]) * 2 // rows.unit
    moves = [
        move
        for variant, batch, begin in zip(variants, batches, begins.tolist(), strict=True)
        for move in _moves(variant, batch, begin, rows, len(inputs.k))
    ]
    to, of = all_to_device([np.concatenate(units) for units in zip(*moves, strict=True)], device)
    memory = torch.full((sum(sizes),), GUARD_PATTERN, dtype=torch.int16, device=device)
    parts = [part.reshape(-1).view(torch.int16) for part in (inputs.k, inputs.v, inputs.q)]
    source = torch.cat(parts).view(-1, rows.unit // 2)
    memory.view(-1, rows.unit // 2).index_copy_(0, to, source.index_select(0, of))
    return list(torch.split_with_sizes(memory, sizes))


def _moves(
    variant: Variant, batch: PlacedBatch, begin: int, rows: _Rows, total_k: int
) -> Iterator[tuple[IntArray, IntArray]]:
    """Units of the memory, and those of the source that they are copies of: K, V, then Q, one after the other there."""
    layout = variant.layout
    cached = cached_keys(layout)
    new = new_token_keys(layout) if layout.append else np.zeros(0, np.int64)
    at_k, at_v = batch.shape.placings
    slots, all_new, all_tokens = layout.read_slots[cached], np.arange(len(new)), np.arange(len(variant.tokens))
    of_v, of_q = total_k * rows.k, total_k * (rows.k + rows.v)
    for piece, row, to, source, of in (
        (at_k.piece, rows.k, slots, 0, variant.keys[cached]),
        (at_v.piece, rows.v, slots, of_v, variant.keys[cached]),
        ("k_new", rows.k, all_new, 0, variant.keys[new]),
        ("v_new", rows.v, all_new, of_v, variant.keys[new]),
        ("q", rows.q, all_tokens, of_q, variant.tokens),
    ):
        count, place = row // rows.unit, begin + batch.plan.offsets[piece] // rows.unit
        yield place + _units(to, count), source // rows.unit + _units(of, count)


def _units(rows: IntArray, count: int) -> IntArray:
    """The units of rows of so many each."""
    return (rows[:, None] * count + np.arange(count)).reshape(-1)
