"""How often to measure: batches of calls until the answer is sure enough, or a limit is reached, and which.

Knows nothing of what is drawn. Draws from a throttled chip, and those for which the device waited for the host, are
dropped and counted; when that leaves nothing, they are kept and it is said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from pagedbench.timing.throttle import ChipState, Governor

T = TypeVar("T")
FIRST_BATCH = 16
LARGEST_BATCH = 50


@dataclass(frozen=True)
class Limits:
    """Least and most draws to keep, the most time to spend, and what a draw is expected to cost; times in ns."""

    least: int
    most: int
    most_ns: float
    expected_ns: float = 0.0

    @property
    def first_batch(self) -> int:
        """A batch that spends at most an eighth of the time."""
        affordable = int(self.most_ns / 8 / max(self.expected_ns, 1.0))
        return max(1, min(FIRST_BATCH, self.most, affordable))


@dataclass
class Collected(Generic[T]):
    """What was kept, in order; `stop` is why sampling ended; `dropped` counts by reason; `notes` are for a person."""

    draws: list[T] = field(default_factory=list)
    stop: str = ""
    dropped: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    states: list[ChipState] = field(default_factory=list)


def collect(
    draw: Callable[[int], Sequence[T]],
    enough: Callable[[Sequence[T]], bool],
    limits: Limits,
    *,
    now: Callable[[], int],
    governor: Governor,
    queued: Callable[[T], bool] = lambda _: True,
) -> Collected[T]:
    """Draw until `enough` of the kept draws, or a limit.

    `draw(n)` measures n calls. Batches grow so that a quick call is drawn often before it is judged again, and a slow
    one keeps to the time limit. `queued` tells whether a draw was free of launch gaps.
    """
    kept: Collected[T] = Collected()
    spare: list[T] = []
    start, size = now(), limits.first_batch
    while not kept.stop:
        before, began = governor.state(), now()
        batch = draw(size)
        after, spent = governor.state(), now() - began
        _sort(batch, (before, after), queued, kept, spare)
        kept.stop = _why_stop(kept, enough, limits, now() - start, len(kept.draws) + len(spare))
        size = _next_size(size, spent, limits, now() - start, len(kept.draws))
    if not kept.draws and spare:
        kept.draws = spare
        reasons = " and ".join(kept.dropped)
        kept.notes.append(f"every sample was {reasons}; they are shown for want of better ones")
        kept.dropped.clear()
    return kept


def _sort(
    batch: Sequence[T],
    states: tuple[ChipState | None, ChipState | None],
    queued: Callable[[T], bool],
    kept: Collected[T],
    spare: list[T],
) -> None:
    known = [state for state in states if state is not None]
    kept.states.extend(known[-1:])
    reasons = {reason for state in known for reason in state.reasons}
    for item in batch:
        if reasons:
            kept.dropped[f"throttled ({', '.join(sorted(reasons))})"] += 1
            spare.append(item)
        elif not queued(item):
            kept.dropped["interrupted by launch gaps"] += 1
            spare.append(item)
        else:
            kept.draws.append(item)


def _why_stop(
    kept: Collected[T], enough: Callable[[Sequence[T]], bool], limits: Limits, spent: float, seen: int
) -> str:
    if len(kept.draws) >= limits.least and enough(kept.draws):
        return "precise enough"
    if len(kept.draws) >= limits.most or seen >= 2 * limits.most:
        return "sample limit"
    if spent >= limits.most_ns:
        return "time limit"
    return ""


def _next_size(size: int, spent: float, limits: Limits, elapsed: float, have: int) -> int:
    cost = max(spent / size, 1.0)
    affordable = int((limits.most_ns - elapsed) / cost)
    wanted = min(LARGEST_BATCH, 4 * size, max(limits.most - have, 1))
    return max(1, min(wanted, affordable))
