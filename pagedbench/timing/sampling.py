"""How often to measure: batches of calls until the answer is sure enough, or a limit is reached, and which.

Knows nothing of what is drawn. Draws from a throttled chip, and those for which the device waited for the host, are
dropped and counted; when that leaves nothing, or too little to say anything, they are kept and it is said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from pagedbench.timing.measurement import MADE_DO
from pagedbench.timing.throttle import ChipState, Governor

T = TypeVar("T")
FIRST_BATCH = 16
LARGEST_BATCH = 50
LONGEST_REST_NS = 100e6
GAPS = "interrupted by launch gaps"
PATIENCE = 0.4
"""The share of the time limit after which samples that had to be dropped are better than none."""


class HostTime(Protocol):
    """The part of a clock that sampling needs."""

    def now(self) -> int:
        """Host time in ns."""

    def rest(self, ns: float) -> None:
        """Do nothing for so long."""


@dataclass(frozen=True)
class Limits:
    """Least and most draws to keep, the most time to spend, and what a draw is expected to cost; times in ns.

    Fewer draws than `needed` say nothing: they are taken although `most_ns` is over, unless that would pass `hard_ns`.
    """

    least: int
    most: int
    most_ns: float
    expected_ns: float = 0.0
    needed: int = 0
    hard_ns: float = 0.0

    @property
    def first_batch(self) -> int:
        """A batch that spends at most an eighth of the time."""
        affordable = int(self.most_ns / 8 / max(self.expected_ns, 1.0))
        return max(1, min(FIRST_BATCH, self.most, affordable))

    def last_ns(self, usable: int) -> float:
        """When to stop with so many draws at hand: later than `most_ns` where more are needed and can be had."""
        more = usable < self.needed and self.needed * self.expected_ns <= self.hard_ns
        return max(self.most_ns, self.hard_ns) if more else self.most_ns


@dataclass
class Collected(Generic[T]):
    """What was kept, in order; `stop` is why sampling ended; `dropped` counts by reason; `notes` are for a person."""

    draws: list[T] = field(default_factory=list)
    stop: str = ""
    dropped: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    states: list[ChipState] = field(default_factory=list)


@dataclass(frozen=True)
class _Draw(Generic[T]):
    """What was drawn, and the reason to drop it, if there is one."""

    item: T
    flaw: str = ""


def collect(
    draw: Callable[[int], Sequence[T]],
    enough: Callable[[Sequence[T]], bool],
    limits: Limits,
    *,
    host: HostTime,
    governor: Governor,
    queued: Callable[[T], bool] = lambda _: True,
) -> Collected[T]:
    """Draw until `enough` of the kept draws, or a limit.

    `draw(n)` measures n calls. Batches grow so that a quick call is drawn often before it is judged again, and a slow
    one keeps to the time limit. A throttled chip is given a rest. `queued` tells whether a draw was free of gaps.
    """
    sampler = _Sampler(enough, limits, host, governor, queued)
    size = limits.first_batch
    while not sampler.kept.stop:
        size = sampler.take(draw, size)
    return sampler.result()


class _Sampler(Generic[T]):
    """The state of one `collect`: what was kept, and in `_drawn` everything, in order."""

    def __init__(
        self,
        enough: Callable[[Sequence[T]], bool],
        limits: Limits,
        host: HostTime,
        governor: Governor,
        queued: Callable[[T], bool],
    ) -> None:
        self.kept: Collected[T] = Collected()
        self._drawn: list[_Draw[T]] = []
        self._enough, self._limits, self._host, self._governor, self._queued = enough, limits, host, governor, queued
        self._start = host.now()

    def take(self, draw: Callable[[int], Sequence[T]], size: int) -> int:
        """Measure a batch, sort it, and say how large the next one should be."""
        before, began = self._governor.state(), self._host.now()
        batch = draw(size)
        spent = self._host.now() - began
        known = [state for state in (before, self._governor.state()) if state is not None]
        self.kept.states.extend(known[-1:])
        reasons = sorted({reason for state in known for reason in state.reasons})
        self._sort(batch, reasons)
        self.kept.stop = self._why_stop()
        if reasons and not self.kept.stop:
            self._host.rest(min(2 * spent, LONGEST_REST_NS))
            return min(size, FIRST_BATCH, self._next_size(size, spent))
        return self._next_size(size, spent)

    def result(self) -> Collected[T]:
        """What was collected; dropped draws, too, where too little else is left."""
        if len(self.kept.draws) < max(self._limits.needed, 1):
            self._make_do()
        return self.kept

    def _make_do(self) -> None:
        """Take back what was dropped, as far as it is usable, and say so."""
        used = self._usable()
        flawed = Counter(draw.flaw for draw in used if draw.flaw)
        if not flawed:
            return
        self.kept.draws = [draw.item for draw in used]
        self.kept.dropped -= flawed
        count = f"{flawed.total()} of {len(used)} samples were" if flawed.total() < len(used) else "every sample was"
        self.kept.notes.append(f"{count} {' or '.join(flawed)}; {MADE_DO}")

    def _usable(self) -> list[_Draw[T]]:
        """All draws that something can be said from at need: a throttled chip slows all that is compared, a gap only
        the call that it falls into."""
        return [draw for draw in self._drawn if draw.flaw != GAPS] or self._drawn

    def _sort(self, batch: Sequence[T], reasons: Sequence[str]) -> None:
        for item in batch:
            flaw = f"throttled ({', '.join(reasons)})" if reasons else "" if self._queued(item) else GAPS
            self._drawn.append(_Draw(item, flaw))
            if flaw:
                self.kept.dropped[flaw] += 1
            else:
                self.kept.draws.append(item)

    def _why_stop(self) -> str:
        limits, spent = self._limits, self._host.now() - self._start
        draws = self.kept.draws
        if not draws and spent > PATIENCE * limits.most_ns:
            draws = [draw.item for draw in self._drawn]
        if len(draws) >= limits.least and self._enough(draws):
            return "precise enough"
        if len(draws) >= limits.most or self.kept.dropped.total() >= 2 * limits.most:
            return "sample limit"
        return "time limit" if spent >= limits.last_ns(len(self._usable())) else ""

    def _next_size(self, size: int, spent: float) -> int:
        limits, elapsed, cost = self._limits, self._host.now() - self._start, max(spent / size, 1.0)
        usable = len(self._usable())
        affordable = int((limits.most_ns - elapsed) / cost)
        missing = min(limits.needed - usable, int((limits.last_ns(usable) - elapsed) / cost))
        wanted = min(LARGEST_BATCH, 4 * size, max(limits.most - len(self.kept.draws), 1))
        return max(1, min(wanted, max(affordable, missing)))
