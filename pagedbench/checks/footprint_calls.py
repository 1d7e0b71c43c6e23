"""Coded calls of the footprint: numbers into a backend, sums or counts out of it.

`Coding` says how large codes are and where scores stand; `CodedCall` is one call with V codes in every slot of the
pool, those that must not be read included, and K zero, or far below where a key is left out.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from pagedbench.backends.base import Output
from pagedbench.checks.base import CheckContext
from pagedbench.layout.batch import BatchLayout
from pagedbench.layout.regions import Region
from pagedbench.scenario.model import LARGEST, Scenario
from pagedbench.tensors.bits import torch_dtype
from pagedbench.tensors.fill import UNREAD, Fill, FillValue, slot_map
from pagedbench.tensors.inputs import LogicalInputs
from pagedbench.tensors.pool import Pool, put_slots
from pagedbench.tensors.prepare import filled_pool

# exp(-2048) is 0 in fp32, and q·k, 2048 / scale, still fits fp16 for backends that round scores to it.
EXCLUDING_SCORE = 2048.0
LARGEST_CODE = 14
# Every other slot is given codes of its own; NaN costs nothing until then.
_CODED: dict[Region, FillValue] = {**dict.fromkeys(UNREAD, math.nan), Region.HIDDEN: "keys"}
_SLOTS_AT_ONCE = 1 << 16
_FP16_LEAST = 2.0**-23


@dataclass(frozen=True)
class Coding:
    """How codes become numbers.

    `amplitude` scales V; `q`, `k` are the values of every channel; included keys have score `peak`, the others weigh
    nothing; `sink` is the logit given to every head, None without sinks.
    """

    amplitude: float
    q: float
    k: float
    peak: float
    sink: float | None

    @property
    def top(self) -> float:
        """Every channel of K where a key counts: 0, but for a softcap, whose ends are ±cap."""
        return self.k if self.peak else 0.0

    def mass(self, keys: torch.Tensor) -> torch.Tensor:
        """The softmax denominator, relative to a key's weight, of rows that see so many included keys."""
        return keys if self.sink is None else keys + math.exp(self.sink - self.peak)


def coding_for(scenario: Scenario, keys: int, *, k_side: bool) -> Coding:
    """Codes for rows of about `keys` keys; on the V side every score is 0."""
    spec = scenario.attention
    largest = 32.0 if torch_dtype(spec.kv_dtype).itemsize == 1 else 2048.0
    amplitude = min(largest, max(1.0, 2.0 ** math.ceil(math.log2(max(keys, 1) / 16))))
    exponent = math.ceil(math.log2(EXCLUDING_SCORE / (spec.head_dim * spec.softmax_scale * spec.k_scale)))
    q, k = 2.0 ** (exponent - exponent // 2), 2.0 ** (exponent // 2)
    peak = 0.0
    if k_side and spec.softcap is not None:
        score = spec.head_dim * spec.softmax_scale * spec.k_scale * q * k
        peak = spec.softcap * math.tanh(score / spec.softcap)
    return Coding(amplitude, q, k, peak, None if spec.sinks is None else _coded_sink(peak + math.log(max(keys, 1))))


def _coded_sink(logit: float) -> float:
    """The nearest number that bf16 has, and so fp16 and fp32 too: some libraries take sinks in a dtype as short as
    that, and the sums and the LSE must know the very number that counted."""
    return float(torch.tensor(logit, dtype=torch.float64).to(torch.bfloat16))


def codes_do_not_fit(scenario: Scenario, keys: int) -> str | None:
    """Why float16 cannot hold the sums of codes, times an extreme scale of V, or None."""
    spec = scenario.attention
    unit = coding_for(scenario, keys, k_side=False).amplitude * abs(spec.v_scale)
    if spec.dtype != "float16" or (unit / max(keys, 1) > _FP16_LEAST and unit * LARGEST_CODE < LARGEST[spec.dtype]):
        return None
    return f"v_scale {spec.v_scale:g} takes the codes out of what float16 holds"


def k_side_impossible(scenario: Scenario, keys: int) -> str | None:
    """Why a key cannot be left out by its score, or None."""
    spec = scenario.attention
    if spec.softmax_scale <= 0:
        return "the softmax scale is not positive, so no key can be given a score far below the others"
    if spec.softcap is not None and keys * LARGEST_CODE * math.exp(-2 * spec.softcap) > 0.1:
        return f"the softcap of {spec.softcap:g} leaves every key a weight, so K cannot be told apart"
    return None


SlotCodes = Callable[[torch.Tensor], torch.Tensor]
"""Codes of slots: `(n,)` slots to `(n, heads, channels)` int8, or to `(n, heads)` bool."""


@dataclass(frozen=True)
class CodedCall:
    """How many query tokens ask; V codes of the logical keys `(total_k, heads, channels)`, which of them count
    `(total_k, heads)`, and the same for slots that hold no key yet and must not be read. None where all count."""

    queries: int
    codes: torch.Tensor
    included: torch.Tensor | None
    unread_codes: SlotCodes
    unread_included: SlotCodes | None

    def of_heads(self, heads: slice) -> CodedCall:
        """The call with some of the KV heads."""
        codes, included = self.unread_codes, self.unread_included
        return CodedCall(
            self.queries,
            self.codes[:, heads],
            None if self.included is None else self.included[:, heads],
            lambda at: codes(at)[:, heads],
            None if included is None else lambda at: included(at)[:, heads],
        )


@dataclass(frozen=True)
class CodedNumbers:
    """The codes as numbers. Where they are few, `unread` holds K (None where `fill` says it) and V of the slots without
    a key, in the order of the slot map; and `image` the memory of such a call with them in place."""

    inputs: LogicalInputs
    fill: Fill
    unread: tuple[torch.Tensor | None, torch.Tensor] | None = None
    image: torch.Tensor | None = None

    def of_heads(self, heads: slice) -> CodedNumbers:
        """Those of some of the KV heads; no image."""
        inputs, unread = self.inputs, self.unread
        if unread is not None:
            k, v = unread
            unread = (None if k is None else k[:, heads], v[:, heads])
        return CodedNumbers(LogicalInputs(inputs.q, inputs.k[:, heads], inputs.v[:, heads]), self.fill, unread)


def coded_numbers(scenario: Scenario, call: CodedCall, coding: Coding) -> CodedNumbers:
    """Queries, keys and values of a coded call, and what fills the slots that hold no key; no image yet."""
    spec, device = scenario.attention, call.codes.device
    kv = torch_dtype(spec.kv_dtype)
    shape = (call.queries, spec.num_heads, spec.head_dim)
    q = torch.full(shape, coding.q, dtype=torch_dtype(spec.q_dtype), device=device)
    rows = (*call.codes.shape[:2], spec.head_dim)
    inputs = LogicalInputs(q, _keys(call.included, coding, rows, kv, device), _values(call.codes, coding, kv))
    all_count = {**_CODED, **dict.fromkeys(UNREAD, coding.top)}
    return CodedNumbers(inputs, Fill.regions(_CODED if call.unread_included else all_count, _CODED))


def with_unread(numbers: CodedNumbers, call: CodedCall, coding: Coding, slots: torch.Tensor) -> CodedNumbers:
    """The same with those of the slots that hold no key."""
    return dataclasses.replace(numbers, unread=_unread(call, coding, slots, numbers.inputs))


def with_image(numbers: CodedNumbers, scenario: Scenario, layout: BatchLayout) -> CodedNumbers:
    """The same, its `unread` known, with an image for every call on any path to copy."""
    device = numbers.inputs.q.device
    pool = filled_pool(scenario, layout, numbers.inputs, numbers.fill, device)
    if numbers.unread is not None:
        _put_unread(pool, slot_map(layout, device).slots(*UNREAD), *numbers.unread)
    return dataclasses.replace(numbers, image=pool.arena.memory)


def run_coded(context: CheckContext, call: CodedCall, coding: Coding, numbers: CodedNumbers | None = None) -> Output:
    """Run the backend on the codes, whose `numbers` may be at hand. ALiBi slopes are 0, so that weights are equal."""
    ready = numbers or coded_numbers(context.scenario, call, coding)
    prepared = context.prepare(inputs=ready.inputs, fill=ready.fill, image=ready.image)
    if ready.image is None:
        slots = slot_map(context.layout, context.device).slots(*UNREAD)
        for at in torch.split(slots, _SLOTS_AT_ONCE):
            _put_unread(prepared.pool, at, *_unread(call, coding, at, ready.inputs))
    if prepared.call.sinks is not None and coding.sink is not None:
        prepared.call.sinks.fill_(coding.sink)
    if prepared.call.alibi_slopes is not None:
        prepared.call.alibi_slopes.zero_()
    return context.execute(prepared).output


def _unread(
    call: CodedCall, coding: Coding, slots: torch.Tensor, inputs: LogicalInputs
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """K (None where all count) and V of slots that hold no key: codes of their own."""
    v, k = _values(call.unread_codes(slots), coding, inputs.v.dtype), None
    if call.unread_included is not None:
        shape = (len(slots), *inputs.k.shape[1:])
        k = _keys(call.unread_included(slots), coding, shape, inputs.k.dtype, slots.device)
    return k, v


def _put_unread(pool: Pool, slots: torch.Tensor, k: torch.Tensor | None, v: torch.Tensor) -> None:
    put_slots(pool.v, slots, v)
    if k is not None:
        put_slots(pool.k, slots, k)


def _keys(
    included: torch.Tensor | None,
    coding: Coding,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    """K for each (key, KV head): `coding.top` for those that count, −k for the others."""
    if included is None:
        return torch.full(shape, coding.top, dtype=dtype, device=device)
    row = torch.where(included, coding.top, -coding.k).to(dtype)
    return row[..., None].expand(shape).contiguous()


def _values(codes: torch.Tensor, coding: Coding, dtype: torch.dtype) -> torch.Tensor:
    return codes.to(torch.float32 if dtype.itemsize == 1 else dtype).mul_(coding.amplitude).to(dtype)
