"""What a clock is: how the times of calls are read on one kind of device.

`CpuClock` is here; the CUDA one is in `cuda_clock.py`, a simulated one for tests in `fake.py`. A clock times the calls
it is given, in order, once; how many and when to stop is for `sampling.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from pagedbench.errors import PagedbenchError
from pagedbench.timing.options import CacheState


class StageLike(Protocol):
    """One named part of a call; `run` starts it and does not wait for the device."""

    @property
    def name(self) -> str:
        """The stage's name, as shown."""

    @property
    def run(self) -> Callable[[], None]:
        """The work."""


Job = Sequence[StageLike]
"""One call: its stages in order."""


@dataclass(frozen=True)
class CallTime:
    """One call in ns: `span` from its first kernel's start to its last one's end, `busy` the sum of its kernels (they
    differ by gaps, or by overlap), `stages` the span of each stage, `launched` False if the device had to wait for the
    host inside this call, so that its span holds launch gaps, `kernels` how many there were."""

    span: float
    busy: float
    stages: Mapping[str, float] = field(default_factory=dict)
    launched: bool = True
    kernels: int = 1


class CannotMeasure(PagedbenchError):
    """This clock cannot read this quantity here; the message says why."""


class Clock(Protocol):
    """How the times of calls are read on one device. All times are in ns.

    `kernel_times` and `graph_times` raise `CannotMeasure` when they cannot; `methods` names how each quantity is read,
    and changes when a clock had to fall back, which it explains in `notes`. `asynchronous`: a call returns before its
    work is done, so that the call's time and the kernel's differ.
    """

    device: str
    asynchronous: bool
    l2_bytes: int
    cache_states: tuple[CacheState, ...]
    methods: dict[str, str]
    notes: list[str]

    def now(self) -> int:
        """Host time."""

    def rest(self, ns: float) -> None:
        """Do nothing for so long."""

    def synchronize(self) -> None:
        """Wait until the device has nothing left to do."""

    def host_times(self, jobs: Sequence[Job], cache: CacheState) -> list[float]:
        """Host time of each job until it returns; nothing else is queued when the first one starts."""

    def kernel_times(self, jobs: Sequence[Job], cache: CacheState) -> list[CallTime]:
        """Device time of each job, queued one after the other."""

    def graph_times(self, jobs: Sequence[Job], cache: CacheState) -> list[float]:
        """Device time of one replay of each job's graph; jobs that are the same object share a graph."""

    def total_times(self, jobs: Sequence[Job], plan: Callable[[], object] | None, cache: CacheState) -> list[float]:
        """Host time from the start of planning until the device is done, each job alone."""


def run_job(job: Job) -> None:
    """Start all stages of a call."""
    for stage in job:
        stage.run()


class CpuClock:
    """The host clock. Work is done when a call returns, so the kernel's time and the call's are the same thing."""

    device = "cpu"
    asynchronous = False
    l2_bytes = 0
    cache_states: tuple[CacheState, ...] = ("warm",)

    def __init__(self) -> None:
        self.methods = {
            "kernel": "host clock (perf_counter_ns) around each stage: on a CPU the kernel is the call",
            "call": "host clock (perf_counter_ns)",
            "plan": "host clock (perf_counter_ns)",
            "total": "host clock (perf_counter_ns)",
        }
        self.notes: list[str] = []

    def now(self) -> int:
        """Host time."""
        return time.perf_counter_ns()

    def rest(self, ns: float) -> None:
        """Do nothing for so long."""
        time.sleep(ns / 1e9)

    def synchronize(self) -> None:
        """Nothing is ever queued."""

    def host_times(self, jobs: Sequence[Job], cache: CacheState) -> list[float]:
        """Time of each job."""
        return [timing.span for timing in self.kernel_times(jobs, cache)]

    def kernel_times(self, jobs: Sequence[Job], cache: CacheState) -> list[CallTime]:
        """Time of each job, stage by stage."""
        times = []
        for job in jobs:
            marks = [time.perf_counter_ns()]
            for stage in job:
                stage.run()
                marks.append(time.perf_counter_ns())
            lengths = [float(end - start) for start, end in pairwise(marks)]
            names = [stage.name for stage in job]
            times.append(CallTime(sum(lengths), sum(lengths), dict(zip(names, lengths, strict=True)), True, len(job)))
        return times

    def graph_times(self, jobs: Sequence[Job], cache: CacheState) -> list[float]:
        """There are no graphs on a CPU."""
        raise CannotMeasure("a CPU has no graphs")

    def total_times(self, jobs: Sequence[Job], plan: Callable[[], object] | None, cache: CacheState) -> list[float]:
        """Time of planning and the job."""
        times = []
        for job in jobs:
            start = time.perf_counter_ns()
            if plan is not None:
                plan()
            run_job(job)
            times.append(float(time.perf_counter_ns() - start))
        return times


def make_clock(device: str) -> Clock:
    """The clock for `"cpu"` or `"cuda"` (with or without an index)."""
    if device.startswith("cuda"):
        from pagedbench.timing.cuda_clock import CudaClock

        return CudaClock(device)
    return CpuClock()
