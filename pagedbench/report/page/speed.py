"""Timings as inline SVG: raw samples as dots, the median's interval as a bar, on one axis a scenario.

Reads what `timing/` recorded (nanoseconds); measures and decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from pagedbench.report.figures import duration, three_digits
from pagedbench.report.page.markup import Safe, folded, tag
from pagedbench.results.record import CellRecord

MOST_DOTS = 150
MOST_OPEN = 12
LABEL, TRACK, VALUE, ROW = 250, 500, 330, 26
# Beyond this ratio of the slowest to the fastest a linear axis would hide the fastest.
LOG_RATIO = 30.0
_SHOWN = ("kernel", "graph", "call", "plan", "total")


@dataclass(frozen=True)
class Line:
    """One quantity to draw, in microseconds: raw samples, the median and the ends of its interval."""

    label: str
    samples: tuple[float, ...]
    median: float
    low: float
    high: float
    remark: str = ""


@dataclass(frozen=True)
class Axis:
    """From microseconds to pixels."""

    start: float
    end: float
    log: bool

    def x(self, value: float) -> float:
        """The place of a value on the track, kept within it."""
        if self.log:
            part = math.log(max(value, self.start) / self.start) / math.log(self.end / self.start)
        else:
            part = (value - self.start) / (self.end - self.start)
        return LABEL + TRACK * min(max(part, 0.0), 1.0)


def quantity(record: CellRecord, name: str) -> Line | None:
    """A timed quantity of a record as a line; None where it was not measured, or must not be used. Only the kernel's
    samples are drawn."""
    timing = record.timing or {}
    stored: Mapping[str, Any] | None = (timing.get("quantities") or {}).get(name)
    if timing.get("invalid") or not stored or not stored.get("samples"):
        return None
    low, median, high = (float(stored[key]) / 1e3 for key in ("low", "median", "high"))
    samples = tuple(float(s) / 1e3 for s in stored["samples"]) if name == "kernel" else (median,)
    return Line(name, samples, median, low, high)


def of_cell(record: CellRecord) -> Safe | None:
    """All quantities of one cell."""
    lines = [line for name in _SHOWN if (line := quantity(record, name)) is not None]
    return chart(lines, f"Times of {record.scenario} {record.target}") if lines else None


def by_scenario(records: Sequence[CellRecord]) -> list[Safe]:
    """A chart a scenario, its cells from the fastest to the slowest."""
    groups: dict[str, list[Line]] = {}
    for record in records:
        line = quantity(record, "kernel")
        if line is not None and record.time_us is not None:
            groups.setdefault(record.scenario, []).append(
                Line(record.target, line.samples, line.median, line.low, line.high, _remark(record))
            )
    open_ = len(groups) <= MOST_OPEN
    return [
        folded(name, chart(sorted(lines, key=lambda line: line.median), f"Times of {name}"), open_=open_)
        for name, lines in groups.items()
    ]


def share(part: float) -> str:
    """A share as whole per cent, small ones not as nothing."""
    return "<1%" if 0 < part < 0.01 else f"{part:.0%}"


def _remark(record: CellRecord) -> str:
    parts = [f"{three_digits(record.gb_per_s)} GB/s"] if record.gb_per_s is not None else []
    if record.limit_share is not None:
        parts.append(f"{share(record.limit_share)} of the limit")
    return ", ".join(parts)


def chart(lines: Sequence[Line], title: str) -> Safe:
    """One row a line over a common axis. Far outliers stand at the axis's end."""
    axis = axis_for(lines)
    height = ROW * len(lines) + 24
    rows = [_row(line, axis, ROW * index) for index, line in enumerate(lines)]
    scale = _scale(axis, ROW * len(lines))
    width = LABEL + TRACK + VALUE
    return Safe(
        f'<svg class="times" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">'
        f"{scale}{''.join(rows)}</svg>"
    )


def axis_for(lines: Sequence[Line]) -> Axis:
    """From zero to a little beyond the slowest median's own samples, logarithmic where the medians are far apart."""
    medians = [line.median for line in lines]
    # A few far outliers must not squeeze everything else into a corner.
    far = 2.5 * max(medians)
    top = 1.05 * max(max(line.high, min(_quantile(line.samples, 0.95), far)) for line in lines)
    lowest = min(medians)
    if lowest > 0 and max(medians) / lowest > LOG_RATIO:
        return Axis(min(line.low for line in lines) / 1.3, top, log=True)
    return Axis(0.0, top or 1.0, log=False)


def _quantile(samples: Sequence[float], part: float) -> float:
    ordered = sorted(samples)
    return ordered[min(int(part * len(ordered)), len(ordered) - 1)]


def _row(line: Line, axis: Axis, top: float) -> str:
    middle = top + ROW / 2
    low, high, median = axis.x(line.low), axis.x(line.high), axis.x(line.median)
    value = duration(line.median, max(line.high - line.median, line.median - line.low))
    remark = f" · {line.remark}" if line.remark else ""
    name = line.label if len(line.label) <= 34 else "…" + line.label[-33:]
    return (
        f'<g><text class="name" x="{LABEL - 10}" y="{middle + 4}">{escape(name)}'
        f"<title>{escape(line.label)}</title></text>"
        f'<line class="track" x1="{LABEL}" x2="{LABEL + TRACK}" y1="{middle}" y2="{middle}"/>'
        f"{_dots(line, axis, middle)}"
        f'<rect class="interval" x="{low:.1f}" y="{middle - 5}" width="{max(high - low, 2):.1f}" height="10" rx="2">'
        f"<title>{escape(f'median {duration(line.median)}, between {duration(line.low)} and {duration(line.high)}')}"
        f"</title></rect>"
        f'<line class="median" x1="{median:.1f}" x2="{median:.1f}" y1="{middle - 8}" y2="{middle + 8}"/>'
        f'<text x="{LABEL + TRACK + 10}" y="{middle + 4}">{escape(value)}'
        f'<tspan class="faint">{escape(remark)}</tspan></text></g>'
    )


def _dots(line: Line, axis: Axis, middle: float) -> str:
    """The samples in order of time, evenly thinned, drifting downwards so that a trend can be seen."""
    step = max(1, math.ceil(len(line.samples) / MOST_DOTS))
    shown = line.samples[::step]
    # One path of points instead of an element each: a page may hold thousands of cells.
    points = "".join(
        f"M{axis.x(sample):.1f} {middle - 6 + 12 * i / max(len(shown) - 1, 1):.1f}h0" for i, sample in enumerate(shown)
    )
    return f'<path class="dot" d="{points}"/>'


def _scale(axis: Axis, bottom: float) -> str:
    """Tick lines with their times."""
    parts = [
        f'<line class="grid" x1="{axis.x(t):.1f}" x2="{axis.x(t):.1f}" y1="0" y2="{bottom}"/>'
        f'<text class="tick" x="{axis.x(t):.1f}" y="{bottom + 16}">{escape(duration(t) if t else "0")}</text>'
        for t in ticks(axis)
    ]
    kind = f'<text class="tick" x="{LABEL - 10}" y="{bottom + 16}" style="text-anchor:end">log scale</text>'
    return "".join(parts) + (kind if axis.log else "")


def ticks(axis: Axis) -> list[float]:
    """Round values on the axis: four or five where it is linear, the powers of ten where it is not."""
    if axis.log:
        powers = range(math.ceil(math.log10(axis.start)), math.floor(math.log10(axis.end)) + 1)
        return [10.0**power for power in powers]
    rough = axis.end / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    return [step * i for i in range(int(axis.end / step) + 1)]


def section(records: Sequence[CellRecord]) -> Safe | None:
    """The section on speed; None where nothing was timed."""
    charts = by_scenario(records)
    if not charts:
        return None
    caption = (
        "Kernel time. Dots are raw samples from the first (top) to the last (bottom), the bar is the interval of the "
        "median, the tick the median. Samples beyond the axis stand at its end."
    )
    return tag("section", tag("h2", "Speed"), tag("p", caption, class_="quiet"), charts, id="speed")
