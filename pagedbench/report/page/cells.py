"""All cells as a table that a script filters and sorts; without it the table is whole, in the order of need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pagedbench.report.figures import duration, of_budget, three_digits
from pagedbench.report.page.cards import anchor, badge, details, kind
from pagedbench.report.page.markup import Safe, tag
from pagedbench.report.page.speed import of_cell, share
from pagedbench.report.story import failures_first, standing
from pagedbench.report.table import reason_of_skip
from pagedbench.results.record import CellRecord
from pagedbench.words import Verdict

_SPEED = ("time", "GB/s", "TFLOP/s", "of the limit")


def chips(records: Sequence[CellRecord]) -> Safe:
    """One button a verdict that occurs, with its count: pressed, only its cells are shown."""
    counts = Counter(r.verdict for r in records)
    ordered = sorted(counts, key=lambda verdict: (standing(verdict), verdict.value))
    return tag("div", [_chip(verdict, counts[verdict]) for verdict in ordered], class_="chips")


def _chip(verdict: Verdict, count: int) -> Safe:
    return tag(
        "button",
        tag("b", count),
        " ",
        verdict.value,
        type="button",
        class_=f"chip {kind(verdict)}",
        data_verdict=verdict.value,
        aria_pressed="false",
    )


def table(records: Sequence[CellRecord]) -> Safe:
    """A row a cell, each followed by a row of details that opens on a click."""
    timed = any(r.time_us is not None for r in records)
    names = ["verdict", "scenario", "backend", "path", "error/budget", *(_SPEED if timed else ())]
    head = [
        tag("th", tag("button", name, type="button"), class_="number" if i > 3 else None)
        for i, name in enumerate(names)
    ]
    body = [_rows(record, len(names), timed=timed) for record in failures_first(records)]
    return tag("table", tag("thead", tag("tr", head)), [tag("tbody", rows) for rows in body], id="cells")


def _rows(record: CellRecord, columns: int, *, timed: bool) -> Safe:
    words = " ".join((record.scenario, record.backend, record.path, record.verdict.value, record.message)).lower()
    cells = [
        tag("td", badge(record.verdict)),
        tag("td", record.scenario),
        tag("td", record.backend),
        tag("td", record.path),
        _number(record.worst_error, _error(record)),
    ]
    if timed:
        cells += [
            _number(record.time_us, duration(record.time_us, record.spread_us) if record.time_us is not None else ""),
            _number(record.gb_per_s, "" if record.gb_per_s is None else three_digits(record.gb_per_s)),
            _number(record.tflop_per_s, "" if record.tflop_per_s is None else three_digits(record.tflop_per_s)),
            _number(record.limit_share, "" if record.limit_share is None else share(record.limit_share)),
        ]
    row = tag("tr", cells, class_="cell", data_verdict=record.verdict.value, data_words=words, tabindex="0")
    return Safe(row + tag("tr", tag("td", _more(record), colspan=columns), class_="more", hidden=""))


def _error(record: CellRecord) -> str:
    sampled = "*" if record.sampled_rows is not None else ""
    return "" if record.worst_error is None else f"{of_budget(record.worst_error)}{sampled}"


def _number(value: float | None, shown: str) -> Safe:
    return tag("td", shown, class_="number", data_value="" if value is None else repr(float(value)))


def _more(record: CellRecord) -> list[Safe | None]:
    """Why, how fast, and everything that is folded away; a failure's own card has the rest."""
    skipped = record.verdict is Verdict.SKIPPED
    message = reason_of_skip(record) if skipped else record.message
    link = tag("a", "to its card", href=f"#{anchor(record)}") if standing(record.verdict).failed else None
    sampled = (
        tag("p", f"* {record.sampled_rows:,} of {record.total_rows:,} rows were checked", class_="quiet")
        if record.sampled_rows is not None and record.total_rows is not None
        else None
    )
    return [
        tag("p", record.about, class_="about") if record.about else None,
        tag("p", message) if message else None,
        tag("p", link) if link else None,
        sampled,
        *(tag("p", warning, class_="warning") for warning in record.all_warnings),
        of_cell(record),
        details(record),
    ]
