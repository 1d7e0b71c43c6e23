"""Computes an `AttentionProgram` on a call: the append into the pool, then attention as the program says.

Plain torch, on any device, vectorised within a sequence. It knows nothing of faults: every deviation is in the program.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from pagedbench.backends.base import Output
from pagedbench.faults.program import NO_SLOT, AttentionProgram, Strides, WritePlan, pools
from pagedbench.tensors.call import Call

NOISE_PERIOD = 5
# Beyond so many scores at once (2 GiB in fp64) a program is better tried on a smaller scenario.
MOST_SCORES = 1 << 28
# exp(2x) leaves fp16 above this x.
_FP16_EXP_LIMIT = math.log(65504.0) / 2


class IllegalAccessError(RuntimeError):
    """The program reads or writes where no memory is, as a GPU reports it."""


@dataclass(frozen=True)
class _Keys:
    """The keys of one sequence that are read: `position` `(n,)`, `weight` `(n,)`, K and V `(num_heads, n, dim)`."""

    position: torch.Tensor
    weight: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor


def scores_needed(call: Call) -> int:
    """Scores that `evaluate` holds at once, over all heads of the largest sequence: it does not cut queries in
    tiles."""
    queries = call.cu_seqlens_q.long().diff()
    largest = (queries * call.total_seqlens.long()).max() if len(queries) else torch.zeros(())
    return int(largest) * call.spec.num_heads


def evaluate(
    program: AttentionProgram, call: Call, *, compute: torch.dtype = torch.float32, call_index: int = 0
) -> Output:
    """Output `(total_q, num_heads, head_dim_v)` in the query's dtype (in `compute` if that is wider) and fp32 LSE.

    Accumulates in `compute`. Rows that the program does not write keep what is in `Call.out`, or in fresh memory.
    Raises IllegalAccessError where it reads or writes where there is no memory.
    """
    if program.crash is not None:
        raise IllegalAccessError(program.crash)
    writes = program.writes
    if writes is not None and not writes.after_reading:
        append(writes, call)
    out_dtype = torch.float64 if compute is torch.float64 else _output_dtype(call)
    rows, heads = call.q.shape[:2]
    result = torch.zeros(rows, heads, call.v_cache.shape[-1], dtype=compute, device=call.q.device)
    lse = torch.full((rows, heads), -math.inf, dtype=compute, device=call.q.device)
    for sequence in range(program.facts.batch):
        _attend(program, call, sequence, result, lse)
    if program.noise and call_index % NOISE_PERIOD == NOISE_PERIOD - 1:
        result = result * (1 + program.noise)
    if writes is not None and writes.after_reading:
        append(writes, call)
    return _write_output(program, call, result * program.out_factor, lse, out_dtype)


def append(writes: WritePlan, call: Call) -> None:
    """Write the new tokens' K and V as the plan says. Both pools, in place."""
    if call.k_new is None or call.v_new is None:
        return
    k_new, v_new = (call.v_new, call.k_new) if writes.swapped else (call.k_new, call.v_new)
    for pool, slots, new in ((call.k_cache, writes.k_slots, k_new), (call.v_cache, writes.v_slots, v_new)):
        kept = slots != NO_SLOT
        target, source = slots[kept].to(pool.device), writes.source[kept].to(pool.device)
        values = new[source].to(pool.dtype)
        _scatter(pool, target, values[..., : pool.shape[-1]])


def _scatter(pool: torch.Tensor, slots: torch.Tensor, values: torch.Tensor) -> None:
    blocks, size = pool.shape[:2]
    extra = -(-(int(slots.max()) + 1) // size) - blocks if len(slots) else 0
    view = _restride(pool, (pool.stride(0), pool.stride(1), pool.stride(2)), blocks + max(0, extra))
    view[slots // size, slots % size, :, : values.shape[-1]] = values


def _restride(pool: torch.Tensor, strides: Strides, blocks: int) -> torch.Tensor:
    """`pool` as a kernel sees it that believes in other strides or in more blocks; never outside its storage."""
    if strides == (pool.stride(0), pool.stride(1), pool.stride(2)) and blocks == pool.shape[0]:
        return pool
    shape = (blocks, *pool.shape[1:])
    full = (*strides, pool.stride(3))
    end = pool.storage_offset() + sum((n - 1) * s for n, s in zip(shape, full, strict=True))
    if end >= pool.untyped_storage().nbytes() // pool.element_size():
        raise IllegalAccessError("an illegal memory access was encountered: past the end of the cache")
    return pool.as_strided(shape, full, pool.storage_offset())


def _gather(pool: torch.Tensor, slots: torch.Tensor, strides: Strides) -> torch.Tensor:
    """`(n, num_kv_heads, dim)` of `slots` `(n,)`."""
    blocks, size = pool.shape[:2]
    if len(slots) and (int(slots.min()) < 0 or int(slots.max()) >= blocks * size):
        raise IllegalAccessError("an illegal memory access was encountered: a block id outside the pool")
    seen = int(slots.max()) // size + 1 if len(slots) else 0
    view = _restride(pool, strides, seen if strides != (pool.stride(0), pool.stride(1), pool.stride(2)) else blocks)
    at = slots.to(pool.device)
    return view[at // size, at % size]


def _attend(program: AttentionProgram, call: Call, sequence: int, result: torch.Tensor, lse: torch.Tensor) -> None:
    """One sequence's rows, into `result` and `lse`."""
    rows = (program.facts.row_sequence == sequence).nonzero()[:, 0]
    if not len(rows):
        return
    first, last = program.first[rows], program.last[rows]
    if program.masked[sequence].any():
        read = program.masked[sequence] | _used(program, sequence, first, last)
    else:
        read = _used(program, sequence, first, last)
    position = read.nonzero()[:, 0]
    keys = _read(program, call, sequence, position, result.dtype)
    scores = _scores(program, call, rows, keys)
    live = (position >= first[:, None]) & (position < last[:, None]) & (program.weight[sequence, position] > 0)
    device = result.device
    rows, live = rows.to(device), live.to(device)
    out, total = _softmax_v(program, keys, scores, live)
    result[rows] = out
    lse[rows] = total if program.lse.weight is None else _lse_of(program, keys, scores, live, sequence)


def _used(program: AttentionProgram, sequence: int, first: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """`(positions,)` bool: positions with weight that lie between the first and the last key of any row."""
    sees = last > first
    if not sees.any():
        return torch.zeros(program.weight.shape[1], dtype=torch.bool)
    position = program.position[0]
    between = (position >= first[sees].min()) & (position < last[sees].max())
    return between & (program.weight[sequence] > 0)


def _read(program: AttentionProgram, call: Call, sequence: int, position: torch.Tensor, compute: torch.dtype) -> _Keys:
    k_pool, v_pool = pools(call)
    k = _gather(k_pool, program.k_slots[sequence, position], program.k_strides)
    v = _gather(v_pool, program.v_slots[sequence, position], program.v_strides)
    device = call.q.device
    return _Keys(
        position,
        program.weight[sequence, position].to(device, compute),
        (k.to(compute) * call.k_scale)[:, program.k_heads.to(device)].transpose(0, 1),
        (v.to(compute) * call.v_scale)[:, program.v_heads.to(device)].transpose(0, 1),
    )


def _scores(program: AttentionProgram, call: Call, rows: torch.Tensor, keys: _Keys) -> torch.Tensor:
    """`(num_heads, rows, keys)`."""
    scoring = program.scoring
    q = call.q[rows.to(call.q.device)].to(keys.k.dtype).transpose(0, 1)
    dot = q[..., : scoring.channels] @ keys.k[..., : scoring.channels].transpose(1, 2)
    cap = scoring.softcap
    if cap is None:
        scores = dot * scoring.scale
    elif scoring.cap_before_scale:
        scores = cap * torch.tanh(dot / cap) * scoring.scale
    else:
        scores = cap * torch.tanh(dot * scoring.scale / cap)
    if cap is not None and scoring.exp_overflows:
        scores = scores.masked_fill(dot * scoring.scale / cap > _FP16_EXP_LIMIT, math.nan)
    return scores if program.alibi is None else scores + _alibi_bias(program, rows, keys, scores)


def _alibi_bias(program: AttentionProgram, rows: torch.Tensor, keys: _Keys, like: torch.Tensor) -> torch.Tensor:
    """`−slope * |distance|`, distances bottom-right aligned."""
    assert program.alibi is not None
    facts = program.facts
    sequence = facts.row_sequence[rows]
    own = facts.total[sequence] - facts.query_lens[sequence] + facts.row_index[rows]
    distance = (own[:, None] - keys.position).abs().to(like.device, like.dtype)
    return -program.alibi.to(like.device, like.dtype)[:, None, None] * distance


def _sink_terms(program: AttentionProgram, like: torch.Tensor) -> torch.Tensor:
    """`(num_heads, 1)` log of the sinks' mass, −inf where there is none."""
    if program.sinks is None or program.sink_count == 0:
        return torch.full((len(program.k_heads), 1), -math.inf, dtype=like.dtype, device=like.device)
    return (program.sinks + math.log(program.sink_count)).to(like.device, like.dtype)[:, None]


def _softmax_v(
    program: AttentionProgram, keys: _Keys, scores: torch.Tensor, live: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output `(rows, num_heads, head_dim_v)` and LSE `(rows, num_heads)`."""
    sink = _sink_terms(program, scores)
    masked = scores.masked_fill(~live, -math.inf)
    peak = torch.maximum(masked.amax(-1), sink) if masked.shape[-1] else sink.expand(-1, scores.shape[1])
    shift = peak.masked_fill(peak == -math.inf, 0.0)
    mass = torch.exp(masked - shift[..., None]) * keys.weight
    total = mass.sum(-1) + torch.exp(sink - shift)
    product = _product(program, mass, keys.v)
    out = product / total[..., None]
    if program.empty != "nan":
        out = out.masked_fill((total == 0)[..., None], 0.0)
    lse = shift + torch.log(total)
    if not program.lse.with_sink:
        lse = shift + torch.log(mass.sum(-1))
    return out.transpose(0, 1), lse.transpose(0, 1)


def _product(program: AttentionProgram, mass: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """P·V, or the sum of the partial products of as many key ranges, each rounded to bf16."""
    if program.partials <= 1 or not mass.shape[-1]:
        return mass @ v
    pieces = zip(mass.chunk(program.partials, -1), v.chunk(program.partials, 1), strict=True)
    total = torch.zeros_like(mass[..., :1] @ v[:, :1])
    for piece, values in pieces:
        total += (piece @ values).bfloat16().to(mass.dtype)
    return total


def _lse_of(
    program: AttentionProgram, keys: _Keys, scores: torch.Tensor, live: torch.Tensor, sequence: int
) -> torch.Tensor:
    """`(rows, num_heads)` log-sum-exp over the keys that the program's LSE rule counts."""
    assert program.lse.weight is not None
    weight = program.lse.weight[sequence, keys.position].to(scores.device, scores.dtype)
    terms = scores.masked_fill(~live, -math.inf) + torch.log(weight)
    with_sink = torch.cat([terms, _sink_terms(program, scores)[..., None].expand(-1, terms.shape[1], 1)], -1)
    return torch.logsumexp(with_sink, -1).transpose(0, 1)


def _output_dtype(call: Call) -> torch.dtype:
    return getattr(torch, call.spec.out_dtype)  # type: ignore[no-any-return]


def _write_output(
    program: AttentionProgram, call: Call, result: torch.Tensor, lse: torch.Tensor, dtype: torch.dtype
) -> Output:
    out = call.out if call.out is not None and call.out.dtype == dtype else torch.empty_like(result, dtype=dtype)
    blank = lse == -math.inf
    kept = program.out_row >= 0
    source, target = kept.nonzero()[:, 0].to(result.device), program.out_row[kept].to(result.device)
    rounded = result.to(dtype)
    if program.empty == "untouched":
        dead = blank[source][..., None]
        out[target] = torch.where(dead, out[target], rounded[source])
    else:
        out[target] = rounded[source]
    reported = lse.masked_fill(blank, program.lse.empty)
    if program.lse.base2:
        reported = reported / math.log(2.0)
    return Output(out, reported.float())
