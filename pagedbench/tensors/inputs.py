"""The numbers of a scenario before paging: random queries, keys and values in logical order.

Small inputs are drawn on the CPU and copied, so that a CPU and a GPU see the same numbers; beyond
`DRAW_ON_DEVICE` elements they are drawn where they are used (reproducible there, but not across kinds of device).
Nothing here knows where a token lives, except that keys which share a slot have one value.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import torch

from pagedbench.layout.batch import BatchLayout, IntArray
from pagedbench.scenario.model import Distribution, Scenario
from pagedbench.tensors.bits import bits, torch_dtype
from pagedbench.tensors.identity import kept
from pagedbench.tensors.transfer import to_device

DRAW_ON_DEVICE = 1 << 23
_CHUNK = 1 << 26
_STREAMS = {"q": 1, "k": 2, "v": 3, "k decoy": 4, "v decoy": 5}


@dataclass(frozen=True)
class LogicalInputs:
    """Queries `(total_q, num_heads, head_dim)`, keys and values `(total_k, num_kv_heads, head_dim[_v])`.

    Keys and values are sequence after sequence, each [cached..., new...], in the scenario's dtypes. Quantised (fp8)
    ones hold value / scale.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor


def random_inputs(scenario: Scenario, layout: BatchLayout, device: torch.device | str) -> LogicalInputs:
    """The scenario's inputs; they depend on its seed, distributions, shapes and dtypes alone."""
    spec, how = scenario.attention, scenario.inputs
    kv_dtype = torch_dtype(spec.kv_dtype)
    q = random_queries(scenario, layout, device)
    k_shape = (layout.total_k, spec.num_kv_heads, spec.head_dim)
    k = draw("k", how.k, k_shape, kv_dtype, how.seed, device, spec.k_scale)
    v_shape = (layout.total_k, spec.num_kv_heads, spec.head_dim_v)
    v = draw("v", how.v, v_shape, kv_dtype, how.seed, device, spec.v_scale)
    return unify_shared(LogicalInputs(q, k, v), layout)


def random_queries(
    scenario: Scenario, layout: BatchLayout, device: torch.device | str, seed: int | None = None
) -> torch.Tensor:
    """The scenario's queries alone, for another seed than its own if given."""
    spec, how = scenario.attention, scenario.inputs
    shape = (layout.total_q, spec.num_heads, spec.head_dim)
    q = draw("q", how.q, shape, torch_dtype(spec.q_dtype), how.seed if seed is None else seed, device)
    if how.identical_rows and layout.total_q > 1:
        bits(q)[1:] = bits(q)[:1].clone()
    return q


def draw(
    stream: str,
    how: Distribution,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    seed: int,
    device: torch.device | str,
    scale: float = 1.0,
) -> torch.Tensor:
    """Random values `(offset + how.scale * sample) / scale` of one named stream; streams do not disturb each other.

    `scale` is the dequantisation scale, used for fp8 only. Samples are drawn in fp32 and rounded once: drawing in a
    narrower dtype takes twice as long on a CPU. Extra memory is a chunk, not a copy.
    """
    elements = int(np.prod(shape))
    where = torch.device(device) if elements > DRAW_ON_DEVICE else torch.device("cpu")
    generator = torch.Generator(where).manual_seed((seed * 1_000_003 + _STREAMS[stream]) % (1 << 63))
    values = torch.empty(elements, dtype=dtype, device=where)
    for part in torch.split(values, _CHUNK):
        drawn = part if dtype is torch.float32 else torch.empty_like(part, dtype=torch.float32)
        _sample(drawn, how, generator)
        if dtype.itemsize == 1:
            drawn.div_(scale)
        if drawn is not part:
            part.copy_(drawn)
    return values.view(shape).to(device)


def _sample(target: torch.Tensor, how: Distribution, generator: torch.Generator) -> None:
    if how.distribution == "constant":
        target.fill_(how.scale)
    elif how.distribution == "uniform":
        target.uniform_(-1.0, 1.0, generator=generator).mul_(how.scale)
    else:
        target.normal_(0.0, how.scale, generator=generator)
    if how.offset:
        target.add_(how.offset)


def unify_shared(inputs: LogicalInputs, layout: BatchLayout) -> LogicalInputs:
    """The inputs with one value for all keys that live in one slot (a shared prefix): that of the first."""
    first = _first_of_slot(layout)
    if first is None:
        return inputs
    index = to_device(first, inputs.k.device)
    k = bits(inputs.k).index_select(0, index).view(inputs.k.dtype)
    v = bits(inputs.v).index_select(0, index).view(inputs.v.dtype)
    return dataclasses.replace(inputs, k=k, v=v)


@kept(4)
def _first_of_slot(layout: BatchLayout) -> IntArray | None:
    """For each key the first key with the same slot, or None if no slot is shared; keys without a slot stay alone."""
    placed = np.flatnonzero(layout.read_slots >= 0)
    if not len(placed) or np.bincount(layout.read_slots[placed]).max() == 1:
        return None
    _, first, inverse = np.unique(layout.read_slots[placed], return_index=True, return_inverse=True)
    index = np.arange(layout.total_k, dtype=np.int64)
    index[placed] = placed[first[inverse.reshape(-1)]]
    return index


def new_token_keys(layout: BatchLayout) -> IntArray:
    """`(total_q,)` the index in `LogicalInputs.k` of each query token's own key; only where new tokens are appended."""
    ends = layout.cu_seqlens_k[1:].astype(np.int64) - layout.query_lens
    starts_q = layout.cu_seqlens_q[:-1].astype(np.int64)
    return np.repeat(ends - starts_q, layout.query_lens) + np.arange(layout.total_q, dtype=np.int64)


def new_tokens(inputs: LogicalInputs, layout: BatchLayout) -> tuple[torch.Tensor, torch.Tensor]:
    """`(total_q, num_kv_heads, head_dim[_v])` keys and values of the new tokens, in query order."""
    index = torch.from_numpy(new_token_keys(layout)).to(inputs.k.device)
    k = bits(inputs.k).index_select(0, index).view(inputs.k.dtype)
    v = bits(inputs.v).index_select(0, index).view(inputs.v.dtype)
    return k, v
