"""From a scenario and its numbers to a `Call` on fresh memory, ready for a backend.

Everything that a kernel is handed lies in one arena with guard bands, and can be made a second time, bit for bit, as it
must be after the call. How much memory that takes is in `memory.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pagedbench.errors import UsageError
from pagedbench.layout.batch import BatchLayout
from pagedbench.layout.given import layout_as_given
from pagedbench.scenario.model import Scenario
from pagedbench.tensors.arena import Arena, ArenaPlan, Piece, plan_arena
from pagedbench.tensors.bits import torch_dtype
from pagedbench.tensors.call import Call, CallSpec, HostArrays
from pagedbench.tensors.fill import Fill, fill_pool
from pagedbench.tensors.inputs import LogicalInputs, new_tokens
from pagedbench.tensors.memory import MemoryNeed, available_bytes, estimate_bytes
from pagedbench.tensors.pool import Pool, PoolShape, pool_pieces, put_slots
from pagedbench.words import AttnPath

__all__ = ["Fill", "MemoryNeed", "Prepared", "available_bytes", "call_spec", "estimate_bytes", "prepare"]

INDEX_ARRAYS = ("cu_seqlens_q", "cu_seqlens_k", "cache_seqlens", "total_seqlens", "block_table")
_SMALL_GUARD = 512


@dataclass(frozen=True)
class Prepared:
    """A call with the memory it works on, and what it was made from."""

    call: Call
    pool: Pool
    inputs: LogicalInputs
    layout: BatchLayout
    scenario: Scenario
    fill: Fill

    @property
    def arena(self) -> Arena:
        """All memory of the call."""
        return self.pool.arena

    def expected(self, start: torch.Tensor | None = None) -> Prepared:
        """The same call made again, with the new tokens of live sequences written: its memory as it must be after.

        The output's memory still holds its fill, and slots of a trash block what they held before. `start` is the
        arena's memory before the call, where it is not what `prepare` makes.
        """
        path, device = self.call.spec.path, self.call.q.device
        after = prepare(self.scenario, self.layout, self.inputs, path, device, fill=self.fill)
        if start is not None:
            after.arena.memory.copy_(start)
        if after.call.k_new is not None and after.call.v_new is not None:
            live = torch.from_numpy(np.flatnonzero(~self.layout.dead[self.layout.row_sequence()])).to(device)
            slots = torch.from_numpy(self._written()).to(device)[live]
            put_slots(after.pool.k, slots, after.call.k_new[live])
            put_slots(after.pool.v, slots, after.call.v_new[live])
        return after

    def _written(self) -> NDArray[np.int64]:
        """The slots of the new tokens: where they belong, or where an override that is taken at its word puts them."""
        if self.scenario.override.values and self.scenario.override.oracle == "as-given":
            paged = self.call.spec.path is not AttnPath.VARLEN
            return layout_as_given(self.scenario, self.layout, paged=paged).write_slots
        return self.layout.write_slots


def prepare(
    scenario: Scenario,
    layout: BatchLayout,
    inputs: LogicalInputs,
    path: AttnPath,
    device: torch.device | str,
    *,
    fill: Fill | None = None,
) -> Prepared:
    """A fresh call. `fill` defaults to the scenario's poison; the scenario's `override` is obeyed."""
    chosen = fill or Fill.poison(scenario.inputs.poison)
    spec = call_spec(scenario, layout, path, device)
    arena = Arena(arena_plan(scenario, layout), device)
    pool = Pool(arena, pool_shape(scenario, layout))
    fill_pool(pool, chosen, inputs, layout, scenario.inputs)
    host = _index_arrays(scenario, layout)
    for name, array in host.items():
        arena.shaped(name, array.shape).copy_(array)
    call = Call(
        spec=spec,
        q=_copied(arena, "q", inputs.q),
        k_cache=pool.k,
        v_cache=pool.v,
        **{name: arena.shaped(name, array.shape) for name, array in host.items()},
        write_slots=_slots(scenario, "write_slots", layout.write_slots, device),
        read_slots=_slots(scenario, "read_slots", _gatherable(layout), device),
        max_seqlen_q=spec.max_seqlen_q,
        max_seqlen_k=spec.max_seqlen_k,
        k_scale=scenario.attention.k_scale,
        v_scale=scenario.attention.v_scale,
        out=_output_memory(arena, spec, chosen.out),
        host=HostArrays(**host),
        **_per_head(arena, scenario),
        **_appended(arena, inputs, layout),
    )
    return Prepared(call, pool, inputs, layout, scenario, chosen)


def call_spec(scenario: Scenario, layout: BatchLayout, path: AttnPath, device: torch.device | str) -> CallSpec:
    """The facts about the call, overrides included. An empty batch counts as one of single query tokens."""
    attention, cache = scenario.attention, scenario.cache.layout
    spec = CallSpec(
        path=path,
        device=torch.device(device).type,
        batch=layout.batch,
        query_len=layout.uniform_query_len if layout.batch else 1,
        max_seqlen_q=layout.max_seqlen_q,
        max_seqlen_k=layout.max_seqlen_k,
        total_q=layout.total_q,
        has_empty_query=bool((layout.query_lens == 0).any()),
        has_empty_keys=bool((layout.total_seqlens == 0).any()),
        has_blind_rows=bool((layout.visible_to == layout.visible_from).any()),
        append=layout.append,
        block_size=layout.block_size,
        num_blocks=layout.num_blocks,
        max_blocks_per_seq=layout.max_blocks_per_seq,
        num_heads=attention.num_heads,
        num_kv_heads=attention.num_kv_heads,
        head_dim=attention.head_dim,
        head_dim_v=attention.head_dim_v,
        q_dtype=attention.q_dtype,
        kv_dtype=attention.kv_dtype,
        out_dtype=attention.dtype,
        kv_order=cache.order,
        kv_contiguous=cache.form == "contiguous",
        kv_same_strides=cache.k_stride == cache.v_stride and attention.head_dim == attention.head_dim_v,
        causal=attention.causal,
        window_size=attention.window_size,
        softcap=attention.softcap,
        sinks=attention.sinks is not None,
        alibi=attention.alibi_slopes is not None,
        softmax_scale=attention.softmax_scale,
        num_splits=attention.num_splits,
        index_dtypes={n: d for n, d in attention.index_dtype.items() if d != "int32"},
    )
    facts = {field.name for field in dataclasses.fields(CallSpec)}
    given: dict[str, Any] = {name: value for name, value in scenario.override.values.items() if name in facts}
    return dataclasses.replace(spec, **given)


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
    attention = scenario.attention
    kv, tokens = torch_dtype(attention.kv_dtype), layout.total_q
    new = tokens * attention.num_kv_heads if layout.append else 0
    pieces = [
        *pool_pieces(pool_shape(scenario, layout)),
        _token_piece("q", torch_dtype(attention.q_dtype), tokens * attention.num_heads * attention.head_dim, tokens),
        _token_piece("k_new", kv, new * attention.head_dim, tokens),
        _token_piece("v_new", kv, new * attention.head_dim_v, tokens),
        _token_piece("out", torch_dtype(attention.dtype), tokens * attention.num_heads * attention.head_dim_v, tokens),
        Piece("sinks", torch.float32, attention.num_heads, _SMALL_GUARD),
        Piece("alibi_slopes", torch.float32, attention.num_heads, _SMALL_GUARD),
    ]
    for name, array in _index_arrays(scenario, layout).items():
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


def _slots(scenario: Scenario, name: str, right: NDArray[np.int64], device: torch.device | str) -> torch.Tensor:
    given = scenario.override.values.get(name)
    array = right if given is None else _overridden(name, given, right).astype(np.int64)
    return torch.from_numpy(array).to(device)


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


def _copied(arena: Arena, name: str, values: torch.Tensor) -> torch.Tensor:
    return arena.shaped(name, values.shape).copy_(values)


def _output_memory(arena: Arena, spec: CallSpec, pattern: int) -> torch.Tensor:
    out = arena.shaped("out", (spec.total_q, spec.num_heads, spec.head_dim_v))
    out.view(torch.int16).fill_(pattern)
    return out


def _per_head(arena: Arena, scenario: Scenario) -> Mapping[str, torch.Tensor]:
    given = {"sinks": scenario.attention.sinks, "alibi_slopes": scenario.attention.alibi_slopes}
    return {
        name: _copied(arena, name, torch.tensor(values, dtype=torch.float32))
        for name, values in given.items()
        if values is not None
    }


def _appended(arena: Arena, inputs: LogicalInputs, layout: BatchLayout) -> Mapping[str, torch.Tensor]:
    if not layout.append:
        return {}
    k_new, v_new = new_tokens(inputs, layout)
    return {"k_new": _copied(arena, "k_new", k_new), "v_new": _copied(arena, "v_new", v_new)}
