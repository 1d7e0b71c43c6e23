"""Comparison records made by hand: times are what the test says they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagedbench.results.comparison import ComparisonRecord, PairRecord, SideRecord
from pagedbench.timing.measurement import Measurement, RooflineRecord, StageTime, summarise
from pagedbench.words import Verdict


def measured(us: float, stages: Mapping[str, float] | None = None, spread: float = 0.01) -> Measurement:
    """Kernel samples around `us`; `stages` in microseconds."""
    samples = tuple(us * 1e3 * (1 + spread * step / 10) for step in range(-10, 11))
    kernel = summarise("kernel", samples, confidence=0.95, method="by hand", stop="precise enough")
    call = summarise("call", (100e3,) * 21, confidence=0.95, method="by hand", stop="precise enough")
    parts = stages or {"attention": us}
    total = sum(parts.values())
    return Measurement(
        device="cuda",
        cache="cold",
        quantities={"kernel": kernel, "call": call},
        stages=tuple(StageTime(name, part * 1e3, part / total) for name, part in parts.items()),
        launch_bound=us < 100,
        roofline=RooflineRecord(4_000_000, 8_000_000, 4000 / us, 8 / us, "memory", 0.5, 4000.0, 800.0),
    )


def side(
    backend: str, path: str, us: float | None, stages: Mapping[str, float] | None = None, why: str = "cannot"
) -> SideRecord:
    """A side with a time, or one that was skipped."""
    if us is None:
        return SideRecord(backend, path, Verdict.SKIPPED, why)
    return SideRecord(backend, path, Verdict.PASS, version="1.0", timing=measured(us, stages).to_dict())


def comparison(
    varlen: float | None,
    decode: float | None,
    *,
    name: str = "batch",
    stages: Mapping[str, float] | None = None,
    work: int = 1_000_000,
    pairs: int = 100,
    **facts: Any,
) -> ComparisonRecord:
    """varlen against decode; within 1 % they tie, and fewer than 11 `pairs` are too few."""
    sides = [side("flash-attn-3", "varlen", varlen, stages), side("flash-attn-3", "decode", decode)]
    record = ComparisonRecord(
        scenario=name,
        device="cuda",
        facts=facts,
        sides=sides,
        work={"bytes": work, "flops": work},
        cache="cold",
        heads="32/8 heads, head dim 128",
        dtype="bfloat16",
        environment={"gpu": "NVIDIA H200", "torch": "2.11.0"},
    )
    if varlen is not None and decode is not None:
        ratio = varlen / decode
        verdict = "no difference shown" if abs(ratio - 1) < 0.01 else "slower" if ratio > 1 else "faster"
        verdict = verdict if pairs >= 11 else "too few samples"
        record.pairs = [PairRecord(0, 1, ratio, 0.98 * ratio, 1.02 * ratio, 0.999, 0.01, pairs, verdict, 1e-3)]
    return record
