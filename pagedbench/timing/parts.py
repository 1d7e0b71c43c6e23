"""A part of a call that has no stage of its own: its time is the call's, less that of the same call without it.

Both calls are timed in turn, so that what drifts cancels in their difference. Knows nothing of what the part does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pagedbench.errors import said
from pagedbench.timing.clock import Clock, Job, run_job
from pagedbench.timing.measurement import StageTime
from pagedbench.timing.options import CacheState
from pagedbench.timing.stats import median_interval

MOST_PAIRS = 30
LEAST_PAIRS = 5
WIDEST = 0.2
"""The widest interval of a difference, as a share of the call, that still says what the part takes."""


@dataclass(frozen=True)
class Part:
    """`name` happens inside the call's stage `within`; `without` is the same call but for that part."""

    name: str
    within: str
    without: Job


@dataclass(frozen=True)
class Apart:
    """The stages with the part as one of them, in front of the stage it was taken from; or why there is none."""

    stages: tuple[StageTime, ...]
    note: str = ""


def affordable_pairs(most_seconds: float, call_ns: float) -> int:
    """How many pairs to time: as many as fit a quarter of the time limit, within `LEAST_PAIRS` and `MOST_PAIRS`; none
    where the least would take longer than the limit itself."""
    pair_ns, most_ns = max(2 * call_ns, 1.0), most_seconds * 1e9
    if LEAST_PAIRS * pair_ns > most_ns:
        return 0
    return max(LEAST_PAIRS, min(MOST_PAIRS, int(most_ns / 4 / pair_ns)))


def set_apart(
    stages: Sequence[StageTime], whole: Job, part: Part | None, clock: Clock, cache: CacheState, pairs: int
) -> Apart:
    """`stages` with `part` taken out of its stage. A call without the part that fails is no fault of the whole one."""
    known = tuple(stages)
    if part is None or not any(stage.name == part.within for stage in known):
        return Apart(known)
    if pairs == 0:
        return Apart(known, f"{part.name} not timed apart: {LEAST_PAIRS} pairs of calls would pass the time limit")
    try:
        run_job(part.without)
        clock.synchronize()
        times = clock.kernel_times([job for _ in range(pairs) for job in (whole, part.without)], cache)
    except Exception as error:
        what = f"{type(error).__name__}: {said(error)}"
        return Apart(known, f"{part.name} not timed apart: the call without it raised {what}")
    differences = [first.span - second.span for first, second in zip(times[::2], times[1::2], strict=True)]
    taken = median_interval(differences)
    if taken.high - taken.low > WIDEST * float(np.median([first.span for first in times[::2]])):
        found = f"{taken.low / 1e3:.1f} to {taken.high / 1e3:.1f} µs"
        return Apart(known, f"{part.name} not timed apart: {found} is too wide a range to say what it takes")
    method = f"call less the same call without it, {pairs} pairs"
    return Apart(_with_part(known, part, max(taken.value, 0.0), method))


def _with_part(stages: tuple[StageTime, ...], part: Part, ns: float, method: str) -> tuple[StageTime, ...]:
    total = sum(stage.median for stage in stages)
    found: list[StageTime] = []
    for stage in stages:
        if stage.name != part.within:
            found.append(stage)
            continue
        ns = min(ns, stage.median)
        for name, median in ((part.name, ns), (stage.name, stage.median - ns)):
            found.append(StageTime(name, median, median / total if total else 0.0, method))
    return tuple(found)
