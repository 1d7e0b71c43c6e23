"""Computes an `AttentionProgram` on a call: the append into the pool, then attention as the program says.

Plain torch, on any device, vectorised within a sequence. It knows nothing of faults: every deviation is in the program.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from pagedbench.backends.base import Output
from pagedbench.faults.indices import Indices, Sequence, Slots, indices_of
from pagedbench.faults.program import AttentionProgram, Strides, WritePlan, pools
from pagedbench.tensors.call import Call

NOISE_PERIOD = 5
_KEYS_AT_ONCE = 1024
# Beyond so many scores at once (2 GiB in fp64) a program is better tried on a smaller scenario.
MOST_SCORES = 1 << 28
# exp(2x) leaves fp16 above this x.
_FP16_EXP_LIMIT = math.log(65504.0) / 2


class IllegalAccessError(RuntimeError):
    """The program reads or writes where no memory is, as a GPU reports it."""


@dataclass(frozen=True)
class _Keys:
    """The keys of one sequence that are read: `weight` `(n,)`, K and V `(num_heads, n, dim)`."""

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
    program: AttentionProgram,
    call: Call,
    *,
    compute: torch.dtype = torch.float32,
    call_index: int = 0,
    indices: Indices | None = None,
) -> Output:
    """Output `(total_q, num_heads, head_dim_v)` in the query's dtype (in `compute` if that is wider) and fp32 LSE.

    Accumulates in `compute`. Rows that the program does not write keep what is in `Call.out`, or in fresh memory.
    `indices` are those of the program, where they are at hand. Raises IllegalAccessError where it reads or writes where
    there is no memory.
    """
    if program.crash is not None:
        raise IllegalAccessError(program.crash)
    device = call.q.device
    found = indices or indices_of(program, device)
    writes = program.writes
    if writes is not None and not writes.after_reading:
        _append(writes, found, call)
    out_dtype = torch.float64 if compute is torch.float64 else _output_dtype(call)
    rows, heads = call.q.shape[:2]
    result = torch.zeros(rows, heads, call.v_cache.shape[-1], dtype=compute, device=device)
    lse = torch.full((rows, heads), -math.inf, dtype=compute, device=device)
    for sequence in found.sequences:
        _attend(program, found, call, sequence, result, lse)
    if program.noise and call_index % NOISE_PERIOD == NOISE_PERIOD - 1:
        result = result * (1 + program.noise)
    if writes is not None and writes.after_reading:
        _append(writes, found, call)
    return _write_output(program, found, call, result * program.out_factor, lse, out_dtype)


def _append(writes: WritePlan, indices: Indices, call: Call) -> None:
    """Write the new tokens' K and V as the plan says. Both pools, in place."""
    if call.k_new is None or call.v_new is None:
        return
    k_new, v_new = (call.v_new, call.k_new) if writes.swapped else (call.k_new, call.v_new)
    for pool, write, new in ((call.k_cache, indices.k_write, k_new), (call.v_cache, indices.v_write, v_new)):
        if write is not None:
            values = new[write.source].to(pool.dtype)
            _scatter(pool, write.slots, values[..., : pool.shape[-1]])


def _scatter(pool: torch.Tensor, slots: Slots, values: torch.Tensor) -> None:
    blocks, size = pool.shape[:2]
    extra = -(-(slots.most + 1) // size) - blocks
    view = _restride(pool, (pool.stride(0), pool.stride(1), pool.stride(2)), blocks + max(0, extra))
    view[slots.at // size, slots.at % size, :, : values.shape[-1]] = values


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


def _gather(pool: torch.Tensor, slots: Slots, strides: Strides) -> torch.Tensor:
    """`(n, num_kv_heads, dim)` of `slots`."""
    blocks, size = pool.shape[:2]
    if slots.least < 0 or slots.most >= blocks * size:
        raise IllegalAccessError("an illegal memory access was encountered: a block id outside the pool")
    seen = slots.most // size + 1
    view = _restride(pool, strides, seen if strides != (pool.stride(0), pool.stride(1), pool.stride(2)) else blocks)
    return view[slots.at // size, slots.at % size]


def _attend(
    program: AttentionProgram,
    indices: Indices,
    call: Call,
    sequence: Sequence,
    result: torch.Tensor,
    lse: torch.Tensor,
) -> None:
    """One sequence's rows, into `result` and `lse`."""
    keys = _read(program, indices, call, sequence, result.dtype)
    scores = _scores(program, call, sequence, keys)
    out, total = _softmax_v(program, keys, scores, sequence)
    result[sequence.rows] = out
    lse[sequence.rows] = total if sequence.lse_weight is None else _lse_of(program, scores, sequence)


def _read(program: AttentionProgram, indices: Indices, call: Call, sequence: Sequence, compute: torch.dtype) -> _Keys:
    k_pool, v_pool = pools(call)
    k = _gather(k_pool, sequence.k, program.k_strides)
    v = (
        _gather(k_pool, sequence.v, program.k_strides)
        if program.v_from_k
        else _gather(v_pool, sequence.v, program.v_strides)
    )
    if program.v_order is not None:
        v = v[..., program.v_order.to(v.device)]
    return _Keys(
        sequence.weight.to(compute),
        _for_heads(k, program.k_scale, indices.k_heads, compute),
        _for_heads(v, program.v_scale, indices.v_heads, compute),
    )


def _for_heads(values: torch.Tensor, scale: float, heads: torch.Tensor, compute: torch.dtype) -> torch.Tensor:
    """`(num_heads, n, dim)` of `(n, num_kv_heads, dim)`."""
    wide = values.transpose(0, 1).to(compute)
    return (wide if scale == 1 else wide * scale)[heads]


def _scores(program: AttentionProgram, call: Call, sequence: Sequence, keys: _Keys) -> torch.Tensor:
    """`(num_heads, rows, keys)`."""
    scoring = program.scoring
    q = call.q[sequence.rows].to(keys.k.dtype).transpose(0, 1)
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
    return scores if program.alibi is None else scores + _alibi_bias(program, sequence, scores)


def _alibi_bias(program: AttentionProgram, sequence: Sequence, like: torch.Tensor) -> torch.Tensor:
    """`−slope * |distance|`."""
    assert program.alibi is not None
    assert sequence.distance is not None
    return -program.alibi.to(like.device, like.dtype)[:, None, None] * sequence.distance.to(like.dtype)


def _sink_terms(program: AttentionProgram, like: torch.Tensor) -> torch.Tensor:
    """`(num_heads, 1)` log of the sinks' mass, −inf where there is none."""
    if program.sinks is None or program.sink_count == 0:
        return torch.full((len(program.k_heads), 1), -math.inf, dtype=like.dtype, device=like.device)
    return (program.sinks + math.log(program.sink_count)).to(like.device, like.dtype)[:, None]


def _softmax_v(
    program: AttentionProgram, keys: _Keys, scores: torch.Tensor, sequence: Sequence
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output `(rows, num_heads, head_dim_v)` and LSE `(rows, num_heads)`."""
    sink = _sink_terms(program, scores)
    left_out = program.scoring.masked
    masked = scores.masked_fill(~sequence.live, -math.inf if left_out is None else left_out)
    peak = torch.maximum(masked.amax(-1), sink) if masked.shape[-1] else sink.expand(-1, scores.shape[1])
    shift = peak.masked_fill(peak == -math.inf, 0.0)
    mass = torch.exp(masked - shift[..., None]) * keys.weight
    total = mass.sum(-1) + torch.exp(sink - shift)
    product = _product(program, mass, keys.v)
    out = product / total[..., None]
    if program.combine is not None and sequence.split is not None:
        out = _combined(masked, sequence.split, keys.v, program.combine.by_head_0) * (mass.sum(-1) / total)[..., None]
    if program.empty != "nan":
        out = out.masked_fill((total == 0)[..., None], 0.0)
    lse = shift + torch.log(total)
    if not program.lse.with_sink:
        lse = shift + torch.log(mass.sum(-1))
    if not program.lse.of_blind_rows:
        lse = torch.where(sequence.live.any(-1), lse, sink)
    return out.transpose(0, 1), lse.transpose(0, 1)


def _combined(scores: torch.Tensor, split: torch.Tensor, v: torch.Tensor, by_head_0: bool) -> torch.Tensor:
    """`(num_heads, rows, dim)`: the mean of each split's output, weighted by the splits' LSE in head 0 or not at all. A
    split of which a row sees nothing has the output 0 and counts in a plain mean."""
    outputs, lses = [], []
    for number in split.unique().tolist():  # type: ignore[no-untyped-call]
        own = split == number
        lse = torch.logsumexp(scores[..., own], -1)
        outputs.append(torch.exp(scores[..., own] - lse.masked_fill(lse == -math.inf, 0.0)[..., None]) @ v[:, own])
        lses.append(lse)
    if not outputs:
        return scores.new_zeros(*scores.shape[:2], v.shape[-1])
    of_splits = torch.stack(lses)
    wanted = of_splits[:, :1].expand_as(of_splits) if by_head_0 else torch.zeros_like(of_splits)
    weights = torch.softmax(wanted, 0).nan_to_num()
    return (weights[..., None] * torch.stack(outputs)).sum(0)


def _product(program: AttentionProgram, mass: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """P·V, or the sum of the partial products of as many key ranges, each rounded to bf16."""
    if program.partials <= 1 or not mass.shape[-1]:
        return _long_product(mass, v)
    pieces = zip(mass.chunk(program.partials, -1), v.chunk(program.partials, 1), strict=True)
    total = torch.zeros_like(mass[..., :1] @ v[:, :1])
    for piece, values in pieces:
        total += (piece @ values).bfloat16().to(mass.dtype)
    return total


def _long_product(mass: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """P·V; over many keys as a sum of shorter products, which a GPU does side by side."""
    pieces = mass.shape[-1] // _KEYS_AT_ONCE
    if pieces < 2:
        return mass @ v
    split = pieces * _KEYS_AT_ONCE
    heads, rows, dim = len(v), mass.shape[1], v.shape[2]
    left = mass[..., :split].reshape(heads, rows, pieces, _KEYS_AT_ONCE).transpose(1, 2)
    right = v[:, :split].reshape(heads, pieces, _KEYS_AT_ONCE, dim)
    summed = torch.matmul(left, right).sum(1)
    return summed + mass[..., split:] @ v[:, split:]


def _lse_of(program: AttentionProgram, scores: torch.Tensor, sequence: Sequence) -> torch.Tensor:
    """`(rows, num_heads)` log-sum-exp over the keys that the program's LSE rule counts."""
    assert sequence.lse_weight is not None
    weight = sequence.lse_weight.to(scores.dtype)
    terms = scores.masked_fill(~sequence.live, -math.inf) + torch.log(weight)
    with_sink = torch.cat([terms, _sink_terms(program, scores)[..., None].expand(-1, terms.shape[1], 1)], -1)
    return torch.logsumexp(with_sink, -1).transpose(0, 1)


def _output_dtype(call: Call) -> torch.dtype:
    return getattr(torch, call.spec.out_dtype)  # type: ignore[no-any-return]


def _write_output(
    program: AttentionProgram,
    indices: Indices,
    call: Call,
    result: torch.Tensor,
    lse: torch.Tensor,
    dtype: torch.dtype,
) -> Output:
    out = call.out if call.out is not None and call.out.dtype == dtype else torch.empty_like(result, dtype=dtype)
    blank = lse == -math.inf
    source, target = indices.out_source, indices.out_target
    rounded = result.to(dtype)
    if program.empty == "untouched":
        dead = blank[source][..., None]
        out[target] = torch.where(dead, out[target], rounded[source])
    else:
        out[target] = rounded[source]
    reported = lse.masked_fill(blank, program.lse.empty).float()
    if not program.lse.written:
        reported = torch.where(blank, torch.empty_like(reported), reported)
    if program.lse.base2:
        reported = reported / math.log(2.0)
    return Output(out, reported)
