"""What stands in every slot before a call: the batch's keys where they belong, poison or decoys everywhere else.

`Fill` says it by region, K and V apart; `fill_pool` does it. Which region a slot is in is the layout's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
import torch

from pagedbench.layout.batch import BatchLayout
from pagedbench.layout.regions import Region, slot_regions
from pagedbench.scenario.model import Distribution, Inputs, Poison
from pagedbench.tensors.arena import GUARD_PATTERN
from pagedbench.tensors.bits import LARGE
from pagedbench.tensors.inputs import LogicalInputs, draw
from pagedbench.tensors.pool import Pool, put_slots

FillValue = float | Literal["decoy", "keys", "large"]
"""A number; plausible random values; the sequence's own keys (HIDDEN only); or the largest sensible finite number."""

UNREAD = (Region.TRASH, Region.NEW, Region.TAIL, Region.UNNEEDED, Region.FREE)
"""The regions that hold no key before the call. HIDDEN ones do, of tokens that no row sees."""

_ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class Fill:
    """What fills the slots of each region that no row sees. Regions left out hold decoys; VISIBLE ones hold their keys.

    `out` is the bit pattern, as int16, that fills the output memory before the call.
    """

    k: Mapping[Region, FillValue] = field(default_factory=dict)
    v: Mapping[Region, FillValue] = field(default_factory=dict)
    out: int = GUARD_PATTERN

    @classmethod
    def poison(cls, kind: Poison) -> Fill:
        """The same poison everywhere in K and V.

        Hidden keys are real keys of an engine and finite: under NaN or Inf they are `large`, and the check of leaks
        goes further. `none` leaves them their values.
        """
        if kind == "none":
            return cls.regions({Region.HIDDEN: "keys"}, {Region.HIDDEN: "keys"})
        value: FillValue = "large" if kind == "large" else float(kind)
        everywhere = dict.fromkeys(UNREAD, value) | {Region.HIDDEN: "large"}
        return cls(everywhere, everywhere)

    @classmethod
    def regions(cls, k: Mapping[Region, FillValue] | None = None, v: Mapping[Region, FillValue] | None = None) -> Fill:
        """These values in these regions, decoys in all others."""
        return cls(k or {}, v or {})


class SlotMap:
    """A layout's slots by what they are, as index tensors on one device; made once a layout."""

    def __init__(self, layout: BatchLayout, device: torch.device) -> None:
        self._layout = layout
        self._device = device
        self._regions = slot_regions(layout)

    @cached_property
    def counts(self) -> Mapping[Region, int]:
        """How many slots each region has."""
        found = np.bincount(self._regions, minlength=len(Region))
        return {region: int(found[region]) for region in Region}

    def slots(self, region: Region) -> torch.Tensor:
        """The slots of a region, ascending, int64."""
        if region not in self._slots:
            self._slots[region] = self._to_device(np.flatnonzero(self._regions == region))
        return self._slots[region]

    @cached_property
    def _slots(self) -> dict[Region, torch.Tensor]:
        return {}

    @cached_property
    def visible_keys(self) -> tuple[torch.Tensor | None, torch.Tensor]:
        """Cached keys in VISIBLE slots: their indices in the logical keys (None for all), and their slots."""
        return self._keys_in(Region.VISIBLE)

    @cached_property
    def hidden_keys(self) -> tuple[torch.Tensor | None, torch.Tensor]:
        """Cached keys in HIDDEN slots, likewise."""
        return self._keys_in(Region.HIDDEN)

    def _keys_in(self, region: Region) -> tuple[torch.Tensor | None, torch.Tensor]:
        layout = self._layout
        starts = layout.cu_seqlens_k[:-1].astype(np.int64)
        key = np.arange(layout.total_k) - np.repeat(starts, layout.total_seqlens)
        wanted = (key < np.repeat(layout.cache_seqlens, layout.total_seqlens)) & (layout.read_slots >= 0)
        if len(self._regions):
            wanted &= self._regions[np.maximum(layout.read_slots, 0)] == region
        chosen = np.flatnonzero(wanted)
        index = None if len(chosen) == layout.total_k else self._to_device(chosen)
        return index, self._to_device(layout.read_slots[chosen])

    def _to_device(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array.astype(np.int64, copy=False)).to(self._device)


class _ByIdentity:
    """A key for a layout, whose arrays have no hash; keeps it alive, so that its id stays its own."""

    def __init__(self, layout: BatchLayout) -> None:
        self.layout = layout

    def __hash__(self) -> int:
        return id(self.layout)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and other.layout is self.layout


def slot_map(layout: BatchLayout, device: torch.device | str) -> SlotMap:
    """The slot map of a layout on a device; the last few are kept."""
    return _slot_map(_ByIdentity(layout), torch.device(device))


@lru_cache(maxsize=4)
def _slot_map(key: _ByIdentity, device: torch.device) -> SlotMap:
    return SlotMap(key.layout, device)


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
    stream: str
    how: Distribution
    seed: int

    def rows(self, count: int, like: torch.Tensor) -> torch.Tensor:
        return draw(self.stream, self.how, (count, *like.shape[2:]), like.dtype, self.seed, like.device)


def _fill_unseen(cache: torch.Tensor, values: Mapping[Region, FillValue], slots: SlotMap, decoys: _Decoys) -> None:
    """Regions that hold no key: the largest region's value everywhere, then the exceptions."""
    present = [region for region in (*UNREAD, Region.HIDDEN) if slots.counts[region]]
    wanted = {region: values.get(region, "decoy") for region in present}
    plain = {region: _number(value, cache.dtype) for region, value in wanted.items()}
    numbers = {region: number for region, number in plain.items() if number is not None}
    base = max(numbers, key=lambda region: slots.counts[region], default=None)
    if base is not None and not np.isnan(numbers[base]):
        cache.fill_(numbers[base])
    for region in present:
        number = plain[region]
        if number is None and wanted[region] == "decoy":
            put_slots(cache, slots.slots(region), decoys.rows(slots.counts[region], cache))
        elif number is not None and base is not None and not _same(number, numbers[base]):
            row = torch.full((1, *cache.shape[2:]), number, dtype=cache.dtype, device=cache.device)
            put_slots(cache, slots.slots(region), row)


def _number(value: FillValue, dtype: torch.dtype) -> float | None:
    if value == "large":
        return LARGE[dtype]
    if not isinstance(value, (int, float)):
        return None
    # fp8 e4m3 has no infinity; what does not fit becomes NaN.
    fits = dtype.itemsize > 1 or abs(value) <= LARGE[dtype]
    return float(value) if fits else float("nan")


def _same(a: float, b: float) -> bool:
    return a == b or (np.isnan(a) and np.isnan(b))


def _put_keys(cache: torch.Tensor, keys: tuple[torch.Tensor | None, torch.Tensor], rows: torch.Tensor) -> None:
    for index, slots in _parts(*keys):
        put_slots(cache, slots, rows[index])


def _parts(index: torch.Tensor | None, slots: torch.Tensor) -> Iterator[tuple[slice | torch.Tensor, torch.Tensor]]:
    """Keys a part at a time, so that copies stay small beside a big pool."""
    for start in range(0, len(slots), _ROWS_AT_ONCE):
        stop = min(start + _ROWS_AT_ONCE, len(slots))
        yield slice(start, stop) if index is None else index[start:stop], slots[start:stop]
