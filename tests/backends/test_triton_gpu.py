"""The compiled kernels on a GPU, over the shapes that a small batch in the interpreter does not reach.

Every slot that holds no key of the batch is NaN, and so are those below a window: one read too many shows at once.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import pytest
import torch

pytestmark = pytest.mark.gpu


@dataclass(frozen=True)
class Case:
    queries: tuple[int, ...] = (1, 1, 1, 1)
    cached: tuple[int, ...] = (1500, 0, 333, 4095)
    block_size: int = 16
    num_heads: int = 8
    num_kv_heads: int = 2
    head_dim: int = 128
    head_dim_v: int = 128
    dtype: torch.dtype = torch.bfloat16
    causal: bool = True
    window: tuple[int, int] = (-1, -1)
    softcap: float | None = None
    sinks: bool = False
    append: bool = True
    form: str = "NHD"
    num_splits: int = 0


DECODE = Case()
PREFILL = Case(queries=(300, 1, 128, 77), cached=(0, 500, 1000, 3))
CASES = {
    **{f"block size {n}": replace(DECODE, block_size=n) for n in (1, 3, 16, 48, 192, 256)},
    **{f"group {g}": replace(DECODE, num_heads=2 * g) for g in (1, 4, 7, 8, 16)},
    **{f"{n} query tokens": replace(DECODE, queries=(n,) * 4) for n in (2, 3, 5, 8)},
    **{f"head dim {d}": replace(DECODE, head_dim=d, head_dim_v=d) for d in (64, 80, 96, 192, 256)},
    **{f"splits {n}": replace(DECODE, num_splits=n) for n in (1, 2, 7, 64)},
    **{f"form {form}": replace(DECODE, form=form) for form in ("HND", "interleaved-kv", "strided")},
    **{f"window {w}": replace(DECODE, window=(w - 1, 0), queries=(3,) * 4) for w in (1, 31, 64, 100)},
    "head dims 192 and 128": replace(DECODE, head_dim=192),
    "fp16": replace(DECODE, dtype=torch.float16),
    "fp32": replace(DECODE, dtype=torch.float32),
    "not causal": replace(DECODE, causal=False, queries=(4,) * 4),
    "softcap, sinks": replace(DECODE, softcap=5.0, sinks=True, queries=(2,) * 4),
    "nothing appended": replace(DECODE, append=False),
    "prefill": PREFILL,
    "prefill, nothing appended": replace(PREFILL, append=False),
    "prefill, group of 7, blocks of 3": replace(PREFILL, num_heads=14, block_size=3),
    "prefill, window": replace(PREFILL, window=(99, 0)),
    "prefill, softcap, sinks": replace(PREFILL, softcap=5.0, sinks=True),
    "prefill, head dim 192 and 128": replace(PREFILL, head_dim=192),
    "prefill, head dim 256": replace(PREFILL, head_dim=256, head_dim_v=256),
    "prefill, head dim 64": replace(PREFILL, head_dim=64, head_dim_v=64),
    "prefill, splits": replace(PREFILL, num_splits=3),
    "prefill, fp32": replace(PREFILL, dtype=torch.float32),
    "prefill, not causal": replace(PREFILL, causal=False),
}


def pools(case: Case, num_blocks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V pools full of NaN, as NHD views of the memory that the form asks for."""
    bs, heads, nan = case.block_size, case.num_kv_heads, math.nan

    def full(*shape: int) -> torch.Tensor:
        return torch.full(shape, nan, dtype=case.dtype, device="cuda")

    dims = (case.head_dim, case.head_dim_v)
    if case.form == "HND":
        k, v = (full(num_blocks, heads, bs, d).transpose(1, 2) for d in dims)
    elif case.form == "interleaved-kv":
        k, v = full(num_blocks, 2, bs, heads, case.head_dim).unbind(1)
    elif case.form == "strided":
        k = full(num_blocks, bs + 1, heads, case.head_dim)[:, :bs]
        v = full(num_blocks, bs, heads + 1, case.head_dim_v)[:, :, :heads]
    else:
        k, v = (full(num_blocks, bs, heads, d) for d in dims)
    return k, v


def attend_densely(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor | None):
    """Output and LSE in fp64 of one sequence, by the definition; and the first key that any row sees."""
    group = case.num_heads // case.num_kv_heads
    scores = torch.einsum("qhd,khd->hqk", q.double(), k.double().repeat_interleave(group, 1)) * case.head_dim**-0.5
    if case.softcap is not None:
        scores = case.softcap * torch.tanh(scores / case.softcap)
    key = torch.arange(k.shape[0], device="cuda")
    own = torch.arange(q.shape[0], device="cuda")[:, None] + k.shape[0] - q.shape[0]
    left, right = case.window
    seen = torch.ones_like(scores[0], dtype=torch.bool)
    if case.causal or right >= 0:
        seen &= key <= own + (0 if case.causal else right)
    if left >= 0:
        seen &= key >= own - left
    scores = scores.masked_fill(~seen, -math.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.double()[:, None, None].expand(-1, q.shape[0], 1)], -1)
    weights = scores.softmax(-1).nan_to_num(0.0)[..., : k.shape[0]]
    out = torch.einsum("hqk,khd->qhd", weights, v.double().repeat_interleave(group, 1))
    first = max(k.shape[0] - q.shape[0] - left, 0) if left >= 0 else 0
    return out, scores.logsumexp(-1).T, first


def run(case: Case, seed: int = 0, placement_seed: int = 1):
    """The kernel's output, LSE and pools, and what they must be."""
    from pagedbench.backends.triton_kernels.launch import PagedBatch, paged_attention

    gen = torch.Generator("cuda").manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=gen, device="cuda").to(case.dtype)

    totals = [c + (n if case.append else 0) for n, c in zip(case.queries, case.cached, strict=True)]
    blocks = [-(-n // case.block_size) for n in totals]
    num_blocks = sum(blocks) + 3
    ids = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(placement_seed)).tolist()
    table = torch.full((len(blocks), max(blocks)), -1, dtype=torch.int32)
    (k_cache, v_cache), (k_after, v_after) = pools(case, num_blocks), pools(case, num_blocks)
    q = random(sum(case.queries), case.num_heads, case.head_dim)
    sinks = torch.linspace(-2, 2, case.num_heads, device="cuda") if case.sinks else None
    outs, lses, k_new, v_new = [], [], [], []
    starts = [0, *itertools.accumulate(case.queries)]
    for b, (n, cached) in enumerate(zip(totals, case.cached, strict=True)):
        table[b, : blocks[b]] = torch.tensor([ids.pop() for _ in range(blocks[b])], dtype=torch.int32)
        k, v = random(n, case.num_kv_heads, case.head_dim), random(n, case.num_kv_heads, case.head_dim_v)
        out, lse, first = attend_densely(case, q[starts[b] : starts[b + 1]], k, v, sinks)
        position = torch.arange(first, n)
        block, offset = table[b, position // case.block_size].long().cuda(), (position % case.block_size).cuda()
        k_after[block, offset], v_after[block, offset] = k[first:], v[first:]
        old = position.cuda() < cached
        k_cache[block[old], offset[old]], v_cache[block[old], offset[old]] = k[first:cached], v[first:cached]
        table[b, : first // case.block_size] = -1
        outs.append(out)
        lses.append(lse)
        k_new.append(k[cached:])
        v_new.append(v[cached:])
    batch = PagedBatch(
        q=q,
        k_cache=k_cache,
        v_cache=v_cache,
        block_table=table.cuda(),
        seqlens=torch.tensor(case.cached, dtype=torch.int32, device="cuda"),
        cu_seqlens_q=torch.tensor(starts, dtype=torch.int32, device="cuda"),
        max_seqlen_q=max(case.queries),
        max_seqlen_k=max(totals),
        softmax_scale=case.head_dim**-0.5,
        query_len=case.queries[0] if len(set(case.queries)) == 1 else None,
        k_new=torch.cat(k_new) if case.append else None,
        v_new=torch.cat(v_new) if case.append else None,
        causal=case.causal,
        window=case.window,
        softcap=case.softcap,
        sinks=sinks,
        num_splits=case.num_splits,
    )
    out, lse = paged_attention(batch)
    return out, lse, torch.cat(outs), torch.cat(lses), ((k_cache, k_after), (v_cache, v_after))


BOUND = {torch.bfloat16: 4e-3, torch.float16: 5e-4, torch.float32: 2e-6}


@pytest.mark.parametrize("case", CASES)
def test_against_dense_attention(case: str) -> None:
    out, lse, right_out, right_lse, memory = run(CASES[case])
    error = (out.double() - right_out).norm() / right_out.norm()
    assert error < BOUND[CASES[case].dtype]
    torch.testing.assert_close(lse.double(), right_lse, rtol=1e-5, atol=1e-4)
    assert (out[right_lse == -math.inf] == 0).all()
    for pool, after in memory:
        assert torch.equal(pool.contiguous().view(torch.int16), after.contiguous().view(torch.int16))


@pytest.mark.parametrize("case", ["splits 7", "3 query tokens", "prefill"])
def test_equal_calls_and_moved_blocks_give_equal_bits(case: str) -> None:
    first, again, moved = (run(CASES[case], placement_seed=seed)[:2] for seed in (1, 1, 2))
    for other in (again, moved):
        assert torch.equal(first[0], other[0])
        assert torch.equal(first[1], other[1])


def test_pool_of_more_than_2_to_the_31_elements() -> None:
    """The last block of a pool that 32-bit offsets cannot address."""
    from pagedbench.backends.triton_kernels.launch import PagedBatch, paged_attention

    num_blocks = (1 << 31) // (16 * 128) + 64
    k, v = (torch.zeros(num_blocks, 16, 1, 128, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    v[-1] = 1.0
    batch = PagedBatch(
        q=torch.randn(1, 1, 128, dtype=torch.bfloat16, device="cuda"),
        k_cache=k,
        v_cache=v,
        block_table=torch.tensor([[num_blocks - 1]], dtype=torch.int32, device="cuda"),
        seqlens=torch.tensor([16], dtype=torch.int32, device="cuda"),
        cu_seqlens_q=torch.tensor([0, 1], dtype=torch.int32, device="cuda"),
        max_seqlen_q=1,
        max_seqlen_k=16,
        softmax_scale=1.0,
        query_len=1,
    )
    out, _ = paged_attention(batch)
    assert (out == 1).all()
