"""The page put together: what the run came to, its failures, all cells, speed, what was not judged, circumstances."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from importlib.resources import files
from string import Template
from typing import Any

from pagedbench import __version__
from pagedbench.report.page import cards, cells, speed
from pagedbench.report.page.markup import Safe, joined, tag, text, void
from pagedbench.report.story import Standing, green, headline, machine, standing
from pagedbench.report.table import reason_of_skip
from pagedbench.results.record import CellRecord


def html_page(records: Sequence[CellRecord], unmet: Sequence[str] = ()) -> str:
    """The whole page. Loads nothing from anywhere, and its policy forbids every script but its own.

    `unmet`: see `story.headline`.
    """
    script = _asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    title = headline(records, unmet)
    header = _header(records, title, good=green(records, unmet))
    return Template(_asset("page.html")).substitute(
        policy=f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        title=text(f"pagedbench: {title}"),
        style=_asset("page.css"),
        script=script,
        body=joined([header, tag("main", list(_sections(records, unmet))), _footer(records)]),
    )


def _asset(name: str) -> str:
    return files(__package__).joinpath("assets").joinpath(name).read_text(encoding="utf-8")


def _header(records: Sequence[CellRecord], title: str, *, good: bool) -> Safe:
    commands = ", ".join(dict.fromkeys(r.command for r in records))
    times = sorted(r.time for r in records if r.time)
    when = times[0].replace("T", " ")[:16] + " UTC" if times else ""
    facts = " · ".join(part for part in (machine(records), commands and f"pagedbench {commands}", when) if part)
    theme = tag("button", "◐", type="button", id="theme", title="light or dark", aria_label="light or dark")
    colour = "good" if good else "bad"
    return tag(
        "header", theme, tag("p", "pagedbench", class_="brand"), tag("h1", title, class_=colour), tag("p", facts)
    )


def _sections(records: Sequence[CellRecord], unmet: Sequence[str]) -> Iterator[Safe]:
    if unmet:
        items = [tag("p", sentence, class_="sentence") for sentence in unmet]
        yield tag("section", tag("h2", "Not met"), tag("div", items, class_="card undecided"), id="unmet")
    failures = cards.failures(records)
    if failures:
        yield tag("section", tag("h2", "Failures"), failures, id="failures")
    if records:
        yield tag("section", tag("h2", "Cells"), cells.chips(records), _filter(), cells.table(records), id="all")
    timed = speed.section(records)
    if timed is not None:
        yield timed
    yield from _unjudged(records)
    yield tag("section", tag("h2", "Circumstances"), _environment(records), id="environment")


def _filter() -> Safe:
    field = void(
        "input", type="search", id="filter", placeholder="filter: scenario, backend, path, message", aria_label="filter"
    )
    return tag("p", field, tag("span", "", id="shown", class_="quiet"), class_="filter")


def _unjudged(records: Sequence[CellRecord]) -> Iterator[Safe]:
    """Skips, expectations and warnings: each sentence once, with the cells it is true of."""
    skipped = [(reason_of_skip(r), r) for r in records if standing(r.verdict) is Standing.SKIPPED]
    expected = [(r.message, r) for r in records if standing(r.verdict) is Standing.EXPECTED]
    warned = [(warning, r) for r in records for warning in r.all_warnings]
    for title, pairs in (("Skipped", skipped), ("Expected", expected), ("Warnings", warned)):
        groups: dict[str, list[CellRecord]] = {}
        for sentence, record in pairs:
            groups.setdefault(sentence, []).append(record)
        if groups:
            items = [tag("li", sentence, " ", _names(members)) for sentence, members in groups.items()]
            yield tag("section", tag("h2", title), tag("ul", items), id=title.lower())


def _names(records: Sequence[CellRecord]) -> Safe:
    names = [f"{r.scenario} {r.target}" for r in records]
    shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    return tag("span", f"({shown})", class_="quiet", title="\n".join(names))


def _environment(records: Sequence[CellRecord]) -> Safe:
    """Each fact with its value, or its values where the cells differ (backends' versions by backend)."""
    values: dict[str, dict[str, None]] = {}
    for record in records:
        for name, value in _flat(record.environment):
            key = f"version of {record.backend}" if name == "backend_version" else name
            values.setdefault(key, {})[str(value)] = None
    rows = [tag("tr", tag("th", name), tag("td", ", ".join(found))) for name, found in values.items()]
    return tag("table", rows, class_="facts")


def _flat(facts: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in facts.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name} ")
        elif value is not None:
            yield f"{prefix}{name}".replace("_", " ") if name != "backend_version" else name, value


def _footer(records: Sequence[CellRecord]) -> Safe:
    again = "Made again from the records by: pagedbench report RECORDS --html FILE. Raw samples are in the records."
    runs = len({r.run for r in records if r.run})
    return tag(
        "footer",
        f"pagedbench {__version__} · {len(records)} cells of {runs or 1} run{'s' if runs > 1 else ''} · {again}",
    )
