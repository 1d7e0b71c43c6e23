"""What a scenario and its layout fix about a call's memory on one device: made once, used by every call.

Where each piece lies, the index arrays (wrong ones, where the scenario hands over wrong ones on purpose), and an image
of the tables as they stand in memory, so that each further call takes one copy. No queries, keys or values here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pagedbench.errors import UsageError
from pagedbench.layout.batch import BatchLayout
from pagedbench.scenario.model import Scenario
from pagedbench.tensors.arena import GUARD_PATTERN, Arena, ArenaPlan, Piece, plan_arena
from pagedbench.tensors.bits import torch_dtype
from pagedbench.tensors.identity import kept
from pagedbench.tensors.pool import PoolShape, pool_pieces
from pagedbench.tensors.transfer import to_device

INDEX_ARRAYS = ("cu_seqlens_q", "cu_seqlens_k", "cache_seqlens", "total_seqlens", "block_table")
PER_HEAD = ("sinks", "alibi_slopes")
_SMALL_GUARD = 512


class PlacedBatch:
    """`plan` and `shape` of the memory; `host` the index arrays on the host, in the scenario's dtypes; `per_head` the
    names of the arrays by head that the scenario has; `written` the new tokens that an override leaves a slot, where it
    takes one from some, else None; `tables_at` where these and the index arrays begin, in units of 2
    bytes."""

    def __init__(self, scenario: Scenario, layout: BatchLayout, device: torch.device) -> None:
        self.host = _index_arrays(scenario, layout)
        self.shape = pool_shape(scenario, layout)
        self.plan = _plan(scenario, layout, self.shape, self.host)
        heads = {name: getattr(scenario.attention, name) for name in PER_HEAD}
        per_head = {name: np.asarray(values, np.float32) for name, values in heads.items() if values is not None}
        self.per_head = tuple(per_head)
        slots = [
            _slots(scenario, "write_slots", layout.write_slots),
            _slots(scenario, "read_slots", _gatherable(layout)),
        ]
        self.tables_at = self.plan.offsets[PER_HEAD[0]] // 2
        tables = self._image(per_head | {n: a.numpy() for n, a in self.host.items()})
        sent = to_device(np.concatenate([*slots, tables.view(np.int64)]), device)  # all in one, as bytes
        self._counts = [len(of_tokens) for of_tokens in slots]
        self.written = _written(scenario, slots[0], device)
        self._slots, on_device = torch.split_with_sizes(sent, [sum(self._counts), len(sent) - sum(self._counts)])
        self._tables = on_device.view(torch.int16)

    def _image(self, arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.int16]:
        """The arena from the first array by head to its end, guard bands included, in units of 2 bytes."""
        image = np.full(self.plan.total // 2 - self.tables_at, GUARD_PATTERN, dtype=np.int16)
        for name, array in arrays.items():
            at = self.plan.offsets[name] // 2 - self.tables_at
            values = np.ascontiguousarray(array).reshape(-1).view(np.int16)
            image[at : at + len(values)] = values
        return image

    def slots(self) -> list[torch.Tensor]:
        """Write and read slots, int64 on the device: copies, that what a kernel does to them stays with it."""
        return list(torch.split_with_sizes(self._slots.clone(), self._counts))

    def put_tables(self, arena: Arena) -> None:
        """Write the index arrays and the arrays by head into an arena of this plan."""
        arena.memory[self.tables_at :].copy_(self._tables)

    def memory_like(self, image: torch.Tensor) -> torch.Tensor:
        """New memory of this plan: as in `image` up to the tables, then this batch's; one kernel."""
        return torch.cat((image[: self.tables_at], self._tables))


def placed(scenario: Scenario, layout: BatchLayout, device: torch.device | str) -> PlacedBatch:
    """The placed batch of a scenario's layout; the last few are kept."""
    return _placed(scenario, layout, torch.device(device))


@kept(4, many=16, small=lambda scenario, layout, device: layout.is_small)
def _placed(scenario: Scenario, layout: BatchLayout, device: torch.device) -> PlacedBatch:
    return PlacedBatch(scenario, layout, device)


def pool_shape(scenario: Scenario, layout: BatchLayout) -> PoolShape:
    """The pool that the scenario's layout needs."""
    attention = scenario.attention
    return PoolShape(
        layout.num_blocks,
        layout.block_size,
        attention.num_kv_heads,
        attention.head_dim,
        attention.head_dim_v,
        torch_dtype(attention.kv_dtype),
        scenario.cache.layout,
    )


def arena_plan(scenario: Scenario, layout: BatchLayout) -> ArenaPlan:
    """All memory that a call hands over, by piece, in the order in which it lies."""
    return _plan(scenario, layout, pool_shape(scenario, layout), _index_arrays(scenario, layout))


def _plan(
    scenario: Scenario, layout: BatchLayout, shape: PoolShape, index_arrays: Mapping[str, torch.Tensor]
) -> ArenaPlan:
    attention = scenario.attention
    kv, tokens = torch_dtype(attention.kv_dtype), layout.total_q
    new = tokens * attention.num_kv_heads if layout.append else 0
    pieces = [
        *pool_pieces(shape),
        _token_piece("q", torch_dtype(attention.q_dtype), tokens * attention.num_heads * attention.head_dim, tokens),
        _token_piece("k_new", kv, new * attention.head_dim, tokens),
        _token_piece("v_new", kv, new * attention.head_dim_v, tokens),
        _token_piece("out", torch_dtype(attention.dtype), tokens * attention.num_heads * attention.head_dim_v, tokens),
        Piece("sinks", torch.float32, attention.num_heads, _SMALL_GUARD),
        Piece("alibi_slopes", torch.float32, attention.num_heads, _SMALL_GUARD),
    ]
    for name, array in index_arrays.items():
        pieces.append(Piece(name, array.dtype, array.numel(), _SMALL_GUARD))
    return plan_arena(pieces)


def _token_piece(name: str, dtype: torch.dtype, elements: int, tokens: int) -> Piece:
    """A piece with room for two tokens of guard, so that a row written past the end is caught."""
    per_token = elements // tokens if tokens else 0
    return Piece(name, dtype, elements, max(2 * per_token * dtype.itemsize, _SMALL_GUARD))


def _index_arrays(scenario: Scenario, layout: BatchLayout) -> dict[str, torch.Tensor]:
    """Host copies of the index arrays in the scenario's dtypes, wrong where the scenario wants them wrong."""
    arrays = {}
    for name in INDEX_ARRAYS:
        given = scenario.override.values.get(name)
        right: NDArray[Any] = getattr(layout, name)
        array = right if given is None else _overridden(name, given, right)
        dtype = scenario.attention.index_dtype.get(name, "int32")
        arrays[name] = torch.from_numpy(np.ascontiguousarray(array.astype(dtype, copy=False)))
    return arrays


def _overridden(name: str, given: object, right: NDArray[Any]) -> NDArray[Any]:
    array = np.array(given)
    if array.ndim != right.ndim or array.dtype.kind not in "iu":
        raise UsageError(f"override.{name}: found shape {array.shape}, needed integers in {right.ndim} dimension(s)")
    return array


def _slots(scenario: Scenario, name: str, right: NDArray[np.int64]) -> NDArray[np.int64]:
    given = scenario.override.values.get(name)
    return right if given is None else _overridden(name, given, right).astype(np.int64)


def _written(scenario: Scenario, slots: NDArray[np.int64], device: torch.device) -> torch.Tensor | None:
    """The new tokens that have a slot, where the override takes it from some."""
    if "write_slots" not in scenario.override.values or (slots >= 0).all():
        return None
    return to_device(np.flatnonzero(slots >= 0), device)


def _gatherable(layout: BatchLayout) -> NDArray[np.int64]:
    """Read slots for a gather. A key that nobody sees may have no slot; it is read from its sequence's last one."""
    slots = layout.read_slots
    missing = np.flatnonzero(slots < 0)
    if len(missing) == 0:
        return slots
    sequence = np.searchsorted(layout.cu_seqlens_k, missing, side="right") - 1
    filled: NDArray[np.int64] = slots.copy()
    filled[missing] = np.maximum(slots[layout.cu_seqlens_k[sequence + 1] - 1], 0)
    return filled
