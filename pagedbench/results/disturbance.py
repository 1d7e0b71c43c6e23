"""Whether the machine can be why times differ, and not the kernel: what a speed verdict must exclude.

Reads what the timing noted in each process's record; the statistics of the times are `timing/stats.py`'s. Processes of
one run stand close in time, so that their spread tells nothing of what changes from one hour to the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from pagedbench.results.record import CellRecord
from pagedbench.timing.measurement import INTERFERENCE, MADE_DO
from pagedbench.timing.stats import Regression

PEAKS = ("peak_gb_s", "peak_tflop_s")


def doubt(found: Regression, new: Sequence[CellRecord], old: Sequence[CellRecord], margin: float) -> str | None:
    """Why the machine may explain a change, as a clause; None if nothing of it is known.

    Other programs beside any of the processes do, and a clock of the chip that was lower on the slower side by as much
    as the times differ. Where the clocks are not known, a chip that was throttled in most processes of the slower side,
    but not of the other, does: a power cap is often announced by a chip that keeps its highest clock. On a CPU, whose
    speed depends on neighbours that no note tells of, so do its own peaks where they differ as much as the times.
    """
    ours, theirs = _timings(new), _timings(old)
    both = [*ours, *theirs]
    busy = sum(_noted(timing, INTERFERENCE) for timing in both)
    if busy:
        return f"other programs ran beside {busy} of {len(both)} processes"
    slower, quicker = (ours, theirs) if found.change == "slower" else (theirs, ours)
    low, high = _clock(slower), _clock(quicker)
    if low and high:
        if _explains(found, high / low, margin):
            return f"the chip's clock was {low:,.0f} MHz on the slower side, {high:,.0f} MHz on the other"
    elif _throttled(slower) and not _throttled(quicker):
        return "the chip was throttled on the slower side"
    if all(record.device == "cpu" for record in (*new, *old)):
        return _slower_machine(found, ours, theirs, margin)
    return None


def _explains(found: Regression, factor: float, margin: float) -> bool:
    """Whether a machine that was `factor` times as slow on the slower side may be all there is to a change."""
    least = found.low if found.change == "slower" else 1 / found.high
    return factor > 1 and least <= factor / (1 - margin)


def _clock(timings: Sequence[Mapping[str, Any]]) -> float | None:
    """The SM clock of most processes, in MHz; None where one of them does not know it."""
    clocks = [float(clock) for timing in timings if (clock := timing.get("sm_mhz"))]
    return median(clocks) if clocks and len(clocks) == len(timings) else None


def _slower_machine(
    found: Regression, new: Sequence[Mapping[str, Any]], old: Sequence[Mapping[str, Any]], margin: float
) -> str | None:
    """Whether the machine's own peaks, measured in the same processes, changed by as much as the times."""
    factors = [a / b for name in PEAKS if (a := _peak(old, name)) and (b := _peak(new, name))]
    slowest, quickest = max([1.0, *factors]), min([1.0, *factors])
    if found.change == "slower" and _explains(found, slowest, margin):
        return f"the machine itself was {slowest:.2f} times as slow"
    if found.change == "faster" and _explains(found, 1 / quickest, margin):
        return f"the machine itself was {1 / quickest:.2f} times as fast"
    return None


def _timings(records: Sequence[CellRecord]) -> list[Mapping[str, Any]]:
    return [record.timing for record in records if record.timing is not None]


def _throttled(timings: Sequence[Mapping[str, Any]]) -> bool:
    return 2 * sum(_noted(timing, MADE_DO) for timing in timings) > len(timings)


def _noted(timing: Mapping[str, Any], text: str) -> bool:
    return any(text in note for note in timing.get("notes", ()))


def _peak(timings: Sequence[Mapping[str, Any]], name: str) -> float | None:
    found = [roofline[name] for timing in timings if (roofline := timing.get("roofline"))]
    return median(found) if found else None
