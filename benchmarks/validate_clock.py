"""Hold the clock against independent readings on a CUDA device: is the kernel time true, and steady?

Uses FlashAttention-3 directly, on the documented decode batch and a large one, and nothing of pagedbench but its
timing. Prints what each method reads; exits 1 where the clock misses its own promises:

- kernel time within 5 % of a plain profiler loop in the same cache state;
- medians of two measurements in a row within 3 %.

Whether identical sides are told apart is asked by `identical_sides.py`.

Run: python benchmarks/validate_clock.py [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from flash_attn_interface import flash_attn_with_kvcache
from torch.profiler import ProfilerActivity, profile

from pagedbench.timing.cuda_clock import CudaClock
from pagedbench.timing.l2 import ReadFlush
from pagedbench.timing.measure import Subject, measure
from pagedbench.timing.measurement import Measurement
from pagedbench.timing.options import CacheState, TimingOptions
from pagedbench.timing.roofline import Peaks, Work, measure_peaks

HEADS, KV_HEADS, DIM, BLOCK = 32, 8, 128, 32
CLOSE, STEADY = 0.05, 0.03
BATCHES: dict[str, tuple[list[int], bool]] = {
    "docs, nothing appended": ([30, 32, 70], False),
    "docs": ([30, 32, 70], True),
    "64x8192": ([8191] * 64, True),
}
"""Cached lengths, and whether the new tokens are appended."""


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
        torch.cuda._sleep(60_000_000)  # type: ignore[no-untyped-call]
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


@dataclass(frozen=True)
class Reading:
    """What the clock and the plain profiler say of one batch in one cache state; times in us."""

    batch: str
    first: Measurement
    second: Measurement
    plain: float
    plain_busy: float
    kernels: list[str]

    @property
    def kernel(self) -> float:
        """The clock's kernel time."""
        return self.first.quantities["kernel"].median / 1e3

    def failures(self) -> list[str]:
        """The promises that are not kept."""
        name = f"{self.batch} {self.first.cache}"
        found = [f"{name}: {self.first.invalid}"] if self.first.invalid else []
        if abs(self.kernel / self.plain - 1) > CLOSE:
            found.append(f"{name}: kernel {self.kernel:.2f} us, plain profiler {self.plain:.2f} us")
        change = self.second.quantities["kernel"].median / self.first.quantities["kernel"].median - 1
        if abs(change) > STEADY:
            found.append(f"{name}: {change:+.1%} between two measurements in a row")
        return found

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "batch": self.batch,
            "cache": self.first.cache,
            "kernel_us": self.kernel,
            "again_us": self.second.quantities["kernel"].median / 1e3,
            "plain_profiler_us": self.plain,
            "plain_profiler_busy_us": self.plain_busy,
            "kernels": self.kernels,
            "measurements": [self.first.to_dict(), self.second.to_dict()],
        }


def read(batch: str, cache: CacheState, clock: CudaClock, peaks: Peaks) -> Reading:
    """Measure a batch twice in a row, then by the plain profiler; prints what was read."""
    stages, work = decode_call(*BATCHES[batch])
    options = TimingOptions(cache=cache, max_seconds=0.5, quantities=("kernel", "graph", "call"))
    subject = Subject(work=work, peaks=peaks)
    began = time.perf_counter()
    first, second = (measure(stages, device="cuda", clock=clock, options=options, subject=subject) for _ in range(2))
    took = (time.perf_counter() - began) / 2
    reading = Reading(batch, first, second, *plain_profiler(stages[0].run, cache == "cold"))
    print(
        f"\n{batch} {describe(first)}\n  again {describe(second)}\n  busy {(first.busy or 0) / 1e3:.2f} us; plain "
        f"profiler {reading.plain:.2f} us, busy {reading.plain_busy:.2f}, {reading.kernels}; {took:.1f} s",
        flush=True,
    )
    for line in (*first.warnings, *first.notes):
        print("  !", line)
    return reading


def main(arguments: Sequence[str] | None = None) -> int:
    """Read every batch warm and cold, and hold the readings to the promises."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the readings to this file")
    options = parser.parse_args(arguments)
    peaks, clock = measure_peaks("cuda", "bfloat16"), CudaClock("cuda")
    print(
        f"peaks: read {peaks.read / 1e9:,.0f} GB/s, copy {peaks.copy / 1e9:,.0f}, product "
        f"{peaks.flops['bfloat16'] / 1e12:.0f} TFLOP/s, L2 {peaks.l2_bytes / 2**20:.0f} MiB"
    )
    states: tuple[CacheState, ...] = ("warm", "cold")
    readings = [read(batch, cache, clock, peaks) for batch in BATCHES for cache in states]
    if options.json:
        told = {"peaks": peaks.to_dict(), "readings": [reading.to_dict() for reading in readings]}
        options.json.write_text(json.dumps(told), encoding="utf-8")
    failures = [failure for reading in readings for failure in reading.failures()]
    print("\n" + ("\n".join(["FAILED:", *failures]) if failures else "all promises kept"))
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
