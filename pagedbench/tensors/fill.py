"""What stands in every slot before a call: the batch's keys where they belong, poison or decoys everywhere else.

`Fill` says it by region, K and V apart; `fill_pool` does it. Which region a slot is in is the layout's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import numpy as np
import torch

from pagedbench.layout.batch import BatchLayout, IntArray
from pagedbench.layout.regions import Region, slot_regions
from pagedbench.scenario.model import Distribution, Inputs, Poison
from pagedbench.tensors.arena import GUARD_PATTERN
from pagedbench.tensors.bits import LARGE, bits
from pagedbench.tensors.identity import kept
from pagedbench.tensors.inputs import LogicalInputs, draw, new_token_keys
from pagedbench.tensors.pool import Pool, put_slots
from pagedbench.tensors.transfer import all_to_device, numbered, to_device

FillValue = float | Literal["decoy", "keys", "large"]
"""A number; plausible random values; the sequence's own keys (HIDDEN only); or the largest sensible finite number."""

UNREAD = (Region.TRASH, Region.NEW, Region.TAIL, Region.UNNEEDED, Region.FREE)
"""The regions that hold no key before the call. HIDDEN ones do, of tokens that no row sees."""

DECOYS = 61
"""Different decoys; a prime, so that the same one does not stand at the same offset of every block."""

_ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class Fill:
    """What fills the slots of each region that no row sees. Regions left out hold decoys; VISIBLE ones hold their keys.

    `out` is the bit pattern, as int16, that fills the output memory before the call.
    """

    k: Mapping[Region, FillValue] = field(default_factory=dict)
    v: Mapping[Region, FillValue] = field(default_factory=dict)
    out: int = GUARD_PATTERN

    @property
    def follows_table(self) -> bool:
        """Whether what fills an unread slot depends on which entries of the table name its block, if any do."""
        return any(len({values.get(region, "decoy") for region in UNREAD}) > 1 for values in (self.k, self.v))

    @classmethod
    def poison(cls, kind: Poison) -> Fill:
        """The same poison everywhere in K and V.

        Hidden keys are real keys of an engine and finite: under NaN or Inf they are `large`, and the check of leaks
        goes further. `none` leaves them their values.
        """
        everywhere = _everywhere(kind)
        return cls(everywhere, everywhere)

    @classmethod
    def regions(cls, k: Mapping[Region, FillValue] | None = None, v: Mapping[Region, FillValue] | None = None) -> Fill:
        """These values in these regions, decoys in all others."""
        return cls(k or {}, v or {})


@lru_cache
def _everywhere(kind: Poison) -> Mapping[Region, FillValue]:
    """One mapping for each kind, so that two fills with it can be told to be the same."""
    if kind == "none":
        return {Region.HIDDEN: "keys"}
    value: FillValue = "large" if kind == "large" else float(kind)
    return dict.fromkeys(UNREAD, value) | {Region.HIDDEN: "large"}


class SlotMap:
    """A layout's slots by what they are, as index tensors on one device; made once a layout.

    `counts`: how many slots each region has. `visible_keys`, `hidden_keys`: cached keys in such slots, as their indices
    in the logical keys (None for all), and their slots. `new_keys`: the logical keys of the new tokens, in query order;
    empty where nothing is appended.
    """

    def __init__(self, layout: BatchLayout, device: torch.device) -> None:
        self._device, self._regions = device, slot_regions(layout)
        found = np.bincount(self._regions, minlength=len(Region)).tolist()
        self.counts: Mapping[Region, int] = dict(zip(Region, found, strict=True))
        new_keys = new_token_keys(layout) if layout.append else np.zeros(0, np.int64)
        cached = cached_keys(layout)
        region = self._regions[layout.read_slots[cached]]
        visible, hidden = cached[region == Region.VISIBLE], cached[region == Region.HIDDEN]
        keys = (visible, layout.read_slots[visible], hidden, layout.read_slots[hidden])
        self.new_keys, *of_keys = all_to_device([new_keys, *keys], device)
        self.visible_keys = (None if len(visible) == layout.total_k else of_keys[0], of_keys[1])
        self.hidden_keys = (None if len(hidden) == layout.total_k else of_keys[2], of_keys[3])
        self._slots: dict[tuple[Region, ...], torch.Tensor] = {}

    def slots(self, *regions: Region) -> torch.Tensor:
        """The slots of some regions, region by region, ascending in each, int64."""
        if not self._slots:  # not sorted before: one fill everywhere, as most calls have, asks for no region
            parts = torch.split_with_sizes(
                to_device(np.argsort(self._regions, kind="stable"), self._device), list(self.counts.values())
            )
            self._slots = {(region,): part for region, part in zip(Region, parts, strict=True)}
        if regions not in self._slots:
            self._slots[regions] = torch.cat([self._slots[(region,)] for region in regions])
        return self._slots[regions]


def cached_keys(layout: BatchLayout) -> IntArray:
    """The logical keys that are in the pool before the call."""
    ends = layout.cu_seqlens_k[:-1].astype(np.int64) + layout.cache_seqlens
    in_cache = np.arange(layout.total_k) < np.repeat(ends, layout.total_seqlens)
    return np.flatnonzero(in_cache & (layout.read_slots >= 0))


def slot_map(layout: BatchLayout, device: torch.device | str) -> SlotMap:
    """The slot map of a layout on a device; the last few are kept."""
    return _slot_map(layout, numbered(torch.device(device)))


@kept(4, many=16, small=lambda layout, device: layout.is_small)
def _slot_map(layout: BatchLayout, device: torch.device) -> SlotMap:
    return SlotMap(layout, device)


def fill_pool(pool: Pool, fill: Fill, inputs: LogicalInputs, layout: BatchLayout, how: Inputs) -> None:
    """Fill a pool that still holds the guard pattern: the cached keys, and `fill` where no row looks.

    Deterministic: the same arguments give the same bits on the same device.
    """
    slots = slot_map(layout, pool.k.device)
    for cache, values, stream, distribution, rows in (
        (pool.k, fill.k, "k decoy", how.k, inputs.k),
        (pool.v, fill.v, "v decoy", how.v, inputs.v),
    ):
        _fill_unseen(cache, values, slots, _Decoys(stream, distribution, how.seed))
        _put_keys(cache, slots.visible_keys, rows)
        if values.get(Region.HIDDEN) == "keys":
            _put_keys(cache, slots.hidden_keys, rows)


@dataclass(frozen=True)
class _Decoys:
    """Random rows that look like keys: `DECOYS` of them, given to slots in turn."""

    stream: str
    how: Distribution
    seed: int

    def put(self, cache: torch.Tensor, slots: torch.Tensor) -> None:
        """Fill these slots."""
        rows = _decoy_rows(self, tuple(cache.shape[2:]), cache.dtype, cache.device)
        for at in torch.split(slots, _ROWS_AT_ONCE):
            put_slots(cache, at, bits(rows)[at % DECOYS].view(cache.dtype))


@lru_cache(maxsize=8)
def _decoy_rows(decoys: _Decoys, row: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return draw(decoys.stream, decoys.how, (DECOYS, *row), dtype, decoys.seed, device)


def _fill_unseen(cache: torch.Tensor, values: Mapping[Region, FillValue], slots: SlotMap, decoys: _Decoys) -> None:
    """Regions that hold no key: the number that most slots hold everywhere, then the exceptions, then decoys."""
    by_number = _by_number(cache, values, slots)
    ordered = sorted(by_number, key=lambda number: -sum(slots.counts[r] for r in by_number[number]))
    if ordered and not math.isnan(ordered[0]):
        cache.fill_(ordered[0])
    for number in ordered[1:]:
        _put_number(cache, slots.slots(*by_number[number]), number)
    with_decoys = [region for region in _unseen(slots) if values.get(region, "decoy") == "decoy"]
    if with_decoys:
        decoys.put(cache, slots.slots(*with_decoys))


def refill(pool: Pool, fill: Fill, layout: BatchLayout) -> None:
    """The numbers of a fill put into a pool where the same regions held others; what is no number stays as it is."""
    slots = slot_map(layout, pool.k.device)
    for cache, values in ((pool.k, fill.k), (pool.v, fill.v)):
        for number, regions in _by_number(cache, values, slots).items():
            _put_number(cache, slots.slots(*regions), number)


def _unseen(slots: SlotMap) -> list[Region]:
    """The regions that hold no key that a row sees, as far as there are such slots."""
    return [region for region in (*UNREAD, Region.HIDDEN) if slots.counts[region]]


def _by_number(cache: torch.Tensor, values: Mapping[Region, FillValue], slots: SlotMap) -> dict[float, list[Region]]:
    """Unseen regions by the number that fills them."""
    found: dict[float, list[Region]] = {}
    for region in _unseen(slots):
        number = _number(values.get(region, "decoy"), cache.dtype)
        if number is not None:
            found.setdefault(number, []).append(region)
    return found


def _put_number(cache: torch.Tensor, slots: torch.Tensor, number: float) -> None:
    put_slots(cache, slots, torch.full((1, *cache.shape[2:]), number, dtype=cache.dtype, device=cache.device))


def _number(value: FillValue, dtype: torch.dtype) -> float | None:
    """The number as the dtype can hold it; None for what is no number. NaN is one object, so that it equals itself."""
    if value == "large":
        return LARGE[dtype]
    if not isinstance(value, (int, float)):
        return None
    # fp8 e4m3 has no infinity; what does not fit becomes NaN.
    fits = dtype.itemsize > 1 or abs(value) <= LARGE[dtype]
    return float(value) if fits and not np.isnan(value) else math.nan


def _put_keys(cache: torch.Tensor, keys: tuple[torch.Tensor | None, torch.Tensor], rows: torch.Tensor) -> None:
    """Keys a part at a time, so that copies stay small beside a big pool."""
    index, slots = keys
    for start in range(0, len(slots), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        taken = rows[part] if index is None else bits(rows).index_select(0, index[part]).view(rows.dtype)
        put_slots(cache, slots[part], taken)
