"""The `torch` backend: all three paths with torch alone, on any device. The embedded default, and a worked example.

It is written to be right and readable, not fast: online softmax over chunks of keys, products and sums in fp32, memory
bounded whatever the lengths. What a new backend must do is all here: append in place, follow only the table entries
that are needed, give rows that see no key exactly 0 and an LSE of −inf.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace

import numpy as np
import torch

from pagedbench.backends.base import Availability, Backend, Output, Traits
from pagedbench.backends.indices import host_arrays
from pagedbench.backends.torch_schedule import KeyStep, Schedule, StepSize, TileGroup, new_token_places, schedule
from pagedbench.tensors.call import Call, CallSpec
from pagedbench.words import AttnPath

# The most fp32 elements that one step holds (scores, gathered K and V): 16 MiB stay in a CPU's cache, a GPU wants more.
STEP_ELEMENTS = {"cpu": 1 << 22, "cuda": 1 << 26}

# Reads the K and V of some tiles, sequence (n,) and keys (n, c): K (n * num_kv_heads, c, head_dim) fp32, V likewise.
ReadKeys = Callable[[torch.Tensor, KeyStep], tuple[torch.Tensor, torch.Tensor]]


class TorchBackend(Backend):
    """Chunked attention in fp32 with torch operations."""

    name = "torch"
    library = "torch"
    about = "torch operations, chunked, accumulated in fp32; any device"
    # The tiles are made on the host from the lengths: a captured call is bound to them.
    traits = Traits(out=True, p_dtype="float32", ignores_splits=True, graph_lengths=False)

    def available(self, device: str) -> Availability:
        """Wherever torch has the device."""
        if device.startswith("cuda") and not torch.cuda.is_available():
            return Availability(False, torch.__version__, "torch sees no CUDA device")
        return Availability(True, torch.__version__)

    def unsupported(self, spec: CallSpec) -> str | None:
        """Only what the path itself excludes: decode is for equal query lengths."""
        if spec.path is AttnPath.DECODE and spec.query_len is None and spec.batch:
            return "decode cannot take prefill: query lengths differ"
        return None

    def plan(self, call: Call) -> Schedule:
        """Cut the batch into tiles, and find the places of the new tokens in the table, on the host."""
        host, device = host_arrays(call), call.q.device
        queries, keys = host.cu_seqlens_q.numpy().astype(np.int64), host.cu_seqlens_k.numpy().astype(np.int64)
        room = StepSize.of(call.spec, STEP_ELEMENTS.get(device.type, STEP_ELEMENTS["cpu"]))
        spec, gathered = call.spec, call.spec.path is AttnPath.VARLEN
        block_size = None if gathered else spec.block_size
        made = schedule(queries, np.diff(keys), spec.causal, spec.window_size, device, room, block_size)
        if call.k_new is None or gathered:
            return made
        cached = host.cache_seqlens.numpy().astype(np.int64)
        return replace(made, new_tokens=new_token_places(queries, cached, spec.block_size, device))

    def plan_key(self, call: Call) -> Hashable | None:
        """The lengths, and what else says which keys a row sees and where they are: the same for both paged paths. A
        subclass may plan by more."""
        if type(self).plan is not TorchBackend.plan:
            return None
        host, spec = host_arrays(call), call.spec
        lengths = (host.cu_seqlens_q, host.cu_seqlens_k, host.cache_seqlens)
        gathered = spec.path is AttnPath.VARLEN
        facts = (gathered, spec.causal, spec.window_size, spec.block_size, call.k_new is None, call.q.device)
        return (*(array.numpy().tobytes() for array in lengths), *facts)

    def varlen(self, call: Call, plan: Schedule) -> Output:
        """Attention over `call.k`, `call.v`."""
        k, v = call.k, call.v
        if k is None or v is None:
            raise ValueError("the varlen path needs the gathered keys and values (call.k, call.v)")

        def read(sequence: torch.Tensor, keys: KeyStep) -> tuple[torch.Tensor, torch.Tensor]:
            return _keys_of_heads(k, keys.place), _keys_of_heads(v, keys.place)

        return attend(call, plan, read)

    def decode(self, call: Call, plan: Schedule) -> Output:
        """Append, then attention through the block table."""
        append(call, plan)
        return attend(call, plan, paged_reader(call))

    def paged_varlen(self, call: Call, plan: Schedule) -> Output:
        """Append, then attention through the block table; ragged queries are no different here."""
        return self.decode(call, plan)


def append(call: Call, plan: Schedule) -> None:
    """Write the new tokens' K and V into their slots, found through the block table; nothing else is touched."""
    if call.k_new is None or call.v_new is None or plan.new_tokens is None:
        return
    sequence, column, offset = plan.new_tokens
    place = (call.block_table[sequence, column], offset)
    _indexable(call.k_cache)[place] = _indexable(call.k_new)
    _indexable(call.v_cache)[place] = _indexable(call.v_new)


def paged_reader(call: Call) -> ReadKeys:
    """Reads keys through the block table, whatever strides the pool has."""

    def read(sequence: torch.Tensor, keys: KeyStep) -> tuple[torch.Tensor, torch.Tensor]:
        column, offset = keys.place
        place = (call.block_table[sequence[:, None], column], offset)
        return _keys_of_heads(call.k_cache, place), _keys_of_heads(call.v_cache, place)

    return read


def _indexable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself; fp8 as bytes, since torch cannot index fp8 on every device."""
    return tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor


def _take(tensor: torch.Tensor, place: tuple[torch.Tensor, ...]) -> torch.Tensor:
    taken = _indexable(tensor)[place]
    return taken if taken.dtype is tensor.dtype else taken.view(tensor.dtype)


def _keys_of_heads(tensor: torch.Tensor, place: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """The keys at `(n, c)` places as `(n * num_kv_heads, c, d)` fp32, dense, as a product of matrices wants them."""
    by_head = _take(tensor, place).transpose(1, 2)
    return by_head.to(torch.float32, memory_format=torch.contiguous_format).flatten(0, 1)


def attend(call: Call, plan: Schedule, read: ReadKeys) -> Output:
    """Attention of all tiles. Rows in no tile see no key: they are 0, and their LSE is −inf or the sink."""
    spec = call.spec
    shape = (spec.total_q, spec.num_heads, spec.head_dim_v)
    out = call.out if call.out is not None else call.q.new_empty(shape, dtype=getattr(torch, spec.out_dtype))
    lse = torch.empty(shape[:2], device=call.q.device)
    if plan.blind:
        out.zero_()
        lse.fill_(-torch.inf) if call.sinks is None else lse.copy_(call.sinks.expand_as(lse))
    for group in plan.groups:
        _attend_tiles(call, group, read, out, lse)
    return Output(out, lse)


@dataclass(frozen=True)
class _Partial:
    """Attention over some keys: the output `(m, q, d)` and the LSE `(m, q)`, −inf where a row sees none."""

    out: torch.Tensor
    lse: torch.Tensor

    def joined(self, other: _Partial) -> _Partial:
        """Over the keys of both. A side without any visible key weighs nothing."""
        lse = torch.logaddexp(self.lse, other.lse)
        # The shift is made finite: exp(-inf - finite) is 0, where -inf - -inf is NaN.
        shift = lse.clamp(min=torch.finfo(lse.dtype).min)
        mine, theirs = torch.exp(self.lse - shift), torch.exp(other.lse - shift)
        return _Partial(self.out * mine[..., None] + other.out * theirs[..., None], lse)


def _attend_tiles(call: Call, tiles: TileGroup, read: ReadKeys, out: torch.Tensor, lse: torch.Tensor) -> None:
    """Online softmax over the keys of some tiles, `tiles.step` keys at a time, into `out` and `lse`.

    In shapes: n tile, h KV head, g query head of its group, r row, c key, d head dim; m = n * h are the matrices of a
    batched product, q = g * r their rows.
    """
    spec, (n, r) = call.spec, tiles.rows.shape
    shape = (n, spec.num_kv_heads, spec.group_size, r)
    q = (call.q if tiles.whole else _take(call.q, (tiles.rows,))).float()
    q = q.view(n, r, *shape[1:3], spec.head_dim).permute(0, 2, 3, 1, 4)
    q = q.reshape(n * spec.num_kv_heads, spec.group_size * r, spec.head_dim)
    so_far: _Partial | None = None
    for begin in range(0, tiles.span, tiles.step):
        keys = tiles.keys(range(begin, min(begin + tiles.step, tiles.span)))
        part = _attend_keys(call, tiles, read, q, keys)
        so_far = part if so_far is None else so_far.joined(part)
    if so_far is None:
        return
    row_out = (
        so_far.out.view(*shape, spec.head_dim_v).permute(0, 3, 1, 2, 4).reshape(n * r, spec.num_heads, spec.head_dim_v)
    )
    row_lse = so_far.lse.view(shape).permute(0, 3, 1, 2).reshape(n * r, spec.num_heads)
    if call.v_scale != 1.0:
        row_out = row_out * call.v_scale
    _store(call, tiles, row_out, row_lse, out, lse)


def _attend_keys(call: Call, tiles: TileGroup, read: ReadKeys, q: torch.Tensor, keys: KeyStep) -> _Partial:
    """Attention of queries `(m, q, d)` over some keys of each tile."""
    k, v = read(tiles.sequence, keys)
    scores = _scores(call, tiles, q, k, keys)
    weights, peak = torch.softmax(scores, -1), scores.amax(-1)
    lse = peak - torch.log(weights.amax(-1))
    if keys.some_blind:  # 0 / 0, and -inf - NaN
        none = peak == -torch.inf
        weights.masked_fill_(none[..., None], 0.0)
        lse.masked_fill_(none, -torch.inf)
    return _Partial(torch.bmm(weights, v), lse)


def _scores(call: Call, tiles: TileGroup, q: torch.Tensor, k: torch.Tensor, keys: KeyStep) -> torch.Tensor:
    """Masked scores `(m, q, c)` of queries."""
    scale = call.spec.softmax_scale * call.k_scale
    nothing = q.new_empty(1, 1, 1)  # with beta 0 it is not read: product and scale are one kernel
    scores = torch.baddbmm(nothing, q, k.transpose(1, 2), beta=0.0, alpha=scale)
    if call.spec.softcap is not None:
        scores = call.spec.softcap * torch.tanh(scores / call.spec.softcap)
    n, r = tiles.rows.shape
    by_head = scores.view(n, call.spec.num_kv_heads, call.spec.group_size, r, k.shape[1])
    if call.alibi_slopes is not None:
        distance = (tiles.position[:, :, None] - keys.position[:, None, :]).abs()
        slopes = call.alibi_slopes.float().view(call.spec.num_kv_heads, call.spec.group_size)
        by_head -= slopes[:, :, None, None] * distance[:, None, None]
    if keys.hidden is not None:
        by_head.masked_fill_(keys.hidden[:, None, None], -torch.inf)
    return scores


def _store(
    call: Call, tiles: TileGroup, row_out: torch.Tensor, row_lse: torch.Tensor, out: torch.Tensor, lse: torch.Tensor
) -> None:
    """Join the sinks, and put the real rows, `(n * r, num_heads, d)`, where they belong."""
    if call.sinks is not None:
        # A sink is one more score that has no value: it only widens the denominator.
        with_sink = torch.logaddexp(row_lse, call.sinks.float())
        row_out = row_out * torch.exp(row_lse - with_sink)[..., None]
        row_lse = with_sink
    if tiles.whole:
        out.copy_(row_out)
        lse.copy_(row_lse)
        return
    rows = tiles.rows.flatten()
    if tiles.real is not None:
        rows, row_out, row_lse = rows[tiles.real], row_out[tiles.real], row_lse[tiles.real]
    out[rows] = row_out.to(out.dtype)
    lse[rows] = row_lse
