"""Measure one call: all its quantities, its stages, its place under the roofline, and whether to believe it.

The order: warm up, time the kernel until its median is known, time what surrounds it, look at the results again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from pagedbench.timing import roofline
from pagedbench.timing.advice import launch_bound, warnings_for
from pagedbench.timing.clock import CallTime, CannotMeasure, Clock, Job, make_clock, run_job
from pagedbench.timing.measurement import Measurement, RooflineRecord, StageTime, Timed, summarise
from pagedbench.timing.options import CacheState, Quantity, TimingOptions
from pagedbench.timing.parts import Part, affordable_pairs, set_apart
from pagedbench.timing.roofline import Peaks, Work
from pagedbench.timing.sampling import Collected, Limits, collect
from pagedbench.timing.stats import median_interval
from pagedbench.timing.throttle import ChipState, Governor, NoGovernor, make_governor, median_sm_clock, sm_clocks

_T = TypeVar("_T")

BESIDE = 0.25
"""The share of the time limit for each quantity beside the kernel time: host times are noisy, and would often use up a
limit of their own for a figure that nobody compares to 1 %."""


@dataclass(frozen=True)
class Subject:
    """What is measured beside the call itself.

    `plan` is the host work before it; `work`, `peaks` and `dtype` place it under the roofline, and `peaks_again`
    measures the peaks once more where a time beats them; `verify`, called on the timed buffers after the last call,
    returns None or what is wrong with them. `part` is what a stage does beside its name, to be shown apart.
    """

    plan: Callable[[], object] | None = None
    work: Work | None = None
    peaks: Peaks | None = None
    peaks_again: Callable[[], Peaks] | None = None
    dtype: str = "bfloat16"
    verify: Callable[[], str | None] | None = None
    part: Part | None = None


def measure(
    stages: Job,
    *,
    device: str,
    options: TimingOptions | None = None,
    subject: Subject | None = None,
    clock: Clock | None = None,
    governor: Governor | None = None,
) -> Measurement:
    """Time a call made of `stages` on `device`.

    Exceptions of the stages are not caught. `clock` and `governor` are the device's own unless given.
    """
    options, subject = options or TimingOptions(), subject or Subject()
    clock = clock or make_clock(device)
    governor = governor or (make_governor(device) if clock.device == device else NoGovernor())
    session = _Session(clock, governor, options, stages)
    with host_care(clock) as care:
        session.warm_up()
        session.time_all(subject.plan, subject.part)
    subject, invalid = verdict(subject, session.cache, session.quantities.get("kernel"))
    return _measurement(session, subject, invalid, care.placed, care.notes)


@dataclass
class _Care:
    placed: str = ""
    notes: list[str] = field(default_factory=list)


@contextmanager
def host_care(clock: Clock) -> Iterator[_Care]:
    """Pin the host's threads where they are what is timed."""
    care = _Care()
    if clock.device != "cpu":
        yield care
        return
    from pagedbench.timing.host import quiet_host

    with quiet_host() as host:
        care.placed = host.pinning
        yield care
    care.notes.extend(host.notes)


@dataclass
class _Session:
    """The state of one measurement."""

    clock: Clock
    governor: Governor
    options: TimingOptions
    stages: Job
    quantities: dict[str, Timed] = field(default_factory=dict)
    calls: list[CallTime] = field(default_factory=list)
    stage_times: tuple[StageTime, ...] = ()
    notes: list[str] = field(default_factory=list)
    states: list[ChipState] = field(default_factory=list)
    expected_ns: float = 0.0

    @property
    def cache(self) -> CacheState:
        """The state asked for, or the only one there is."""
        states = self.clock.cache_states
        return self.options.cache if self.options.cache in states else states[0]

    def _jobs(self, calls: int) -> list[Job]:
        return [self.stages] * calls

    def warm_up(self) -> None:
        self.expected_ns = warm_up([self.stages], self.clock, self.options.warmup_seconds)

    def time_all(self, plan: Callable[[], object] | None, part: Part | None) -> None:
        wanted = self.options.quantities
        if "kernel" in wanted:
            found = self._collect(
                lambda n: self.clock.kernel_times(self._jobs(n), self.cache),
                lambda call: call.span,
                queued=lambda call: call.launched,
            )
            self.calls = found.draws
            self._keep("kernel", found, [call.span for call in found.draws])
            self._set_apart(part)
        if "graph" in wanted:
            self._graph()
        if "call" in wanted and not self._same_as_kernel("call"):
            self._time("call", lambda n: self.clock.host_times(self._jobs(n), self.cache))
        if plan is not None:
            self._time("plan", lambda n: _plan_times(plan, n, self.clock))
        if "total" in wanted and (plan is not None or not self._same_as_kernel("total")):
            self._time("total", lambda n: self.clock.total_times(self._jobs(n), plan, self.cache))

    def _set_apart(self, part: Part | None) -> None:
        """The call's stages; a part that hides in one of them as a stage of its own."""
        pairs = affordable_pairs(self.options.max_seconds, self.expected_ns)
        apart = set_apart(stage_times(self.calls), self.stages, part, self.clock, self.cache, pairs)
        self.stage_times = apart.stages
        self.notes.extend([apart.note] if apart.note else [])

    def _same_as_kernel(self, name: str) -> bool:
        """Where work is done when a call returns, its time is known already."""
        kernel = self.quantities.get("kernel")
        if self.clock.asynchronous or kernel is None:
            return False
        self.quantities[name] = replace(kernel, name=name)
        return True

    def _graph(self) -> None:
        if not self.clock.asynchronous:
            return
        try:
            self._time("graph", lambda n: self.clock.graph_times(self._jobs(n), self.cache))
        except CannotMeasure as error:
            self.notes.append(f"graph not measured: {error.message}")

    def _time(self, name: Quantity, draw: Callable[[int], Sequence[float]]) -> None:
        on_device = name == "graph"
        governor = self.governor if on_device else NoGovernor()
        found = self._collect(draw, lambda x: x, governor=governor, share=BESIDE)
        self._keep(name, found, list(found.draws))

    def _collect(
        self,
        draw: Callable[[int], Sequence[_T]],
        value: Callable[[_T], float],
        queued: Callable[[_T], bool] = lambda _: True,
        governor: Governor | None = None,
        share: float = 1.0,
    ) -> Collected[_T]:
        """Draw within `share` of the time limit."""
        options = self.options

        def enough(draws: Sequence[_T]) -> bool:
            interval = median_interval([value(d) for d in draws], options.confidence)
            return interval.half_width <= options.precision

        most_ns = share * options.max_seconds * 1e9
        limits = Limits(options.min_samples, options.max_samples, most_ns, self.expected_ns)
        return collect(draw, enough, limits, host=self.clock, governor=governor or self.governor, queued=queued)

    def _keep(self, name: str, found: Collected[_T], samples: list[float]) -> None:
        self.quantities[name] = summarise(
            name,
            tuple(samples),
            confidence=self.options.confidence,
            method=self.clock.methods[name],
            stop=found.stop,
            dropped=found.dropped,
        )
        self.notes.extend(f"{name}: {note}" for note in found.notes)
        self.states.extend(found.states)


def warm_up(jobs: Sequence[Job], clock: Clock, seconds: float) -> float:
    """Run calls until `seconds` have passed, three rounds at least unless one alone takes that long.

    Returns the ns that one round took last. Compilation, allocation and the climb of the clocks happen here."""
    start, rounds, last = clock.now(), 0, 0
    while True:
        began = clock.now()
        for job in jobs:
            run_job(job)
        clock.synchronize()
        rounds, last = rounds + 1, clock.now() - began
        enough = rounds >= 3 or last > seconds * 1e9
        if enough and (clock.now() - start >= seconds * 1e9 or rounds >= 10_000):
            return float(last)


def _plan_times(plan: Callable[[], object], calls: int, clock: Clock) -> list[float]:
    times = []
    for _ in range(calls):
        clock.synchronize()
        start = clock.now()
        plan()
        times.append(float(clock.now() - start))
    return times


def stage_times(calls: Sequence[CallTime]) -> tuple[StageTime, ...]:
    """Median span of each stage, and its share of them all."""
    if not calls:
        return ()
    medians = {name: float(np.median([call.stages[name] for call in calls])) for name in calls[0].stages}
    total = sum(medians.values())
    return tuple(StageTime(name, ns, ns / total if total else 0.0) for name, ns in medians.items())


def place(work: Work | None, peaks: Peaks | None, dtype: str, ns: float) -> RooflineRecord | None:
    """A kernel time under the roofline, where all that needs is known."""
    found = roofline.judge(work, ns, peaks, dtype) if work and peaks else None
    if found is None or work is None or peaks is None:
        return None
    return RooflineRecord(
        work.bytes,
        work.flops,
        found.gb_s,
        found.tflop_s,
        found.bound,
        found.share,
        peaks.bandwidth / 1e9,
        peaks.flops[dtype] / 1e12,
    )


def verdict(subject: Subject, cache: CacheState, kernel: Timed | None) -> tuple[Subject, str | None]:
    """Why the times must not be used: the timed buffers are wrong, or the device cannot be that fast; None if they may.

    With the subject to go on with, whose peaks may be better known now.
    """
    wrong = subject.verify() if subject.verify else None
    reason = None
    if cache == "cold" and kernel:
        peaks, reason = roofline.settle(subject.work, kernel.median, subject.peaks, subject.peaks_again)
        subject = replace(subject, peaks=peaks)
    return subject, f"wrong after timing: {wrong}" if wrong else reason


def _measurement(
    session: _Session, subject: Subject, invalid: str | None, placed: str, notes: Sequence[str]
) -> Measurement:
    quantities: Mapping[str, Timed] = session.quantities
    kernel, call = quantities.get("kernel"), quantities.get("call")
    clocks = sm_clocks(session.states)
    calls = session.calls
    return Measurement(
        device=session.clock.device,
        cache=session.cache,
        quantities=quantities,
        stages=session.stage_times,
        busy=float(np.median([c.busy for c in calls])) if calls else None,
        kernels=calls[-1].kernels if calls else None,
        launch_bound=session.clock.asynchronous and launch_bound(kernel, call),
        invalid=invalid,
        warnings=_warnings(session),
        notes=(*session.clock.notes, *session.notes, *notes, *_odd_counts(calls)),
        placed=placed or (f"SM clock {clocks[0]} to {clocks[-1]} MHz" if clocks else ""),
        sm_mhz=median_sm_clock(session.states),
        roofline=place(subject.work, subject.peaks, subject.dtype, kernel.median) if kernel else None,
    )


def _warnings(session: _Session) -> tuple[str, ...]:
    quantities = session.quantities
    own = [timed for timed in quantities.values() if session.clock.asynchronous or timed.name in ("kernel", "plan")]
    return tuple(warning for timed in own or quantities.values() for warning in warnings_for(timed, session.options))


def _odd_counts(calls: Sequence[CallTime]) -> list[str]:
    counts = Counter(call.kernels for call in calls)
    if len(counts) < 2:
        return []
    listed = ", ".join(f"{n} kernels in {times} calls" for n, times in sorted(counts.items()))
    return [f"the calls did not all start the same number of kernels: {listed}"]
