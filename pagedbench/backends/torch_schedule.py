"""How the `torch` backend cuts a ragged batch into tiles of equal shape: integers only, on the host, before the call.

A tile is up to `TILE_ROWS` consecutive query tokens of one sequence with the span of keys that any of them sees. Tiles
of about the same number of rows and keys form a group, which is computed as one batch: a long prompt beside many
single tokens costs no padding worth speaking of, and no Python loop runs over tokens or sequences.

Where a tile is smaller than its group, it is padded with *repeats of its own last row and last visible key*: what is
read is then always a slot that the batch needs, so an unneeded table entry is never followed, and rubbish in unread
slots cannot reach a product with a zero weight (0 * NaN is NaN).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from pagedbench.scenario.model import UNLIMITED
from pagedbench.tensors.call import CallSpec
from pagedbench.tensors.transfer import all_to_device

IntArray = NDArray[np.int64]
_T = TypeVar("_T", torch.Tensor, NDArray[Any])
TILE_ROWS = 128
# Launching the operations of a group takes as long as this part of a step's arithmetic.
_LITTLE = 8
# Keys times rows of a group up to which the places of its keys are worked out on the host, before the call.
_FEW = 1 << 16


@dataclass(frozen=True)
class TileGroup:
    """`n` tiles of `r` rows each, on the device, int64.

    `sequence` `(n,)`; `rows` `(n, r)` query token of each row, an index into `q`; `position` `(n, r)` its place among
    the keys (the key it is aligned with); `visible_from`, `visible_to` `(n, r)` the half-open range of keys it sees;
    `first_key`, `last_key` `(n,)` the range, both ends included, that any row of the tile sees; `span` the longest
    such range, which is worked through `step` keys at a time. `key_start` `(n,)` is the sequence's first among gathered
    keys, `block_size` that of the table, None for gathered keys. `real` `(m,)` are the rows that are not padding, as
    indices into the flattened `(n * r)`; None where no row is. `whole`: the rows are all query tokens of the batch, in
    their order. `few`: the keys, where they are one step and few.
    """

    sequence: torch.Tensor
    rows: torch.Tensor
    position: torch.Tensor
    visible_from: torch.Tensor
    visible_to: torch.Tensor
    first_key: torch.Tensor
    last_key: torch.Tensor
    key_start: torch.Tensor
    real: torch.Tensor | None
    block_size: int | None
    span: int
    step: int
    whole: bool
    few: KeyStep | None

    def keys(self, offsets: range) -> KeyStep:
        """The keys at these offsets from each tile's first."""
        if self.few is not None:
            return self.few
        limits = (self.visible_from, self.visible_to, self.first_key, self.last_key)
        places = torch.arange(offsets.start, offsets.stop, device=self.rows.device)
        position, hidden = _positions_and_hidden(limits, places, torch.minimum)
        return KeyStep(position, _place(position, self.key_start, self.block_size), hidden, some_blind=True)


@dataclass(frozen=True)
class KeyStep:
    """Some keys of a group's tiles.

    `position` `(n, c)` int64, the last visible one in place of those behind it; `place`, likewise, is the index among
    gathered keys, or the column of the block table and the offset in the block. `hidden` `(n, r, c)` bool: not seen by
    that row; None where every row sees all. `some_blind`: a row may see none of them.
    """

    position: torch.Tensor
    place: tuple[torch.Tensor, ...]
    hidden: torch.Tensor | None
    some_blind: bool


def _positions_and_hidden(limits: tuple[_T, _T, _T, _T], offsets: _T, minimum: Callable[[_T, _T], _T]) -> tuple[_T, _T]:
    """As in `KeyStep`, from `visible_from`, `visible_to` `(n, r)`, `first_key` and `last_key` `(n,)`; arrays of either
    library."""
    visible_from, visible_to, first_key, last_key = limits
    key = first_key[:, None] + offsets
    hidden = (key[:, None] < visible_from[:, :, None]) | (key[:, None] >= visible_to[:, :, None])
    return minimum(key, last_key[:, None]), hidden


def _place(position: _T, key_start: _T, block_size: int | None) -> tuple[_T, ...]:
    """As in `KeyStep`."""
    if block_size is None:
        return (key_start[:, None] + position,)
    return position // block_size, position % block_size


@dataclass(frozen=True)
class Schedule:
    """The tile groups of a batch. `blind`: there are rows in no tile, as they see no key.

    `new_tokens`: sequence, column of the block table and offset in the block of each new token, all `(total_q,)` on the
    device; None where nothing is appended.
    """

    groups: list[TileGroup]
    blind: bool
    new_tokens: tuple[torch.Tensor, ...] | None = None


@dataclass(frozen=True)
class StepSize:
    """Bounds what one step holds: `room` fp32 elements, of which a key takes `per_key` and each row of a tile `per_row`
    more."""

    room: int
    per_key: int
    per_row: int

    @classmethod
    def of(cls, spec: CallSpec, room: int) -> StepSize:
        """K and V of one key; scores and weights of one row."""
        return cls(room, spec.num_kv_heads * (spec.head_dim + spec.head_dim_v), 2 * spec.num_heads)

    def is_little(self, tiles: int, rows: int, span: int) -> bool:
        """Whether so many tiles of one shape are done sooner than another group would be begun."""
        return tiles * span * (self.per_key + self.per_row * rows) <= self.room // _LITTLE

    def keys(self, rows: int, span: int) -> int:
        """Keys a step, for tiles of so many rows."""
        return min(span, max(64, self.room // (self.per_key + self.per_row * rows)))

    def tiles(self, rows: int, span: int) -> int:
        """Tiles a step."""
        return max(1, self.room // ((self.per_key + self.per_row * rows) * self.keys(rows, span)))


def schedule(
    cu_seqlens_q: IntArray,
    seqlens_k: IntArray,
    causal: bool,
    window_size: tuple[int, int],
    device: torch.device,
    step_size: StepSize,
    block_size: int | None,
) -> Schedule:
    """The tile groups of a batch. Rows that see no key are in no tile.

    `cu_seqlens_q` `(batch + 1,)`, `seqlens_k` `(batch,)` keys after any append. `block_size` is None for gathered keys.
    """
    tiles = _tiles(cu_seqlens_q[1:] - cu_seqlens_q[:-1])
    widest, longest = int(tiles.count.max(initial=0)), int(seqlens_k.max(initial=0))
    together = step_size.is_little(len(tiles.count), widest, longest)
    groups: list[TileGroup] = []
    for rows_padded, members in _by_size(tiles.count, together):
        group = _Rows.of(tiles.take(members), rows_padded, cu_seqlens_q, seqlens_k, causal, window_size)
        groups += group.split_by_span(device, step_size, block_size, together)
    in_tiles = sum(group.rows.numel() if group.real is None else len(group.real) for group in groups)
    blind = in_tiles < int(cu_seqlens_q[-1])
    if len(groups) == 1 and groups[0].real is None and not blind:  # and a group's tiles are in the batch's order
        groups = [replace(groups[0], whole=True)]
    return Schedule(groups, blind)


def new_token_places(
    cu_seqlens_q: IntArray, cache_seqlens: IntArray, block_size: int, device: torch.device
) -> tuple[torch.Tensor, ...]:
    """`(total_q,)` sequence, column of the block table, and offset in the block of each token to append."""
    query_lens = np.diff(cu_seqlens_q)
    sequence = np.repeat(np.arange(len(query_lens)), query_lens)
    position = np.arange(len(sequence)) + np.repeat(cache_seqlens - cu_seqlens_q[:-1], query_lens)
    return tuple(all_to_device([sequence, position // block_size, position % block_size], device))


@dataclass(frozen=True)
class _Tiles:
    """Tiles before any shape is given: sequence, first query token within the sequence, number of query tokens."""

    sequence: IntArray
    first: IntArray
    count: IntArray

    def take(self, members: IntArray) -> _Tiles:
        return _Tiles(self.sequence[members], self.first[members], self.count[members])


def _tiles(query_lens: IntArray) -> _Tiles:
    per_sequence = -(-query_lens // TILE_ROWS)
    sequence = np.repeat(np.arange(len(query_lens)), per_sequence)
    starts = np.cumsum(per_sequence) - per_sequence
    first = (np.arange(len(sequence)) - starts[sequence]) * TILE_ROWS
    return _Tiles(sequence, first, np.minimum(query_lens[sequence] - first, TILE_ROWS))


def _by_size(sizes: IntArray, together: bool) -> list[tuple[int, IntArray]]:
    """(largest size, indices) by the next power of two of `sizes`, so that padding at most doubles the work.

    All in one if they go `together`.
    """
    if together:
        return [(int(sizes.max()), np.arange(len(sizes)))] if len(sizes) else []
    buckets = np.ceil(np.log2(np.maximum(sizes, 1))).astype(np.int64)
    members = [np.flatnonzero(buckets == bucket) for bucket in np.unique(buckets)]
    return [(int(sizes[m].max()), m) for m in members]


@dataclass(frozen=True)
class _Rows:
    """The rows of some tiles, padded to one width. Shapes as in `TileGroup`; `padding` `(n, r)` marks repeats."""

    sequence: IntArray
    rows: IntArray
    position: IntArray
    visible_from: IntArray
    visible_to: IntArray
    key_start: IntArray
    padding: NDArray[np.bool_]

    @classmethod
    def of(
        cls,
        tiles: _Tiles,
        width: int,
        cu_seqlens_q: IntArray,
        seqlens_k: IntArray,
        causal: bool,
        window_size: tuple[int, int],
    ) -> _Rows:
        offset = np.arange(width)[None, :]
        in_sequence = tiles.first[:, None] + np.minimum(offset, tiles.count[:, None] - 1)
        query_len = (cu_seqlens_q[tiles.sequence + 1] - cu_seqlens_q[tiles.sequence])[:, None]
        keys = seqlens_k[tiles.sequence][:, None]
        position = keys - query_len + in_sequence  # bottom-right: the last query token is aligned with the last key
        left, right = window_size
        visible_from = np.zeros_like(position) if left == UNLIMITED else position - left
        visible_to = position + 1 if causal else keys + np.zeros_like(position)
        if not causal and right != UNLIMITED:
            visible_to = position + right + 1
        return cls(
            sequence=tiles.sequence,
            rows=cu_seqlens_q[tiles.sequence][:, None] + in_sequence,
            position=position,
            visible_from=np.minimum(np.maximum(visible_from, 0), keys),
            visible_to=np.minimum(np.maximum(visible_to, 0), keys),
            key_start=(np.cumsum(seqlens_k) - seqlens_k)[tiles.sequence],
            padding=offset >= tiles.count[:, None],
        )

    def split_by_span(
        self, device: torch.device, step_size: StepSize, block_size: int | None, together: bool
    ) -> list[TileGroup]:
        """Groups of tiles that see about the same number of keys; tiles that see none are dropped."""
        span = self.visible_to.max(axis=1) - self.visible_from.min(axis=1)
        seeing = np.flatnonzero(span > 0)
        groups = []
        for longest, found in _by_size(span[seeing], together):
            many = step_size.tiles(self.rows.shape[1], longest)
            step = step_size.keys(self.rows.shape[1], longest)
            members = seeing[found]
            parts = (members[start : start + many] for start in range(0, len(members), many))
            groups += [self._group(part, longest, step, block_size, device) for part in parts]
        return groups

    def _group(
        self, members: IntArray, span: int, step: int, block_size: int | None, device: torch.device
    ) -> TileGroup:
        visible_from, visible_to = self.visible_from[members], self.visible_to[members]
        first_key, last_key = visible_from.min(axis=1), visible_to.max(axis=1) - 1
        arrays = {
            "sequence": self.sequence[members],
            "rows": self.rows[members],
            "position": self.position[members],
            "visible_from": visible_from,
            "visible_to": visible_to,
            "first_key": first_key,
            "last_key": last_key,
            "key_start": self.key_start[members],
        }
        padding = self.padding[members]
        if padding.any():
            arrays["real"] = np.flatnonzero(~padding)
        few = None
        if span <= step and visible_to.size * span <= _FEW:
            limits = (visible_from, visible_to, first_key, last_key)
            position, hidden = _positions_and_hidden(limits, np.arange(span), np.minimum)
            few = _FewKeys(position, _place(position, arrays["key_start"], block_size), hidden)
        sent = all_to_device([*arrays.values(), *(few.arrays if few else ())], device)
        placed = dict(zip(arrays, sent, strict=False))
        keys = few.step(sent[len(arrays) :]) if few else None
        real = placed.pop("real", None)
        return TileGroup(**placed, real=real, block_size=block_size, span=span, step=step, whole=False, few=keys)


@dataclass(frozen=True)
class _FewKeys:
    """A `KeyStep` on the host."""

    position: IntArray
    place: tuple[IntArray, ...]
    hidden: NDArray[np.bool_]

    @property
    def arrays(self) -> list[NDArray[Any]]:
        """What goes to the device."""
        return [self.position, *self.place, *([self.hidden] if self.hidden.any() else [])]

    def step(self, sent: Sequence[torch.Tensor]) -> KeyStep:
        """Made of `arrays` on the device."""
        position, *place = sent[: 1 + len(self.place)]
        hidden = [flags.bool() for flags in sent[1 + len(self.place) :]]
        some_blind = bool(self.hidden.all(-1).any())
        return KeyStep(position, tuple(place), hidden[0] if hidden else None, some_blind)
