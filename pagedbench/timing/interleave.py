"""Measure several sides in one run, A B B A ..., and say which is faster.

What drifts (clocks, temperature, neighbours) drifts for all sides alike, since their calls lie microseconds apart; the
comparison works on the ratios within each round. Whether the sides compute the same is the caller's to see to first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np

from pagedbench.timing.advice import launch_bound, warnings_for
from pagedbench.timing.clock import CallTime, Clock, Job, make_clock
from pagedbench.timing.measure import Subject, host_care, place, stage_times, verdict, warm_up
from pagedbench.timing.measurement import Measurement, Timed, summarise
from pagedbench.timing.options import HARD_SECONDS, CacheState, TimingOptions
from pagedbench.timing.parts import Apart, affordable_pairs, set_apart
from pagedbench.timing.sampling import Collected, Limits, collect
from pagedbench.timing.stats import Comparison, compare_pairs, least_samples, median_interval
from pagedbench.timing.throttle import Governor, NoGovernor, make_governor, median_sm_clock

LEAST_ROUNDS = 60
"""Rounds below which a bootstrap knows too little of its own tails: no reason to stop before the time is over."""
DEPENDENCE = 4
"""Rounds beyond the least number that are taken: neighbours with a correlation of 0.3 cost that many."""
HOST_TURNS = 8
Round = tuple[CallTime, ...]


@dataclass(frozen=True)
class Side:
    """One of the things compared: its name as shown, its call, what is known of it (`Subject.plan` is not timed)."""

    name: str
    stages: Job
    subject: Subject = field(default_factory=Subject)


@dataclass(frozen=True)
class Pair:
    """Side number `a` against side number `b`; `comparison` is about their kernel times."""

    a: int
    b: int
    comparison: Comparison

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Interleaved:
    """What `interleave` found: a measurement a side, and each pair of sides compared."""

    sides: tuple[Measurement, ...]
    pairs: tuple[Pair, ...]


def interleave(
    sides: Sequence[Side],
    *,
    device: str,
    options: TimingOptions | None = None,
    clock: Clock | None = None,
    governor: Governor | None = None,
) -> Interleaved:
    """Time `sides` side by side on `device`: kernel time for all, and the host time of a call.

    Sampling stops when the ratio of every pair is known to ±`precision` at `compare_confidence`, or at a limit; but not
    before there are enough rounds to say anything, where `HARD_SECONDS` hold them. An invalid side (wrong after timing,
    faster than the device) is measured, marked, and in no pair.
    """
    options = options or TimingOptions()
    clock = clock or make_clock(device)
    governor = governor or (make_governor(device) if clock.device == device else NoGovernor())
    cache = options.cache if options.cache in clock.cache_states else clock.cache_states[0]
    jobs = [side.stages for side in sides]
    with host_care(clock) as care:
        expected = warm_up(jobs, clock, options.warmup_seconds)
        found = _rounds(jobs, expected, cache, options, clock, governor)
        hosts = _host_times(jobs, cache, clock, found, calls_at_a_time(options.max_seconds, expected))
        apart = _stages_apart(sides, found, expected, cache, options, clock)
    found.notes.extend(care.notes)
    measurements = tuple(
        replace(_measurement(side, index, found, hosts[index], apart[index], cache, options, clock), placed=care.placed)
        for index, side in enumerate(sides)
    )
    valid = [index for index, measurement in enumerate(measurements) if measurement.invalid is None]
    return Interleaved(measurements, tuple(_pair(found.draws, a, b, options) for a, b in combinations(valid, 2)))


def _rounds(
    jobs: Sequence[Job], expected: float, cache: CacheState, options: TimingOptions, clock: Clock, governor: Governor
) -> Collected[Round]:
    count = len(jobs)

    def draw(rounds: int) -> list[Round]:
        # Every other round runs backwards: a side must not always follow the same neighbour.
        order = [i if r % 2 == 0 else count - 1 - i for r in range(rounds) for i in range(count)]
        times = clock.kernel_times([jobs[i] for i in order], cache)
        grouped = [times[start : start + count] for start in range(0, len(times), count)]
        return [tuple(g if r % 2 == 0 else g[::-1]) for r, g in enumerate(grouped)]

    def enough(draws: Sequence[Round]) -> bool:
        return all(_ratio_known(draws, a, b, options) for a, b in combinations(range(count), 2))

    least = max(options.min_samples, LEAST_ROUNDS)
    limits = Limits(
        least,
        max(options.max_samples, least),
        count * options.max_seconds * 1e9,
        expected,
        needed=least_samples(options.compare_confidence) + DEPENDENCE,
        hard_ns=HARD_SECONDS * 1e9,
    )
    return collect(
        draw, enough, limits, host=clock, governor=governor, queued=lambda r: all(call.launched for call in r)
    )


def _ratio_known(draws: Sequence[Round], a: int, b: int, options: TimingOptions) -> bool:
    ratios = [d[a].span / d[b].span for d in draws if d[b].span]
    return not ratios or median_interval(ratios, options.compare_confidence).half_width <= options.precision


def calls_at_a_time(most_seconds: float, round_ns: float) -> int:
    """How many calls of a side to start one after the other: 10, or fewer where all turns would take longer than a
    quarter of the time limit."""
    return max(1, min(10, int(most_seconds * 1e9 / 4 / HOST_TURNS / max(round_ns, 1.0))))


def _host_times(
    jobs: Sequence[Job], cache: CacheState, clock: Clock, found: Collected[Round], calls: int
) -> list[list[float]]:
    """Host time of each side's calls, a few at a time in turn; the kernel's own where that is the same thing."""
    if not clock.asynchronous:
        return [[draw[index].span for draw in found.draws] for index in range(len(jobs))]
    times: list[list[float]] = [[] for _ in jobs]
    for _ in range(HOST_TURNS):
        for index, job in enumerate(jobs):
            times[index].extend(clock.host_times([job] * calls, cache))
    return times


def _stages_apart(
    sides: Sequence[Side],
    found: Collected[Round],
    expected: float,
    cache: CacheState,
    options: TimingOptions,
    clock: Clock,
) -> list[Apart]:
    """Each side's stages, with a part that hides in one of them apart. After the rounds, which it must not disturb."""
    pairs = affordable_pairs(options.max_seconds, expected / len(sides))
    return [
        set_apart(
            stage_times([draw[index] for draw in found.draws]), side.stages, side.subject.part, clock, cache, pairs
        )
        for index, side in enumerate(sides)
    ]


def _pair(draws: Sequence[Round], a: int, b: int, options: TimingOptions) -> Pair:
    both = [(draw[a].span, draw[b].span) for draw in draws if draw[a].span > 0 and draw[b].span > 0]
    if not both:  # neither side has device work: an empty batch
        return Pair(a, b, Comparison(1.0, 0.0, math.inf, 0.0, options.margin, 0, "no difference shown"))
    first, second = np.array(both).T
    comparison = compare_pairs(
        first, second, confidence=options.compare_confidence, margin=options.margin, seed=options.seed
    )
    return Pair(a, b, comparison)


def _measurement(
    side: Side,
    index: int,
    found: Collected[Round],
    host: Sequence[float],
    apart: Apart,
    cache: CacheState,
    options: TimingOptions,
    clock: Clock,
) -> Measurement:
    calls = [draw[index] for draw in found.draws]

    def timed(name: str, samples: Sequence[float], stop: str) -> Timed:
        return summarise(
            name,
            tuple(samples),
            confidence=options.confidence,
            method=clock.methods[name],
            stop=stop,
            dropped=found.dropped if name == "kernel" else None,
        )

    kernel = timed("kernel", [call.span for call in calls], found.stop)
    call = timed("call", host, "fixed number")
    subject, invalid = verdict(side.subject, cache, kernel)
    return Measurement(
        device=clock.device,
        cache=cache,
        quantities={"kernel": kernel, "call": call},
        stages=apart.stages,
        busy=float(np.median([c.busy for c in calls])),
        kernels=calls[-1].kernels,
        launch_bound=clock.asynchronous and launch_bound(kernel, call),
        invalid=invalid,
        warnings=tuple(warnings_for(kernel, options)),
        notes=(*clock.notes, *found.notes, *([apart.note] if apart.note else [])),
        sm_mhz=median_sm_clock(found.states),
        roofline=place(subject.work, subject.peaks, subject.dtype, kernel.median),
    )
