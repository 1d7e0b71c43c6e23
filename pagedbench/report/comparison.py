"""Comparisons for people and machines: the table, the crossover map, sentences; CSV and Markdown.

What the numbers mean is worked out in `crossover.py`; pictures are in `plots.py`. All text of users goes through
`rich.text.Text`.
"""

from __future__ import annotations

import csv
import io
import re
import string
from collections.abc import Iterator, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pagedbench.report.crossover import (
    MARKS,
    Outcome,
    axes_of,
    cliffs,
    conclusion,
    grids_of,
    marks_told,
    outcome,
    short_names,
    splits_cost,
    values_on,
)
from pagedbench.report.figures import duration, three_digits
from pagedbench.report.fitting import Fitted, InParts
from pagedbench.report.table import style_of
from pagedbench.results.comparison import ComparisonRecord, PairRecord, SideRecord
from pagedbench.timing.measurement import Timed
from pagedbench.words import Verdict

MOST_ROWS = 40
"""Comparisons shown one by one; of more, the map and the sentences are what one reads."""

MOST_STAGED = 12
"""Sides whose stages are told one by one; of more, the picture of stages and the records."""

MOST_REASONS = 12


def render(records: Sequence[ComparisonRecord], *, layers: int | None = None) -> RenderableType:
    """Everything that a terminal of 100 columns shows."""
    parts: list[RenderableType] = []
    one_by_one = len(records) <= MOST_ROWS
    if one_by_one:
        parts.append(Fitted(table(records, layers)))
    for group in grids_of(records):
        if len(group) > 1:
            parts.extend(crossover_map(group))
    for title, lines in (("", _stages(records)), ("", _reasons(records, marked=one_by_one))):
        parts.extend(Text(line) for line in [title, *lines] if line or lines)
    parts.extend(_conclusions(records))
    return Group(*parts)


def _conclusions(records: Sequence[ComparisonRecord]) -> Iterator[Text]:
    yield Text()
    for group in grids_of(records):
        yield Text(conclusion(group), style="bold")
    for line in _remarks(records):
        yield Text(line, style="yellow" if line.startswith("cliff") else "")
    yield Text(circumstances(records), style="dim")


def _remarks(records: Sequence[ComparisonRecord]) -> list[str]:
    """Cliffs, and what a library's own choice of splits costs, grid by grid."""
    grids = grids_of(records)
    return [cliff.sentence() for grid in grids for cliff in cliffs(grid)] + [
        sentence for grid in grids for sentence in splits_cost(grid)
    ]


def circumstances(records: Sequence[ComparisonRecord]) -> str:
    """Device, cache state, heads, dtype and versions, as far as they are the same for all records."""
    first = records[0]
    environment = first.environment
    versions = dict.fromkeys(f"{s.backend} {s.version}" for r in records for s in r.sides if s.version)
    common = [text for text in (first.heads, first.dtype) if all(text in (r.heads, r.dtype) for r in records)]
    cache = f"{first.cache} L2" if first.device != "cpu" else ""
    parts = [str(environment.get("gpu") or environment.get("cpu", first.device)), cache, *common, *versions]
    return " · ".join(part for part in parts if part)


def table(records: Sequence[ComparisonRecord], layers: int | None = None) -> Table:
    """One row a side, each compared with the first of its scenario that has a time."""
    view = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False)
    view.add_column("scenario", overflow="fold")
    view.add_column("side", overflow="fold")
    for name in ("kernel", "call", f"{layers} layers" if layers else "GB/s", "of limit"):
        view.add_column(name, justify="right", no_wrap=True)
    view.add_column("against the first", overflow="fold")
    for record in records:
        for index, (side, name) in enumerate(zip(record.sides, short_names(record), strict=True)):
            scenario = Text(record.scenario if index == 0 else "")
            view.add_row(scenario, Text(name), *_speed(side, layers), _against(record, index))
    return view


def _speed(side: SideRecord, layers: int | None) -> list[Text]:
    measurement = side.measurement
    if measurement is None or measurement.kernel is None:
        word = side.verdict.value if side.verdict is not Verdict.PASS else "–"
        return [Text(word, style_of(side.verdict)), *[Text("–")] * 3]
    kernel, call, roof = measurement.kernel, measurement.call, measurement.roofline
    marked = "!" if measurement.launch_bound else ""
    rate = three_digits(roof.gb_s) if roof else "–"
    return [
        Text(duration(kernel.median / 1e3, _spread(kernel))),
        Text(f"{duration(call.median / 1e3)}{marked}" if call else "–"),
        Text(duration(layers * kernel.median / 1e3) if layers else rate),
        Text(f"{roof.share:.0%} {roof.bound[:3]}" if roof else "–"),
    ]


def _spread(kernel: Timed) -> float | None:
    """Half the interval in microseconds. One sample has none: ±0 would call it exact."""
    return None if len(kernel.samples) == 1 else (kernel.high - kernel.low) / 2e3


def _against(record: ComparisonRecord, index: int) -> Text:
    first = next((i for i, side in enumerate(record.sides) if side.kernel_us is not None), None)
    pair = record.pair(first, index) if first is not None and first < index else None
    if pair is None:
        return Text("")
    ratio, low, high = pair.ratio, pair.low, pair.high  # the first's time over this side's: how much faster this is
    if pair.verdict not in ("faster", "slower"):
        interval = f" [{three_digits(low)}, {three_digits(high)}]" if pair.pairs != 1 else ""
        return Text(f"{pair.told}, {three_digits(ratio)}×{interval}", style="dim")
    if pair.verdict == "faster":  # the first is
        ratio, low, high = 1 / ratio, 1 / high, 1 / low
        word, style = "slower", "red"
    else:
        word, style = "faster", "green"
    return Text.assemble(f"{three_digits(ratio)}× ", (word, style), f" [{three_digits(low)}, {three_digits(high)}]")


def crossover_map(records: Sequence[ComparisonRecord]) -> Iterator[RenderableType]:
    """Where each side wins, columns along the last axis: a letter and how many times as fast it is as the next."""
    axes = axes_of(records)
    if not axes:
        return
    *rows, across = axes
    columns = values_on(records, across)
    names = short_names(records[0])
    letters = [f"{letter} {name}" for letter, name in zip(string.ascii_uppercase, names, strict=False)]
    over = "; columns are keys" if across == "keys" else ""
    yield Text()
    yield Text.assemble(("crossover", "bold"), f"  {', '.join(letters)}: so many times as fast as the next{over}")
    if marks := marks_told(records):
        yield Text(", ".join(marks), style="dim")
    view = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False)
    for name in rows:
        view.add_column(name.replace("_", " "), justify="right")
    for value in columns:
        view.add_column(_short(across, value), justify="right", no_wrap=True)
    for key, line in _rows(records, rows).items():
        by_value = {str(r.facts.get(across)): r for r in line}
        view.add_row(*(Text(part) for part in key), *(_map_cell(by_value.get(str(value))) for value in columns))
    yield InParts(view, len(rows))


def _rows(records: Sequence[ComparisonRecord], rows: Sequence[str]) -> dict[tuple[str, ...], list[ComparisonRecord]]:
    """Records by their values on the axes that make rows, in the order of those values."""
    order = {name: [str(v) for v in values_on(records, name)] for name in rows}
    found: dict[tuple[str, ...], list[ComparisonRecord]] = {}
    for record in records:
        found.setdefault(tuple(str(record.facts.get(name)) for name in rows), []).append(record)
    place = {key: [order[name].index(part) for name, part in zip(rows, key, strict=True)] for key in found}
    return dict(sorted(found.items(), key=lambda item: place[item[0]]))


def _map_cell(record: ComparisonRecord | None) -> Text:
    found = outcome(record) if record else Outcome("none")
    if found.kind in MARKS:
        return Text(MARKS[found.kind], style="dim")
    letter = string.ascii_uppercase[found.side or 0]
    if found.kind == "alone":
        return Text(f"({letter})", style="dim")
    return Text(f"{letter} {three_digits(found.factor)}", style="green" if found.side == 0 else "blue")


def _short(axis: str, value: Any) -> str:
    """Numbers of keys as people say them: 128, 4k, 128k."""
    if axis == "keys" and isinstance(value, int) and value >= 1024 and value % 1024 == 0:
        return f"{value // 1024}k"
    return str(value) if axis == "keys" else f"{axis.replace('_', ' ')} {value}"


def _stages(records: Sequence[ComparisonRecord]) -> list[str]:
    """A line for each side of several stages: what its time goes into."""
    lines = []
    for record in records if len(records) <= MOST_ROWS else ():
        for side in record.sides:
            measurement = side.measurement
            if measurement and len(measurement.stages) > 1:
                told = ", ".join(f"{s.name} {duration(s.median / 1e3)} ({s.share:.0%})" for s in measurement.stages)
                lines.append(f"{record.scenario} {side.target}: {told}")
    more = len(lines) - MOST_STAGED
    return lines if more <= 0 else [*lines[:MOST_STAGED], f"… and {more} more sides (in the records)"]


def _reasons(records: Sequence[ComparisonRecord], *, marked: bool) -> list[str]:
    """Why a side or a whole comparison has no time, and what is odd about those that have; each sentence once.

    `marked`: a table stands above, with a ! at each call that is launch-bound; without one they are counted."""
    lines = []
    for record in records:
        if record.message:
            lines.append(f"{record.scenario}: {record.message}")
        lines.extend(
            f"{record.scenario} {side.target} {side.verdict}: {side.message}"
            for side in record.sides
            if side.verdict is not Verdict.PASS or (side.timing and side.measurement is None)
        )
    shown = _shortened([*dict.fromkeys(lines), *_notes(records)])
    timed = [m for r in records for s in r.sides if (m := s.measurement)]
    if bound := sum(m.launch_bound for m in timed):
        what = "!" if marked else f"{bound} of {len(timed)} times are"
        shown.append(f"{what} launch-bound: the host takes longer to start the call than the device to do it")
    return shown


def _notes(records: Sequence[ComparisonRecord]) -> Iterator[str]:
    """What is odd about times: sentences that differ only in their numbers once, with how many sides they are about."""
    alike: dict[str, list[str]] = {}
    for record in records:
        for side in record.sides:
            measurement = side.measurement
            for note in (*measurement.warnings, *measurement.notes) if measurement else ():
                alike.setdefault(re.sub(r"-?\d+", "", note), []).append(f"{record.scenario} {side.target}: {note}")
    for lines in alike.values():
        yield lines[0] if len(lines) == 1 else f"{lines[0]} [and {len(lines) - 1} more like this]"


def _shortened(lines: list[str]) -> list[str]:
    more = len(lines) - MOST_REASONS
    return lines if more <= 0 else [*lines[:MOST_REASONS], f"… and {more} more (in the records)"]


CSV_COLUMNS = (
    "scenario", "side", "verdict", "kernel_us", "kernel_low_us", "kernel_high_us", "call_us", "gb_per_s",
    "limit_share", "bound", "launch_bound", "against", "ratio", "ratio_low", "ratio_high", "pairs", "compared",
    "message",
)  # fmt: skip


def to_csv(records: Sequence[ComparisonRecord]) -> str:
    """One line a side, the grid's facts in columns of their own; `ratio` is the side's time over that of `against`."""
    facts = list(dict.fromkeys(name for record in records for name in record.facts))
    out = io.StringIO()
    writer = csv.DictWriter(out, [*CSV_COLUMNS, *facts], lineterminator="\n")
    writer.writeheader()
    for record in records:
        for index in range(len(record.sides)):
            writer.writerow({**_csv_row(record, index), **record.facts})
    return out.getvalue()


def _csv_row(record: ComparisonRecord, index: int) -> dict[str, Any]:
    side, measurement = record.sides[index], record.sides[index].measurement
    row: dict[str, Any] = {
        "scenario": record.scenario,
        "side": side.target,
        "verdict": side.verdict.value,
        "message": side.message or record.message,
    }
    if measurement and measurement.kernel:
        kernel, call, roof = measurement.kernel, measurement.call, measurement.roofline
        row |= {
            "kernel_us": kernel.median / 1e3,
            "kernel_low_us": kernel.low / 1e3,
            "kernel_high_us": kernel.high / 1e3,
        }
        row |= {"call_us": call.median / 1e3 if call else None, "launch_bound": measurement.launch_bound}
        row |= {"gb_per_s": roof.gb_s, "limit_share": roof.share, "bound": roof.bound} if roof else {}
    pair = _pair_of(record, index)
    if pair is not None:
        row |= {"against": record.sides[pair.b].target, "ratio": pair.ratio, "compared": pair.compared}
        row |= {"ratio_low": pair.low, "ratio_high": pair.high, "pairs": pair.pairs}
    return row


def _pair_of(record: ComparisonRecord, index: int) -> PairRecord | None:
    """The first pair that is about this side."""
    return next((pair for pair in record.pairs if pair.a == index), None)


def to_markdown(records: Sequence[ComparisonRecord], *, layers: int | None = None) -> str:
    """For a pull request: the conclusion first, then the table, then what has to be said."""
    lines = [f"**{conclusion(group)}**" for group in grids_of(records)]
    lines += ["", "| scenario | side | verdict | kernel | call | against the first |", "|---|---|---|--:|--:|---|"]
    for record in records:
        for index, side in enumerate(record.sides):
            kernel, call, *_ = (cell.plain for cell in _speed(side, layers))
            cells = (record.scenario, side.target, side.verdict.value, kernel, call, _against(record, index).plain)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    said = [*_stages(records), *_remarks(records), *_reasons(records, marked=True)]
    lines += ["", *(f"- {line}" for line in said), "", circumstances(records)]
    return "\n".join(lines) + "\n"
