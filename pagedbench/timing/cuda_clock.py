"""The clock of a CUDA device: kernels by the profiler (CUPTI), graphs by events, calls by the host clock.

Calls are queued behind a kernel that only waits, so that the device never waits for Python inside one; calls for which
that did not succeed are marked, not hidden. The cache is flushed before each call unless it shall be warm.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from pagedbench.timing.clock import CallTime, CannotMeasure, Job, run_job
from pagedbench.timing.kineto import IGNORED, Event, call_times, range_name
from pagedbench.timing.l2 import ReadFlush
from pagedbench.timing.options import CacheState

MOST_QUEUED_NS = 300e6
_CALIBRATION_CYCLES = 4_000_000


class CudaClock:
    """See the module. Made for one measurement: it keeps the flush buffer and the captured graphs."""

    asynchronous = True
    cache_states: tuple[CacheState, ...] = ("cold", "warm")

    def __init__(self, device: str = "cuda") -> None:
        self.device = device
        properties = torch.cuda.get_device_properties(device)
        self.l2_bytes = int(properties.L2_cache_size)
        self.methods = {
            "kernel": "profiler (CUPTI through torch.profiler), calls queued",
            "graph": "events around one graph replay, replays queued",
            "call": "host clock (perf_counter_ns) until the call returns",
            "plan": "host clock (perf_counter_ns)",
            "total": "host clock (perf_counter_ns) until the device is done, each call alone",
        }
        self.notes: list[str] = []
        self._flush = ReadFlush(device, self.l2_bytes)
        self._cycles_per_ns = cycles_per_ns(device)
        self._host_ns = 500e3  # what queueing one call costs, profiler included; corrected after each batch
        self._graphs: dict[int, tuple[Job, torch.cuda.CUDAGraph]] = {}
        self._profiler_works = True

    def now(self) -> int:
        """Host time."""
        return time.perf_counter_ns()

    def rest(self, ns: float) -> None:
        """Do nothing for so long."""
        time.sleep(ns / 1e9)

    def synchronize(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize(self.device)

    def host_times(self, jobs: Sequence[Job], cache: CacheState) -> list[float]:
        """Host time of each job; the queue is emptied first, so that no launch waits for a place in it."""
        self.synchronize()
        times = []
        for job in jobs:
            start = time.perf_counter_ns()
            run_job(job)
            times.append(float(time.perf_counter_ns() - start))
        self.synchronize()
        return times

    def kernel_times(self, jobs: Sequence[Job], cache: CacheState) -> list[CallTime]:
        """Device time of each job from the profiler; from events, and said so, where the profiler fails."""
        if self._profiler_works:
            try:
                return self._profiled(jobs, cache)
            except (CannotMeasure, RuntimeError) as error:
                if isinstance(error, RuntimeError) and "CUDA error" in str(error):
                    raise  # the kernel's fault, not the profiler's
                self._profiler_works = False
                self.methods["kernel"] = "events around an eager call, calls queued (adds about 2 us)"
                self.notes.append(f"kernel times come from events, not from the profiler: {error}")
        return [CallTime(ns, ns) for ns in self._evented([partial(run_job, job) for job in jobs], cache)]

    def graph_times(self, jobs: Sequence[Job], cache: CacheState) -> list[float]:
        """Device time of a replay of each job's graph."""
        return self._evented([self._graph(job).replay for job in jobs], cache)

    def total_times(self, jobs: Sequence[Job], plan: Callable[[], object] | None, cache: CacheState) -> list[float]:
        """Host time from the start of planning until the device is done."""
        times = []
        for job in jobs:
            if cache == "cold":
                self._flush()
            self.synchronize()
            start = time.perf_counter_ns()
            if plan is not None:
                plan()
            run_job(job)
            self.synchronize()
            times.append(float(time.perf_counter_ns() - start))
        return times

    def _profiled(self, jobs: Sequence[Job], cache: CacheState) -> list[CallTime]:
        self.synchronize()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiler:
            with self._queued(len(jobs)):
                for index, job in enumerate(jobs):
                    if cache == "cold":
                        with record_function(IGNORED):
                            self._flush()
                    for position, stage in enumerate(job):
                        with record_function(range_name(index, position)):
                            stage.run()
            self.synchronize()
        return call_times(_events(profiler), [[stage.name for stage in job] for job in jobs])

    def _evented(self, runs: Sequence[Callable[[], Any]], cache: CacheState) -> list[float]:
        pairs = [(_event(), _event()) for _ in runs]
        self.synchronize()
        with self._queued(len(runs)):
            for run, (start, end) in zip(runs, pairs, strict=True):
                if cache == "cold":
                    self._flush()
                start.record()
                run()
                end.record()
        self.synchronize()
        return [start.elapsed_time(end) * 1e6 for start, end in pairs]

    @contextmanager
    def _queued(self, calls: int) -> Iterator[None]:
        """Hold the device back for as long as queueing `calls` calls should take; learn how long it took."""
        wait_ns = min(MOST_QUEUED_NS, 1.5 * calls * self._host_ns + 200e3)
        with record_function(IGNORED):
            _wait(wait_ns * self._cycles_per_ns)
        start = time.perf_counter_ns()
        yield
        took = (time.perf_counter_ns() - start) / max(calls, 1)
        self._host_ns = max(took, 0.7 * self._host_ns)

    def _graph(self, job: Job) -> torch.cuda.CUDAGraph:
        known = self._graphs.get(id(job))
        if known is not None:
            return known[1]
        graph = torch.cuda.CUDAGraph()
        try:
            self._warm_on_side_stream(job)
            with torch.cuda.graph(graph):
                run_job(job)
        except Exception as error:
            if "an illegal memory access" in str(error):
                raise
            raise CannotMeasure(f"the call cannot be captured in a graph: {_first_line(error)}") from error
        self._graphs[id(job)] = (job, graph)  # the job is kept so that its id stays its own
        return graph

    def _warm_on_side_stream(self, job: Job) -> None:
        """Libraries allocate their workspaces at a first call on a stream; a capture must not contain that."""
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            run_job(job)
        torch.cuda.current_stream(self.device).wait_stream(stream)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _wait(cycles: float) -> None:
    """Queue a kernel that does nothing for so many cycles."""
    torch.cuda._sleep(int(cycles))  # type: ignore[no-untyped-call]


@lru_cache(maxsize=8)
def cycles_per_ns(device: str) -> float:
    """Cycles a ns of the waiting kernel, at the clock the chip has under load. Measured once a process (20 ms)."""
    start, end = _event(), _event()
    _wait(10 * _CALIBRATION_CYCLES)
    start.record()
    _wait(_CALIBRATION_CYCLES)
    end.record()
    torch.cuda.synchronize(device)
    return float(_CALIBRATION_CYCLES / (start.elapsed_time(end) * 1e6))


def _events(profiler: Any) -> Iterator[Event]:
    """The raw events of a finished profile; a summary of them has no correlation ids."""
    results = profiler.profiler.kineto_results
    for event in results.events():
        on_device = event.device_type().name != "CPU"
        yield Event(event.name(), on_device, event.start_ns(), event.duration_ns(), event.correlation_id())


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
