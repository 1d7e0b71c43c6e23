"""Calls for the tests of the adapters, built by hand and slowly, with the answer computed row by row in fp64.

Independent of `layout/`, `tensors/` and `oracle/` on purpose: an adapter's test must not depend on their agreement.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field

import torch

from pagedbench.tensors.call import Call, CallSpec, HostArrays
from pagedbench.words import AttnPath


@dataclass
class Batch:
    """A batch in the words of the scenario language; see `make` for what becomes of it."""

    query_lens: tuple[int, ...]
    cached_lens: tuple[int, ...]
    append: bool = True
    block_size: int = 4
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 8
    head_dim_v: int | None = None
    dtype: torch.dtype = torch.float32
    causal: bool = True
    window_size: tuple[int, int] = (-1, -1)
    softcap: float | None = None
    sinks: tuple[float, ...] | None = None
    alibi: tuple[float, ...] | None = None
    num_splits: int = 0
    padding: int = -1
    poison: float = math.nan
    order: str = "NHD"
    index_dtypes: dict[str, str] = field(default_factory=dict)

    @property
    def dim_v(self) -> int:
        return self.head_dim_v or self.head_dim

    @property
    def totals(self) -> list[int]:
        return [c + (q if self.append else 0) for q, c in zip(self.query_lens, self.cached_lens, strict=True)]


@dataclass
class Made:
    """A call and what must come of it: output and LSE in fp64, and the pools after the step."""

    call: Call
    out: torch.Tensor
    lse: torch.Tensor
    k_after: torch.Tensor
    v_after: torch.Tensor


def make(batch: Batch, path: AttnPath | str, device: str = "cpu") -> Made:
    """A call on `path`; slots that hold no key are poisoned; blocks are handed out last block first."""
    gen = torch.Generator().manual_seed(0)

    def rand(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=gen).to(batch.dtype)

    bs, totals = batch.block_size, batch.totals
    q = rand(sum(batch.query_lens), batch.num_heads, batch.head_dim)
    keys = [rand(n, batch.num_kv_heads, batch.head_dim) for n in totals]
    values = [rand(n, batch.num_kv_heads, batch.dim_v) for n in totals]
    blocks = [-(-n // bs) for n in totals]
    num_blocks, width = sum(blocks) + 2, max(blocks, default=0) + 1
    ids = iter(range(num_blocks - 1, 0, -1))
    table = [[next(ids) for _ in range(n)] + [batch.padding] * (width - n) for n in blocks]
    k_cache, v_cache = (
        torch.full((num_blocks, bs, batch.num_kv_heads, d), batch.poison, dtype=batch.dtype)
        for d in (batch.head_dim, batch.dim_v)
    )
    k_after, v_after = k_cache.clone(), v_cache.clone()
    read_slots, write_slots = [], []
    for row, cached, n, k, v in zip(table, batch.cached_lens, totals, keys, values, strict=True):
        for i in range(n):
            block, offset = row[i // bs], i % bs
            read_slots.append(block * bs + offset)
            k_after[block, offset], v_after[block, offset] = k[i], v[i]
            if i < cached:
                k_cache[block, offset], v_cache[block, offset] = k[i], v[i]
            else:
                write_slots.append(block * bs + offset)
    new_k = [k[c:] for k, c in zip(keys, batch.cached_lens, strict=True)]
    new_v = [v[c:] for v, c in zip(values, batch.cached_lens, strict=True)]
    spec = make_spec(batch, path, num_blocks=num_blocks, width=width, device=device)
    out, lse = naive(batch, spec.softmax_scale, q, keys, values)

    def ints(values: list[int] | list[list[int]], dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    def joined(parts: list[torch.Tensor], dim: int) -> torch.Tensor:
        return torch.cat([rand(0, batch.num_kv_heads, dim), *parts]).to(device)

    cu_q = [0, *itertools.accumulate(batch.query_lens)]
    cu_k = [0, *itertools.accumulate(totals)]
    arrays = {
        "cu_seqlens_q": ints(cu_q),
        "cu_seqlens_k": ints(cu_k),
        "cache_seqlens": ints(list(batch.cached_lens)),
        "total_seqlens": ints(totals),
        "block_table": ints(table).reshape(len(table), width),
    }
    host = HostArrays(**{name: array.cpu() for name, array in arrays.items()})
    varlen = spec.path is AttnPath.VARLEN
    call = Call(
        spec=spec,
        q=q.to(device),
        k_cache=_ordered(k_cache.to(device), batch.order),
        v_cache=_ordered(v_cache.to(device), batch.order),
        **arrays,
        write_slots=ints(write_slots, torch.int64),
        read_slots=ints(read_slots, torch.int64),
        max_seqlen_q=spec.max_seqlen_q,
        max_seqlen_k=spec.max_seqlen_k,
        k_new=joined(new_k, batch.head_dim) if batch.append else None,
        v_new=joined(new_v, batch.dim_v) if batch.append else None,
        k=joined(keys, batch.head_dim) if varlen else None,
        v=joined(values, batch.dim_v) if varlen else None,
        sinks=None if batch.sinks is None else torch.tensor(batch.sinks, device=device),
        alibi_slopes=None if batch.alibi is None else torch.tensor(batch.alibi, device=device),
        host=host,
    )
    return Made(call, out.to(device), lse.to(device), k_after.to(device), v_after.to(device))


def make_spec(
    batch: Batch, path: AttnPath | str, *, num_blocks: int = 8, width: int = 4, device: str = "cpu"
) -> CallSpec:
    lens, totals = batch.query_lens, batch.totals
    name = str(batch.dtype).removeprefix("torch.")
    return CallSpec(
        path=AttnPath(path),
        device=device,
        batch=len(lens),
        query_len=lens[0] if len(set(lens)) == 1 else None,
        max_seqlen_q=max(lens, default=0),
        max_seqlen_k=max(totals, default=0),
        total_q=sum(lens),
        has_empty_query=0 in lens,
        has_empty_keys=0 in totals,
        has_blind_rows=any(n == 0 or (batch.causal and q > n) for q, n in zip(lens, totals, strict=True)),
        append=batch.append,
        block_size=batch.block_size,
        num_blocks=num_blocks,
        max_blocks_per_seq=width,
        num_heads=batch.num_heads,
        num_kv_heads=batch.num_kv_heads,
        head_dim=batch.head_dim,
        head_dim_v=batch.dim_v,
        q_dtype=name,
        kv_dtype=name,
        out_dtype=name,
        kv_order=batch.order,
        causal=batch.causal,
        window_size=batch.window_size,
        softcap=batch.softcap,
        sinks=batch.sinks is not None,
        alibi=batch.alibi is not None,
        softmax_scale=batch.head_dim**-0.5,
        num_splits=batch.num_splits,
        index_dtypes=batch.index_dtypes,
    )


def _ordered(pool: torch.Tensor, order: str) -> torch.Tensor:
    """The NHD view of a pool whose memory has the given order."""
    return pool if order == "NHD" else pool.transpose(1, 2).contiguous().transpose(1, 2)


def naive(
    batch: Batch, scale: float, q: torch.Tensor, keys: list[torch.Tensor], values: list[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and LSE in fp64, by the definition: one row after another."""
    out = torch.zeros(q.shape[0], batch.num_heads, batch.dim_v, dtype=torch.float64)
    lse = torch.full((q.shape[0], batch.num_heads), -math.inf, dtype=torch.float64)
    token = 0
    for query_len, k, v in zip(batch.query_lens, keys, values, strict=True):
        for i in range(query_len):
            for head in range(batch.num_heads):
                row = _row(batch, scale, q[token, head], k, v, len(k) - query_len + i, head)
                out[token, head], lse[token, head] = row
            token += 1
    return out, lse


def _row(
    batch: Batch, scale: float, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, position: int, head: int
) -> tuple[torch.Tensor, float]:
    left, right = batch.window_size
    last = position if batch.causal else (len(k) - 1 if right < 0 else position + right)
    first = 0 if left < 0 else position - left
    seen = [j for j in range(len(k)) if first <= j <= last]
    kv_head = head // (batch.num_heads // batch.num_kv_heads)
    scores = k[seen, kv_head].double() @ q.double() * scale
    if batch.softcap is not None:
        scores = batch.softcap * torch.tanh(scores / batch.softcap)
    if batch.alibi is not None:
        scores -= batch.alibi[head] * (position - torch.tensor(seen)).abs()
    weights = scores.exp()
    denominator = float(weights.sum()) + (0 if batch.sinks is None else math.exp(batch.sinks[head]))
    out = weights @ v[seen, kv_head].double() / (denominator or 1)
    return out, math.log(denominator) if denominator else -math.inf
