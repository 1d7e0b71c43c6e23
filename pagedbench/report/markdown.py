"""Markdown for a pull request comment: the headline, each failure with its diagnosis, then the table, the rest folded.

What comes from users is escaped, so that a scenario's name is neither markup nor a mention. GitHub cuts a comment at
65,536 characters; this stays below and says what it left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pagedbench.report.figures import duration, of_budget, three_digits
from pagedbench.report.story import (
    Standing,
    failures_first,
    green,
    headline,
    machine,
    place,
    reproduce,
    standing,
)
from pagedbench.report.table import failure_lines, reason_of_skip
from pagedbench.results.record import CellRecord
from pagedbench.results.text import clipped

MOST_CHARACTERS = 60_000
MOST_OPEN_ROWS = 20
_MARKS = {
    Standing.WRONG: "❌",
    Standing.UNDECIDED: "⚠️",
    Standing.PASSED: "✅",
    Standing.EXPECTED: "☑️",
    Standing.SKIPPED: "⏭️",
}
_MARKUP = re.compile(r"([\\`*_\[\]<>|~&])")
# An empty comment after them keeps GitHub from making mentions and links to issues; a backslash does not.
_LINKS = re.compile(r"([@#])")


def markdown(records: Sequence[CellRecord], unmet: Sequence[str] = (), most: int = MOST_CHARACTERS) -> str:
    """The whole comment, at most `most` characters. `unmet`: see `story.headline`."""
    ordered = failures_first(records)
    mark = "✅" if green(records, unmet) else "❌"
    parts = [f"### {mark} pagedbench: {headline(records, unmet)}", *_unmet(unmet, 4_000)]
    footer = f"<sub>{escape(machine(records))}</sub>" if records else ""
    room = most - sum(len(part) for part in parts) - len(footer) - 400
    failed = [r for r in ordered if standing(r.verdict).failed]
    parts += _within(room * 2 // 3, [_failure(r) for r in failed], "failure")
    room -= sum(len(part) for part in parts)
    parts += _table(ordered, room)
    parts += [part for part in (_skips(records, 2_000), _warnings(records, 2_000)) if part]
    return "\n\n".join([*parts, footer]).rstrip() + "\n"


def escape(text: str) -> str:
    """User text as literal Markdown on one line."""
    literal = _MARKUP.sub(r"\\\1", " ".join(text.split()))
    return _LINKS.sub(r"\1<!-- -->", literal)


def _within(room: int, parts: Sequence[str], what: str) -> list[str]:
    """As many of `parts` as fit `room` characters, and how many do not."""
    kept: list[str] = []
    for part in parts:
        room -= len(part) + 2
        if room < 0:
            left = len(parts) - len(kept)
            return [*kept, f"… and {left} more {what}{'s' if left > 1 else ''}: see the record."]
        kept.append(part)
    return kept


def _unmet(unmet: Sequence[str], room: int) -> list[str]:
    if not unmet:
        return []
    return ["#### ❌ Not met", "\n".join(_within(room, [f"- {escape(clipped(u, 600))}" for u in unmet], "requirement"))]


def _failure(record: CellRecord) -> str:
    """A failure's heading and sentences; its scenario, command and traceback folded under it."""
    mark = _MARKS[standing(record.verdict)]
    title = f"#### {mark} {record.verdict}: {escape(record.scenario)} · {escape(record.target)}"
    lines = [f"- {escape(clipped(line.strip(), 600))}" for line in failure_lines(record)]
    where = place(record)
    source = [f"Written in {escape(where.file)}, line {where.line}."] if where else []
    folded = [*source, _code(reproduce(record)), *([_code(record.error[-1500:])] if record.error else [])]
    details = ["<details><summary>See it again</summary>", *folded, "</details>"]
    return "\n\n".join([title, "\n".join(lines), *details])


def _code(text: str) -> str:
    """A fenced block whose fence is longer than any within."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text.strip()}\n{fence}"


def _table(records: Sequence[CellRecord], room: int) -> list[str]:
    """The table of all cells; folded where it is long and cut where it does not fit."""
    if not records:
        return []
    timed = any(r.time_us is not None for r in records)
    names = ["", "scenario", "backend", "path", "verdict", "error/budget"]
    names += ["time", "GB/s", "TFLOP/s"] if timed else []
    align = [":-"] * 5 + ["-:"] * (len(names) - 5)
    rows = ["| " + " | ".join(_row(record, timed=timed)) + " |" for record in records]
    kept: list[str] = []
    for row in rows:
        room -= len(row) + 1
        if room < 0:
            break
        kept.append(row)
    table = "\n".join([f"| {' | '.join(names)} |", f"| {' | '.join(align)} |", *kept])
    if len(kept) < len(rows):
        table += f"\n\n… and {len(rows) - len(kept)} more cells: see the record."
    if len(rows) <= MOST_OPEN_ROWS:
        return [table]
    return [f"<details><summary>All {len(rows)} cells</summary>", table, "</details>"]


def _row(record: CellRecord, *, timed: bool) -> Iterator[str]:
    yield _MARKS[standing(record.verdict)]
    yield from (escape(text) for text in (record.scenario, record.backend, record.path, record.verdict.value))
    yield "" if record.worst_error is None else of_budget(record.worst_error)
    if timed:
        yield duration(record.time_us, record.spread_us) if record.time_us is not None else ""
        yield three_digits(record.gb_per_s) if record.gb_per_s is not None else ""
        yield three_digits(record.tflop_per_s) if record.tflop_per_s is not None else ""


def _skips(records: Sequence[CellRecord], room: int) -> str:
    reasons: dict[str, int] = {}
    for record in records:
        if standing(record.verdict) is Standing.SKIPPED:
            reason = reason_of_skip(record)
            reasons[reason] = reasons.get(reason, 0) + 1
    if not reasons:
        return ""
    lines = [f"- {escape(clipped(reason, 300))} ({count})" for reason, count in reasons.items()]
    kept = "\n".join(_within(room, lines, "reason"))
    total = sum(reasons.values())
    return f"<details><summary>{total} skipped: no pass, but no failure either</summary>\n\n{kept}\n\n</details>"


def _warnings(records: Sequence[CellRecord], room: int) -> str:
    found = [
        f"- {escape(r.scenario)} · {escape(r.target)}: {escape(clipped(warning, 300))}"
        for r in records
        for warning in r.all_warnings
    ]
    if not found:
        return ""
    kept = "\n".join(_within(room, found, "warning"))
    return f"<details><summary>{len(found)} warning{'s' if len(found) > 1 else ''}</summary>\n\n{kept}\n\n</details>"
