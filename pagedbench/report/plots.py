"""Pictures of records: bars with intervals, the roofline, stages stacked, the crossover map. Needs matplotlib.

Readable in black and white and by the colour-blind: sides differ by hatch and marker as well as by colour (Okabe and
Ito's palette), and every number that matters is written out. Each picture says on what it was measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagedbench.errors import CannotWrite, UsageError
from pagedbench.report.crossover import grids_of
from pagedbench.report.figures import three_digits
from pagedbench.report.plot_crossover import crossover_figure
from pagedbench.report.plot_style import finish, legend_handles, literal, look_of, require_matplotlib
from pagedbench.results.comparison import ComparisonRecord
from pagedbench.results.record import CellRecord
from pagedbench.timing.measurement import Measurement

__all__ = ["Entry", "plot_cells", "plot_comparisons", "plot_entries", "require_matplotlib"]

FORMS = ("", ".png", ".svg", ".pdf")
MOST_BARS = 60
WIDE = 30.0
"""Times that differ by more than this factor are shown as points on a logarithmic axis."""


@dataclass(frozen=True)
class Entry:
    """One measured call: where it stands in the picture (`group`), whose it is (`side`), what was measured; names as
    `literal` gives them."""

    group: str
    side: str
    measurement: Measurement

    @property
    def us(self) -> tuple[float, float, float]:
        """Median, lower and upper end of the kernel time, in microseconds."""
        kernel = self.measurement.kernel
        assert kernel is not None, "entries are made of measured calls"
        return kernel.median / 1e3, kernel.low / 1e3, kernel.high / 1e3


def plot_comparisons(records: Sequence[ComparisonRecord], file: Path) -> list[Path]:
    """Draw all that comparisons have to show; `file` gives folder, stem and form (`.png`, `.svg`). Returns files."""
    entries = [
        Entry(literal(record.scenario), literal(side.target), measurement)
        for record in records
        for side in record.sides
        if (measurement := side.measurement) and measurement.kernel
    ]
    caption = comparison_caption(records)
    drawn = plot_entries(entries, caption, file)
    for number, group in enumerate(g for g in grids_of(records) if len(g) > 1 and len(g[0].sides) > 1):
        name = "crossover" if number == 0 else f"crossover-{number + 1}"
        drawn.extend(_save(crossover_figure(group, caption), file, name))
    return drawn


def plot_cells(records: Sequence[CellRecord], file: Path) -> list[Path]:
    """Draw the times of a run's cells. Returns the files; none where nothing was timed."""
    entries = []
    for record in records:
        measurement = Measurement.from_dict(record.timing) if record.timing else None
        if measurement and measurement.kernel and measurement.invalid is None:
            entries.append(Entry(literal(record.scenario), literal(record.target), measurement))
    return plot_entries(entries, cell_caption(records), file) if entries else []


def plot_entries(entries: Sequence[Entry], caption: str, file: Path) -> list[Path]:
    """Bars, and, where there is something to show, the roofline and the stages."""
    if not entries:
        return []
    drawn = list(_save(bars_figure(entries[:MOST_BARS], _cut(caption, entries)), file, "bars"))
    if any(_has_work(entry) for entry in entries):
        drawn.extend(_save(roofline_figure(entries, caption), file, "roofline"))
    staged = [entry for entry in entries if len(entry.measurement.stages) > 1]
    if staged:
        drawn.extend(_save(stages_figure(staged[:MOST_BARS], _cut(caption, staged)), file, "stages"))
    return drawn


def _cut(caption: str, entries: Sequence[Entry]) -> str:
    """The caption of a picture that has room for some of the calls only."""
    return caption if len(entries) <= MOST_BARS else f"{caption}  ·  the first {MOST_BARS} of {len(entries)} calls"


def require_picture_form(file: Path) -> None:
    """Raises `UsageError` for a name that no picture can have; one without an ending becomes a PNG."""
    if file.suffix.lower() not in FORMS:
        raise UsageError(f"a picture cannot be written as {file.suffix!r}", hint="name it .png, .svg or .pdf")


def _save(figure: Any, file: Path, kind: str) -> Iterator[Path]:
    plt = require_matplotlib()
    suffix = file.suffix or ".png"
    path = file.with_name(f"{file.stem}-{kind}{suffix}")
    require_picture_form(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150, bbox_inches="tight")
    except OSError as error:
        raise CannotWrite(path, error.strerror) from error
    finally:
        plt.close(figure)
    yield path


def comparison_caption(records: Sequence[ComparisonRecord]) -> str:
    """On what comparisons were measured: device, cache state, heads, dtype, versions."""
    first = records[0]
    versions = dict.fromkeys(f"{s.backend} {s.version}" for r in records for s in r.sides if s.version)
    cache = f"{first.cache} L2" if first.device != "cpu" else "CPU"
    heads = first.heads if all(r.heads == first.heads for r in records) else "heads differ"
    dtypes = "/".join(dict.fromkeys(r.dtype for r in records))
    return _caption(first.environment, [cache, heads, dtypes, *versions])


def cell_caption(records: Sequence[CellRecord]) -> str:
    """On what a run's cells were measured: of those that were timed, and have a place in the picture."""
    first = records[0]
    timed = [record for record in records if record.time_us is not None] or records
    heads = list(dict.fromkeys(record.heads for record in timed))
    dtypes = "/".join(dict.fromkeys(record.dtype for record in timed if record.dtype))
    versions = dict.fromkeys(
        f"{r.backend} {r.environment['backend_version']}" for r in records if r.environment.get("backend_version")
    )
    caches = dict.fromkeys(f"{r.timing['cache']} L2" for r in records if r.timing and r.device != "cpu")
    told = heads[0] if len(heads) == 1 else "heads differ"
    return _caption(first.environment, [*caches, told, dtypes, *versions])


def _caption(environment: dict[str, Any], parts: Sequence[str]) -> str:
    device = str(environment.get("gpu") or environment.get("cpu") or "unknown device")
    torch = f"torch {environment['torch']}" if environment.get("torch") else ""
    driver = f"driver {environment['driver']}" if environment.get("driver") else ""
    return "  ·  ".join(dict.fromkeys(part for part in (device, *parts, torch, driver) if part))


def bars_figure(entries: Sequence[Entry], caption: str) -> Any:
    """Kernel times, a group of bars a scenario, with the interval of each median."""
    plt = require_matplotlib()
    look = look_of([entry.side for entry in entries])
    figure, axes = plt.subplots(figsize=(8, 1.2 + 0.36 * len(entries)), layout="constrained")
    groups = list(dict.fromkeys(entry.group for entry in entries))
    medians = [entry.us[0] for entry in entries]
    spread_wide = max(medians) > WIDE * max(min(medians), 1e-3)  # bars have no length on a logarithmic axis
    position, ticks = 0.0, []
    for group in groups:
        own = [entry for entry in entries if entry.group == group]
        ticks.append(position + (len(own) - 1) / 2)
        for entry in own:
            _bar(axes, position, entry, look[entry.side], as_point=spread_wide)
            position += 1
        position += 0.6
    axes.set_yticks(ticks, groups, fontsize=8)
    axes.set_ylim(position - 0.6, -1)  # from the top down; margins in per cent would be wide bands in a long chart
    if spread_wide:
        axes.set_xscale("log")
        axes.grid(True, axis="x", which="major", color="#dddddd", linewidth=0.6)
    axes.set_xlabel("kernel time, µs (median and its 95 % interval)")
    axes.margins(x=0.15)
    figure.legend(
        legend_handles(look, as_points=spread_wide),
        list(look),
        fontsize=8,
        frameon=False,
        loc="outside upper right",
        ncols=min(len(look), 3),
    )
    finish(figure, axes, "Kernel time", caption)
    return figure


def _bar(axes: Any, position: float, entry: Entry, look: dict[str, Any], *, as_point: bool) -> None:
    median, low, high = entry.us
    style = {"color": look["colour"], "edgecolor": "black", "linewidth": 0.6}
    if as_point:
        axes.scatter([median], [position], marker=look["marker"], s=45, zorder=3, **style)
    else:
        axes.barh(position, median, height=0.9, hatch=look["hatch"], **style)
    axes.errorbar(
        median, position, xerr=[[median - low], [high - median]], color="black", capsize=3, linewidth=1.2, fmt="none"
    )
    axes.annotate(
        f"{median:,.1f}", (high, position), xytext=(5, 0), textcoords="offset points", va="center", fontsize=7
    )


def roofline_figure(entries: Sequence[Entry], caption: str) -> Any:
    """Achieved TFLOP/s over arithmetic intensity, under the limits measured on the device. What has nothing to compute
    has no place in it."""
    plt = require_matplotlib()
    placed = [entry for entry in entries if _has_work(entry)]
    look = look_of([entry.side for entry in placed])
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    points: dict[str, list[tuple[float, float]]] = {}
    for entry in placed:
        roof = entry.measurement.roofline
        assert roof is not None, "only placed entries are drawn"
        points.setdefault(entry.side, []).append((roof.flops / roof.bytes, roof.tflop_s))
    _roof(axes, placed, [x for own in points.values() for x, _ in own])
    for side, own in points.items():
        xs, ys = zip(*own, strict=True)
        style = {"color": look[side]["colour"], "marker": look[side]["marker"]}
        axes.scatter(xs, ys, s=45, edgecolors="black", linewidths=0.6, label=side, zorder=3, **style)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("arithmetic intensity, FLOP a byte that must move")
    axes.set_ylabel("achieved TFLOP/s (kernel time)")
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    axes.legend(fontsize=8, frameon=False, loc="lower right")
    finish(figure, axes, "Roofline", caption)
    return figure


def _has_work(entry: Entry) -> bool:
    roof = entry.measurement.roofline
    return roof is not None and min(roof.flops, roof.bytes, roof.tflop_s) > 0


def _roof(axes: Any, placed: Sequence[Entry], intensities: Sequence[float]) -> None:
    """The two limits, named where they are drawn."""
    roof = placed[0].measurement.roofline
    assert roof is not None, "only placed entries are drawn"
    ridge = roof.peak_tflop_s * 1e3 / roof.peak_gb_s
    low, high = min(*intensities, ridge) / 3, max(*intensities, ridge) * 3
    slope = roof.peak_gb_s / 1e3
    axes.plot([low, ridge, high], [low * slope, roof.peak_tflop_s, roof.peak_tflop_s], color="black", linewidth=1.4)
    axes.annotate(
        f"reading, {three_digits(roof.peak_gb_s)} GB/s", (ridge / 3, ridge / 3 * slope), xytext=(-8, 8), fontsize=8,
        textcoords="offset points", ha="right",
    )  # fmt: skip
    axes.annotate(
        f"matrix product, {three_digits(roof.peak_tflop_s)} TFLOP/s", (high, roof.peak_tflop_s), xytext=(0, 5),
        fontsize=8, textcoords="offset points", ha="right",
    )  # fmt: skip


def stages_figure(entries: Sequence[Entry], caption: str) -> Any:
    """What the time of each call goes into, its stages one after the other; as shares where calls differ too widely."""
    plt = require_matplotlib()
    totals = [sum(stage.median for stage in entry.measurement.stages) for entry in entries]
    shares = max(totals) > WIDE * min(totals)
    names = list(dict.fromkeys(stage.name for entry in entries for stage in entry.measurement.stages))
    look = look_of(names)
    figure, axes = plt.subplots(figsize=(8, 1.4 + 0.4 * len(entries)), layout="constrained")
    widest = 100e3 if shares else max(totals)
    for position, (entry, total) in enumerate(zip(entries, totals, strict=True)):
        left, scale = 0.0, 100e3 / total if shares and total else 1.0
        for stage in entry.measurement.stages:
            style = {"color": look[stage.name]["colour"], "hatch": look[stage.name]["hatch"]}
            length = stage.median * scale
            axes.barh(position, length / 1e3, left=left, height=0.8, edgecolor="black", linewidth=0.6, **style)
            if length > 0.06 * widest:
                box = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
                middle = left + length / 2e3
                axes.text(middle, position, f"{stage.share:.0%}", ha="center", va="center", fontsize=7, bbox=box)
            left += length / 1e3
        at = {"xytext": (4, 0), "textcoords": "offset points", "va": "center", "fontsize": 7}
        axes.annotate(f"{total / 1e3:,.1f} µs", (left, position), **at)
    axes.set_yticks(range(len(entries)), [f"{e.group}\n{e.side}" for e in entries], fontsize=7)
    axes.set_ylim(len(entries) - 0.4, -0.6)
    axes.set_xlabel("share of device time, %" if shares else "device time, µs (medians of the stages)")
    axes.margins(x=0.1)
    figure.legend(
        legend_handles(look, as_points=False),
        names,
        fontsize=8,
        frameon=False,
        loc="outside upper right",
        ncols=len(names),
    )
    finish(figure, axes, "Stages", caption)
    return figure
