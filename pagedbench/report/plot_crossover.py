"""The crossover map as a picture: who wins where and how many times, and the ratio of two sides with its interval."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pagedbench.report.crossover import MARKS, Outcome, axes_of, marks_told, outcome, short_names, values_on
from pagedbench.report.plot_style import COLOURS, HATCHES, MARKERS, finish, literal, require_matplotlib
from pagedbench.results.comparison import ComparisonRecord

NARROW = 5.0
"""Ratios that differ by less than this factor are read from an axis of evenly spaced numbers."""


def crossover_figure(records: Sequence[ComparisonRecord], caption: str) -> Any:
    """Where each side wins and by how much: a map, and under it the ratio of the first two sides with its interval."""
    plt = require_matplotlib()
    axes = axes_of(records)
    *rows, across = axes or ["batch"]
    columns = values_on(records, across)
    lines: dict[tuple[str, ...], dict[str, ComparisonRecord]] = {}
    for record in sorted(records, key=lambda r: [values_on(records, n).index(r.facts.get(n)) for n in rows]):
        key = tuple(f"{name.replace('_', ' ')} {record.facts.get(name)}" for name in rows)
        lines.setdefault(key, {})[str(record.facts.get(across))] = record
    height = 1.0 + 0.5 * len(lines)
    width = max(8, 2 + 0.85 * len(columns))
    figure, (chart, ratios) = plt.subplots(
        2, 1, figsize=(width, height + 3.4), height_ratios=[height, 3.0], layout="constrained"
    )
    _draw_map(chart, lines, columns, across)
    chart.set_xlabel("\n".join([across.replace("_", " "), ", ".join(marks_told(records))]), fontsize=8)
    _draw_ratios(ratios, records, lines, columns, across)
    finish(figure, chart, _map_title(records), caption)
    return figure


def _map_title(records: Sequence[ComparisonRecord]) -> str:
    names = short_names(records[0])
    letters = ", ".join(f"{letter} = {name}" for letter, name in zip(string.ascii_uppercase, names, strict=False))
    return literal(f"Who is faster, and how many times: {letters}")


@dataclass(frozen=True)
class _MapCell:
    """How one cell of the map looks: the winner's colour and hatch, stronger the more it wins by, and the text."""

    text: str
    colour: str
    hatch: str = ""
    strength: float = 1.0

    @classmethod
    def of(cls, record: ComparisonRecord | None) -> _MapCell:
        found = outcome(record) if record else Outcome("none")
        if found.kind in MARKS:
            return cls(MARKS[found.kind], "white" if found.kind == "tie" else "#f2f2f2")
        side = found.side or 0
        letter = string.ascii_uppercase[side]
        if found.kind == "alone":
            return cls(f"({letter})", "#f2f2f2")
        strength = min(1.0, 0.35 + 0.3 * (found.factor - 1))
        return cls(f"{letter} {found.factor:.2g}×", COLOURS[side % 8], HATCHES[side % 8], strength)


def _draw_map(
    chart: Any,
    lines: dict[tuple[str, ...], dict[str, ComparisonRecord]],
    columns: Sequence[Any],
    across: str,
) -> None:
    from matplotlib.patches import Rectangle

    box = {"facecolor": "white", "alpha": 0.85, "edgecolor": "none", "pad": 1.5}
    for y, by_value in enumerate(lines.values()):
        for x, value in enumerate(columns):
            cell = _MapCell.of(by_value.get(str(value)))
            styles: tuple[dict[str, Any], ...] = (
                {"facecolor": cell.colour, "alpha": cell.strength, "edgecolor": "none"},
                {"fill": False, "hatch": cell.hatch, "edgecolor": "#00000055", "linewidth": 0.0},
                {"fill": False, "edgecolor": "white", "linewidth": 2.0},
            )
            for style in styles:
                chart.add_patch(Rectangle((x, y), 1, 1, **style))
            chart.text(x + 0.5, y + 0.5, cell.text, ha="center", va="center", fontsize=8, bbox=box)
    chart.set_xlim(0, len(columns))
    chart.set_ylim(len(lines), 0)
    chart.set_xticks([x + 0.5 for x in range(len(columns))], [_tick(v) for v in columns], fontsize=8)
    chart.set_yticks([y + 0.5 for y in range(len(lines))], [", ".join(key) for key in lines], fontsize=8)
    chart.tick_params(length=0)


def _draw_ratios(
    ratios: Any,
    records: Sequence[ComparisonRecord],
    lines: dict[tuple[str, ...], dict[str, ComparisonRecord]],
    columns: Sequence[Any],
    across: str,
) -> None:
    """The time of the second side over that of the first, with intervals: over 1, the first is faster.

    Pairs that are too few have no interval worth drawing.
    """
    for number, (key, by_value) in enumerate(lines.items()):
        found = [(x, r.pair()) for x, v in enumerate(columns) if (r := by_value.get(str(v))) is not None]
        points = [(x, 1 / p.ratio, 1 / p.high, 1 / p.low) for x, p in found if p and not p.too_few and p.low > 0]
        if not points:
            continue
        xs, middle, low, high = (list(column) for column in zip(*points, strict=True))
        spread = [
            [m - b for m, b in zip(middle, low, strict=True)], [t - m for m, t in zip(middle, high, strict=True)]
        ]  # fmt: skip
        offset = [x + 0.5 + 0.04 * (number - (len(lines) - 1) / 2) for x in xs]
        ratios.errorbar(
            offset, middle, yerr=spread, color=COLOURS[number % 8], marker=MARKERS[number % 8], markersize=5,
            linestyle=("-", "--", "-.", ":")[(number + number // 8) % 4], linewidth=1.1, capsize=3,
            markerfacecolor="white" if number // 8 % 2 else None,
            label=", ".join(key) or None,
        )  # fmt: skip
    _dress_ratios(ratios, short_names(records[0]), columns, across)
    if len(lines) > 1:
        ratios.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _dress_ratios(ratios: Any, names: Sequence[str], columns: Sequence[Any], across: str) -> None:
    """The equivalence margin, the line of equal times, and an axis of ratios that reads 0.5, 1, 2, or finer where they
    span less: an axis with one number could not be read."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, ScalarFormatter

    ratios.axhspan(0.99, 1.01, color="#bbbbbb", alpha=0.6, zorder=0)
    ratios.axhline(1.0, color="black", linewidth=0.8)
    ratios.set_yscale("log")
    ratios.set_xlim(0, len(columns))
    ratios.set_xticks([x + 0.5 for x in range(len(columns))], [_tick(v) for v in columns], fontsize=8)
    ratios.set_xlabel(across.replace("_", " "))
    ratios.set_ylabel(literal(f"time of {names[1]}\nover {names[0]}"), fontsize=8)
    low, high = ratios.get_ylim()
    narrow = high < NARROW * low
    ratios.yaxis.set_major_locator(MaxNLocator(5) if narrow else LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
    ratios.yaxis.set_major_formatter(ScalarFormatter())
    ratios.yaxis.set_minor_formatter(NullFormatter())
    for side in ("top", "right"):
        ratios.spines[side].set_visible(False)


def _tick(value: Any) -> str:
    if isinstance(value, int) and value >= 1024 and value % 1024 == 0:
        return f"{value // 1024}k"
    return str(value)
