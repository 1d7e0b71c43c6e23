"""Hold the clock against independent readings on a CUDA device: is the kernel time true, steady, and free of bias?

Uses FlashAttention-3 directly, on the documented decode batch and a large one, and nothing of pagedbench but its
timing. Prints what each method reads; exits 1 where the clock misses its own promises:

- kernel time within 5 % of a plain profiler loop in the same cache state;
- medians of two measurements in a row within 3 %;
- of 20 comparisons of identical sides, at most one is called faster or slower.

Run: python benchmarks/validate_clock.py [OUT.json]
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from flash_attn_interface import flash_attn_with_kvcache
from torch.profiler import ProfilerActivity, profile

from pagedbench.timing.cuda_clock import CudaClock
from pagedbench.timing.interleave import Side, interleave
from pagedbench.timing.l2 import ReadFlush
from pagedbench.timing.measure import Subject, measure
from pagedbench.timing.measurement import Measurement
from pagedbench.timing.options import TimingOptions
from pagedbench.timing.roofline import Work, measure_peaks

HEADS, KV_HEADS, DIM, BLOCK = 32, 8, 128, 32


@dataclass(frozen=True)
class Stage:
    """A stage as the clock wants it."""

    name: str
    run: Callable[[], Any]


def decode_call(lengths: Sequence[int], append: bool = True) -> tuple[list[Stage], Work]:
    """One decode step over sequences of these cached lengths, blocks shuffled."""
    torch.manual_seed(0)
    batch, blocks = len(lengths), [n // BLOCK + 1 for n in lengths]
    pool = [torch.randn(sum(blocks) + 8, BLOCK, KV_HEADS, DIM, device="cuda", dtype=torch.bfloat16) for _ in "kv"]
    ids = iter(torch.randperm(sum(blocks)).tolist())
    table = torch.full((batch, max(blocks)), -1, dtype=torch.int32)
    for row, count in enumerate(blocks):
        table[row, :count] = torch.tensor([next(ids) for _ in range(count)], dtype=torch.int32)
    table = table.cuda()
    q = torch.randn(batch, 1, HEADS, DIM, device="cuda", dtype=torch.bfloat16)
    new = [torch.randn(batch, 1, KV_HEADS, DIM, device="cuda", dtype=torch.bfloat16) for _ in "kv"]
    seqlens = torch.tensor(lengths, dtype=torch.int32, device="cuda")

    def run() -> Any:
        return flash_attn_with_kvcache(
            q, *pool, *(new if append else ()), cache_seqlens=seqlens, page_table=table, causal=True, num_splits=0
        )

    keys = sum(lengths) + batch
    item = 2 * DIM
    work = Work(
        2 * keys * KV_HEADS * item + 2 * batch * HEADS * item + 2 * batch * KV_HEADS * item, 4 * DIM * keys * HEADS
    )
    return [Stage("attention", run)], work


def plain_profiler(run: Callable[[], Any], cold: bool, calls: int = 50) -> tuple[float, float, list[str]]:
    """Median span and busy us of a call by a profiler loop that shares nothing with the clock but the flush.

    Calls are queued behind a waiting kernel, as an engine's are; kernels are told apart by the flush or, warm, by their
    number, in the order in which they ran.
    """
    flush = ReadFlush("cuda", torch.cuda.get_device_properties("cuda").L2_cache_size)
    for _ in range(10):
        run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        torch.cuda._sleep(60_000_000)
        for _ in range(calls):
            if cold:
                flush()
            run()
        torch.cuda.synchronize()
    kernels = sorted(
        (e.time_range.start, e.time_range.end, e.name)
        for e in profiler.events()
        if "CUDA" in str(e.device_type) and not any(w in e.name for w in ("reduce_kernel", "Memset", "spin", "sleep"))
    )
    per_call = len(kernels) // calls
    groups = [kernels[i : i + per_call] for i in range(0, per_call * calls, per_call)]
    spans = [max(end for _, end, _ in g) - g[0][0] for g in groups]
    busy = [sum(end - start for start, end, _ in g) for g in groups]
    return statistics.median(spans), statistics.median(busy), [name[:60] for _, _, name in groups[0]]


def describe(measurement: Measurement) -> str:
    """One line."""
    parts = [
        f"{t.name} {t.median / 1e3:.2f} [{t.low / 1e3:.2f}, {t.high / 1e3:.2f}] us n={len(t.samples)}"
        for t in measurement.quantities.values()
    ]
    roof = measurement.roofline
    where = f"; {roof.gb_s:,.0f} GB/s, {roof.share:.0%} of the {roof.bound} limit" if roof else ""
    return f"{measurement.cache}: {'; '.join(parts)}{where}"


def main() -> int:
    """Run all of it."""
    failures, results = [], {}
    peaks = measure_peaks("cuda", "bfloat16")
    print(
        f"peaks: read {peaks.read / 1e9:,.0f} GB/s, copy {peaks.copy / 1e9:,.0f}, product "
        f"{peaks.flops['bfloat16'] / 1e12:.0f} TFLOP/s, L2 {peaks.l2_bytes / 2**20:.0f} MiB"
    )
    clock = CudaClock("cuda")
    batches = {
        "docs, nothing appended": ([30, 32, 70], False),
        "docs": ([30, 32, 70], True),
        "64x8192": ([8191] * 64, True),
    }
    for name, (lengths, append) in batches.items():
        stages, work = decode_call(lengths, append)
        for cache in ("warm", "cold"):
            began = time.perf_counter()
            first, second = (
                measure(
                    stages,
                    device="cuda",
                    clock=clock,
                    options=TimingOptions(cache=cache),
                    subject=Subject(work=work, peaks=peaks),
                )
                for _ in range(2)
            )
            took = (time.perf_counter() - began) / 2
            plain, plain_busy, kernels = plain_profiler(stages[0].run, cache == "cold")
            kernel = first.quantities["kernel"].median / 1e3
            print(
                f"\n{name} {describe(first)}\n  again {describe(second)}\n  busy {(first.busy or 0) / 1e3:.2f} us; "
                f"plain profiler {plain:.2f} us, busy {plain_busy:.2f}, {kernels}; {took:.1f} s; {first.placed}"
            )
            for line in (*first.warnings, *first.notes):
                print("  !", line)
            if first.invalid:
                failures.append(f"{name} {cache}: {first.invalid}")
            if abs(kernel / plain - 1) > 0.05:
                failures.append(f"{name} {cache}: kernel {kernel:.2f} us, plain profiler {plain:.2f} us")
            change = second.quantities["kernel"].median / first.quantities["kernel"].median - 1
            if abs(change) > 0.03:
                failures.append(f"{name} {cache}: {change:+.1%} between two measurements in a row")
            results[f"{name} {cache}"] = [first.to_dict(), second.to_dict()]
    failures += identical_sides(clock)
    print("\n" + ("\n".join(["FAILED:", *failures]) if failures else "all promises kept"))
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w") as file:
            json.dump({"peaks": peaks.to_dict(), "measurements": results}, file)
    return bool(failures)


def identical_sides(clock: CudaClock, times: int = 20) -> list[str]:
    """Compare the documented decode batch with itself."""
    stages, _ = decode_call([30, 32, 70])
    began, verdicts = time.perf_counter(), []
    for seed in range(times):
        found = interleave(
            [Side("a", stages), Side("b", list(stages))], device="cuda", clock=clock, options=TimingOptions(seed=seed)
        )
        c = found.pairs[0].comparison
        verdicts.append(c.verdict)
        print(f"  identical {c.ratio:.4f} [{c.low:.4f}, {c.high:.4f}] {c.pairs} pairs: {c.verdict}")
    wrong = sum(v != "no difference shown" for v in verdicts)
    print(f"identical sides: {wrong} of {times} called different, {(time.perf_counter() - began) / times:.2f} s each")
    return [f"identical sides called different {wrong} times"] if wrong > 1 else []


if __name__ == "__main__":
    sys.exit(main())
