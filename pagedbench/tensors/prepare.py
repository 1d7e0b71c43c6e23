"""From a scenario and its numbers to a `Call` on fresh memory, ready for a backend.

Everything that a kernel is handed lies in one arena with guard bands, and can be made a second time, bit for bit, as it
must be after the call. How much memory that takes is in `memory.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pagedbench.layout.batch import BatchLayout
from pagedbench.layout.given import layout_as_given
from pagedbench.scenario.model import Attention, Scenario
from pagedbench.tensors.arena import GUARD_PATTERN, Arena
from pagedbench.tensors.bits import bits
from pagedbench.tensors.call import Call, CallSpec, HostArrays
from pagedbench.tensors.fill import Fill, fill_pool, slot_map
from pagedbench.tensors.identity import kept
from pagedbench.tensors.inputs import LogicalInputs
from pagedbench.tensors.memory import MemoryNeed, available_bytes, estimate_bytes
from pagedbench.tensors.placed import placed, pool_shape
from pagedbench.tensors.pool import Pool, put_slots
from pagedbench.tensors.transfer import all_to_device
from pagedbench.words import AttnPath

__all__ = [
    "Fill",
    "MemoryNeed",
    "Prepared",
    "available_bytes",
    "call_spec",
    "estimate_bytes",
    "filled_pool",
    "has_small_image",
    "image_of",
    "pool_shape",
    "prepare",
    "small_image_of",
]

MOST_IMAGE_BYTES = 32 << 20
SMALL_IMAGE_BYTES = 4 << 20


@dataclass(frozen=True)
class Prepared:
    """A call with the memory it works on, and what it was made from."""

    call: Call
    pool: Pool
    inputs: LogicalInputs
    layout: BatchLayout
    scenario: Scenario
    fill: Fill
    image: torch.Tensor | None = None

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
        after = prepare(self.scenario, self.layout, self.inputs, path, device, fill=self.fill, image=self.image)
        if start is not None:
            after.arena.memory.copy_(start)
        if after.call.k_new is not None and after.call.v_new is not None:
            written = self._written()
            live = np.flatnonzero(~self.layout.dead[self.layout.row_sequence()] & (written >= 0))
            tokens, slots = all_to_device([live, written[live]], device)
            for cache, new in ((after.pool.k, after.call.k_new), (after.pool.v, after.call.v_new)):
                put_slots(cache, slots, bits(new)[tokens].view(new.dtype))
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
    image: torch.Tensor | None = None,
) -> Prepared:
    """A fresh call. `fill` defaults to the scenario's poison; the scenario's `override` is obeyed.

    `image` is what `image_of` gave for the same scenario, inputs and fill, whose output memory may differ, and for this
    layout or one whose slots hold the same (`same_slots`).
    """
    chosen = fill or Fill.poison(scenario.inputs.poison)
    spec = call_spec(scenario, layout, path, device)
    batch = placed(scenario, layout, device)
    if image is None:
        pool = filled_pool(scenario, layout, inputs, chosen, device)
    else:
        pool = Pool(Arena(batch.plan, device, batch.memory_like(image)), batch.shape)
    arena = pool.arena
    write_slots, read_slots = batch.slots()
    call = Call(
        spec=spec,
        q=arena.shaped("q", inputs.q.shape),
        k_cache=pool.k,
        v_cache=pool.v,
        **{name: arena.shaped(name, array.shape) for name, array in batch.host.items()},
        write_slots=write_slots,
        read_slots=read_slots,
        written=batch.written,
        max_seqlen_q=spec.max_seqlen_q,
        max_seqlen_k=spec.max_seqlen_k,
        k_scale=scenario.attention.k_scale,
        v_scale=scenario.attention.v_scale,
        out=_output_memory(arena, spec, chosen.out),
        # Copies, as of the slots: what a kernel does to them must not reach the layout and the next call.
        host=HostArrays(**{name: array.clone() for name, array in batch.host.items()}),
        **{name: arena.flat(name) for name in batch.per_head},
        **_new_token_views(arena, layout, scenario.attention),
    )
    return Prepared(call, pool, inputs, layout, scenario, chosen, image)


def filled_pool(
    scenario: Scenario, layout: BatchLayout, inputs: LogicalInputs, fill: Fill, device: torch.device | str
) -> Pool:
    """A pool in memory with all that a call hands over in it; the output's holds the guard pattern."""
    batch = placed(scenario, layout, device)
    arena = Arena(batch.plan, device)
    pool = Pool(arena, batch.shape)
    fill_pool(pool, fill, inputs, layout, scenario.inputs)
    batch.put_tables(arena)
    arena.shaped("q", inputs.q.shape).copy_(inputs.q)
    keys = slot_map(layout, device).new_keys
    for name, view in _new_token_views(arena, layout, scenario.attention).items():
        torch.index_select(bits(inputs.k if name == "k_new" else inputs.v), 0, keys, out=bits(view))
    return pool


def image_of(
    scenario: Scenario, layout: BatchLayout, inputs: LogicalInputs, fill: Fill, device: torch.device | str
) -> torch.Tensor | None:
    """The memory of such a call, for `prepare` to copy: one kernel a call. None where a copy would take much room."""
    return _image_of(scenario, layout, inputs, fill, torch.device(device))


def small_image_of(
    scenario: Scenario, layout: BatchLayout, inputs: LogicalInputs, fill: Fill, device: torch.device | str
) -> torch.Tensor | None:
    """The same where it is kept for the next cell; None where it is not, for a call that a cell makes once."""
    where = torch.device(device)
    return _image_of(scenario, layout, inputs, fill, where) if has_small_image(scenario, layout, where) else None


def has_small_image(scenario: Scenario, layout: BatchLayout, device: torch.device | str) -> bool:
    """Whether the memory of a call takes so little room that a cell may leave it to the next."""
    return placed(scenario, layout, device).plan.total <= SMALL_IMAGE_BYTES


# New inputs, as after a kernel that was found wrong, have no image yet: what it may have written over is not used.
@kept(0, many=16, small=lambda scenario, layout, inputs, fill, device: has_small_image(scenario, layout, device))
def _image_of(
    scenario: Scenario, layout: BatchLayout, inputs: LogicalInputs, fill: Fill, device: torch.device
) -> torch.Tensor | None:
    if placed(scenario, layout, device).plan.total > MOST_IMAGE_BYTES:
        return None
    return filled_pool(scenario, layout, inputs, fill, device).arena.memory


def call_spec(scenario: Scenario, layout: BatchLayout, path: AttnPath, device: torch.device | str) -> CallSpec:
    """The facts about the call, overrides included. An empty batch counts as one of single query tokens."""
    return _call_spec(scenario, layout, path, torch.device(device))


@kept(8, many=64, small=lambda scenario, layout, *_: layout.is_small)
def _call_spec(scenario: Scenario, layout: BatchLayout, path: AttnPath, device: torch.device) -> CallSpec:
    spec = _any_spec(scenario, layout, device)
    return spec if spec.path is path else dataclasses.replace(spec, path=path)


@kept(8, many=16, small=lambda scenario, layout, device: layout.is_small)
def _any_spec(scenario: Scenario, layout: BatchLayout, device: torch.device) -> CallSpec:
    """The facts that are the same on every path, as those of one of them."""
    attention, cache = scenario.attention, scenario.cache.layout
    spec = CallSpec(
        path=AttnPath.VARLEN,
        device=device.type,
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
        sinks_fit_bf16=attention.sinks is None or _fit_bf16(attention.sinks),
        alibi=attention.alibi_slopes is not None,
        softmax_scale=attention.softmax_scale,
        num_splits=attention.num_splits,
        index_dtypes={n: d for n, d in attention.index_dtype.items() if d != "int32"},
    )
    if not scenario.override.values:
        return spec
    facts = {field.name for field in dataclasses.fields(CallSpec)}
    given: dict[str, Any] = {name: value for name, value in scenario.override.values.items() if name in facts}
    return dataclasses.replace(spec, **given)


def _fit_bf16(values: Sequence[float]) -> bool:
    """Whether bfloat16 holds every value as exactly as fp32 does."""
    exact = torch.tensor(values, dtype=torch.float32)
    return bool((exact.to(torch.bfloat16).float() == exact).all())


def _output_memory(arena: Arena, spec: CallSpec, pattern: int) -> torch.Tensor:
    out = arena.shaped("out", (spec.total_q, spec.num_heads, spec.head_dim_v))
    if pattern != GUARD_PATTERN:
        out.view(torch.int16).fill_(pattern)
    return out


def _new_token_views(arena: Arena, layout: BatchLayout, attention: Attention) -> dict[str, torch.Tensor]:
    if not layout.append:
        return {}
    shape = (layout.total_q, attention.num_kv_heads)
    return {
        "k_new": arena.shaped("k_new", (*shape, attention.head_dim)),
        "v_new": arena.shaped("v_new", (*shape, attention.head_dim_v)),
    }
