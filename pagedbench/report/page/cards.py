"""The failures of a run, one card each: what, why, where it is worst, and how to see it again."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pagedbench.report.page.markup import Safe, folded, picture, tag
from pagedbench.report.story import failures_first, reproduce, standing
from pagedbench.report.table import last_words
from pagedbench.results.record import CellRecord, CheckDict, FindingDict
from pagedbench.words import Verdict

MOST_FINDINGS = 12
MOST_OPEN = 25
_PLACE = re.compile(r"^sequence \d+[^:]*: ")
_COORDINATES = {
    "sequence": "sequence",
    "query_token": "query token",
    "head": "head",
    "key": "key",
    "logical_block": "logical block",
    "physical_block": "physical block",
}


def kind(verdict: Verdict) -> str:
    """The CSS class of a verdict's colour."""
    return standing(verdict).name.lower()


def badge(verdict: Verdict) -> Safe:
    """The verdict as a coloured word."""
    return tag("span", verdict.value, class_=f"badge {kind(verdict)}")


def card(record: CellRecord) -> Safe:
    """One failed cell."""
    head = tag("h3", badge(record.verdict), " ", record.scenario, " ", tag("span", record.target, class_="target"))
    failed = record.failed_checks
    sentences = [*([record.message] if record.message and not failed else []), *last_words(record)]
    return tag(
        "article",
        head,
        tag("p", record.about, class_="about") if record.about else None,
        [tag("p", sentence, class_="sentence") for sentence in sentences],
        [_check(check) for check in failed],
        _diagnosis(record),
        _pictures(record),
        details(record),
        class_=f"card {kind(record.verdict)}",
        id=anchor(record),
    )


def anchor(record: CellRecord) -> str:
    """The name of a cell's card within the page."""
    return "cell-" + "-".join("".join(c if c.isalnum() else "-" for c in part) for part in record.key)


def _check(check: CheckDict) -> Safe:
    told = tag("p", tag("b", check["check"]), ": ", check["message"], class_="sentence")
    return Safe(told + _findings(check["findings"]))


def _findings(findings: Sequence[FindingDict]) -> Safe:
    """Where it is worst, as a table of the coordinates that any finding has."""
    if not findings:
        return Safe("")
    shown = findings[:MOST_FINDINGS]
    names = [name for name in _COORDINATES if any(f.get(name) is not None for f in shown)]
    rows = [
        tag("tr", [tag("td", _coordinate(f, name), class_="number") for name in names], tag("td", _without_place(f)))
        for f in shown
    ]
    head = tag("tr", [tag("th", _COORDINATES[name]) for name in names], tag("th", "finding"))
    left = len(findings) - len(shown)
    more = tag("p", f"… and {left} more in the record", class_="quiet") if left else ""
    return Safe(tag("table", tag("thead", head), tag("tbody", rows), class_="findings") + more)


def _without_place(finding: FindingDict) -> str:
    """The finding's sentence without the coordinates that it begins with: they stand in columns of their own."""
    return _PLACE.sub("", finding.get("message", ""))


def _coordinate(finding: FindingDict, name: str) -> str:
    value = dict(finding).get(name)
    return "" if value is None else str(value)


def _diagnosis(record: CellRecord) -> Safe | None:
    if not record.diagnosis:
        return None
    items = [
        tag("li", d.get("sentence", ""), tag("span", f" ({d['fault']})", class_="quiet") if d.get("fault") else None)
        for d in record.diagnosis
    ]
    return tag("div", tag("b", "diagnosis"), tag("ul", items), class_="diagnosis")


def _pictures(record: CellRecord) -> list[Safe]:
    return [
        tag("figure", picture(svg, f"{name} of {record.scenario}"), tag("figcaption", name))
        for name, svg in record.pictures.items()
    ]


def details(record: CellRecord) -> Safe:
    """What is folded away under a cell: all checks, the command, the scenario, the traceback, the worker's stderr."""
    checks = [
        tag("tr", tag("td", badge(Verdict(c["verdict"]))), tag("td", c["check"]), tag("td", c["message"]))
        for c in record.checks
    ]
    counted = "1 check" if len(checks) == 1 else f"{len(checks)} checks"
    failed = standing(record.verdict).failed  # the others' files are not worth the room in a page of many cells
    scenario = folded(f"scenario {record.where}".strip(), tag("pre", record.scenario_text))
    parts = [
        tag("p", tag("code", reproduce(record), class_="command")),
        folded(counted, tag("table", checks, class_="checks")) if checks else None,
        folded("traceback", tag("pre", record.error)) if record.error else None,
        folded("stderr of the worker", tag("pre", record.stderr)) if record.stderr else None,
        scenario if failed and record.scenario_text else None,
    ]
    return tag("div", parts, class_="details")


def failures(records: Sequence[CellRecord]) -> list[Safe]:
    """The cards, wrong kernels before cells without a verdict; folded away beyond the first `MOST_OPEN`."""
    cards = [card(record) for record in failures_first(records) if standing(record.verdict).failed]
    left = len(cards) - MOST_OPEN
    return cards if left <= 0 else [*cards[:MOST_OPEN], folded(f"{left} more", cards[MOST_OPEN:])]
