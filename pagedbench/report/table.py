"""The terminal's view of records: one row a cell in at most 100 columns, and under it what has to be said in sentences.

Only for people; machines read the records, CSV or JUnit. All text from users goes through `rich.text.Text`, so that a
bracket in a scenario's name is never taken for markup.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from pagedbench.report.figures import duration, of_budget, three_digits
from pagedbench.report.fitting import Fitted
from pagedbench.report.story import machine
from pagedbench.report.timing_table import timing_table
from pagedbench.results.record import CellRecord, CheckDict, FindingDict
from pagedbench.words import Verdict

MAX_COLUMNS = 100
_CELLS_NAMED = 3
_FAILURES_SHOWN = 10
_FINDINGS_SHOWN = 3
_LONG_NAME = 26
_HANG = "    "
_STACK = re.compile(r'Fatal Python error|Timeout \(\d|Thread 0x| *File "|Extension modules:')
_THREAD = re.compile(r"^(Current thread|Thread) 0x", re.M)
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.M)
_NUMBER = re.compile(r"\d+(\.\d+)?")


def style_of(verdict: Verdict) -> str:
    """A colour to tell verdicts apart by; the words alone suffice."""
    if verdict is Verdict.PASS:
        return "green"
    if verdict is Verdict.EXPECTED:
        return "cyan"
    if verdict is Verdict.SKIPPED:
        return "dim"
    return "bold red" if verdict.is_wrong else "bold magenta"


def make_console(*, stderr: bool = False) -> Console:
    """A console of at most 100 columns, and exactly as many where the output is no terminal."""
    console = Console(stderr=stderr, highlight=False, soft_wrap=False)
    console.width = min(console.width, MAX_COLUMNS) if console.is_terminal else MAX_COLUMNS
    return console


def render(records: Sequence[CellRecord]) -> RenderableType:
    """The table, then failures, skips, expectations, warnings and a summary line, as far as there are any."""
    parts: list[RenderableType] = [Fitted(results_table(records))]
    times = timing_table(records)
    if times is not None:
        parts += [Text(), Fitted(times)]
    for section in (_failures, _skips, _expected, _warnings, _floors, _remarks, _checks_run):
        parts.extend(section(records))
    return Group(*parts, summary(records))


def one_a_cell(records: Sequence[CellRecord]) -> list[CellRecord]:
    """Of cells that several processes judged, the first record that is no pass, else the first. Another kernel, or
    another scenario of the same name, is another cell."""
    chosen: dict[tuple[object, ...], CellRecord] = {}
    for number, record in enumerate(records):
        same = (record.key, record.fingerprint or number)
        before = chosen.get(same)
        if before is None or (before.verdict is Verdict.PASS and record.verdict is not Verdict.PASS):
            chosen[same] = record
    return list(chosen.values())


def results_table(records: Sequence[CellRecord]) -> Table:
    """One row a cell. Columns for speed appear only when something was timed."""
    timed = any(r.time_us is not None for r in records)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False)
    table.add_column("scenario", overflow="fold")
    table.add_column("backend", overflow="fold")
    table.add_column("path", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("error/budget", justify="right", no_wrap=True)
    for name in ("kernel", "GB/s", "TFLOP/s") if timed else ():
        table.add_column(name, justify="right", no_wrap=True)
    above = ""
    for record in records:
        table.add_row(*_row(record, above, timed=timed))
        above = record.scenario
    return table


def _row(record: CellRecord, above: str, *, timed: bool) -> Iterator[Text]:
    """A cell's row; the scenario is named once for all its cells. A long variant or function has a line of its own."""
    yield Text("" if record.scenario == above else _on_two_lines(record.scenario, "["))
    yield Text(_on_two_lines(record.backend.rpartition("/")[2], ":"))
    yield Text(record.path)
    yield Text(record.verdict.value, style=style_of(record.verdict))
    yield Text(_error(record))
    if timed:
        yield Text(duration(record.time_us, record.spread_us))
        yield Text(three_digits(record.gb_per_s))
        yield Text(three_digits(record.tflop_per_s))


def _on_two_lines(name: str, at: str) -> str:
    """A name too long for its column, broken where a reader would; others as they are."""
    return name if len(name) <= _LONG_NAME else name.replace(at, f"\n{at}", 1)


def _error(record: CellRecord) -> str:
    if record.worst_error is None:
        return "–"
    mark = "*" if record.sampled_rows is not None else ""
    return f"{of_budget(record.worst_error)}{mark}"


def _failures(records: Sequence[CellRecord]) -> Iterator[RenderableType]:
    """For each cell that failed: which, why, where it is worst, and what explains it."""
    failed = [r for r in records if r.verdict.is_wrong or r.verdict.is_undecided]
    for record in failed[:_FAILURES_SHOWN]:
        yield Text()
        yield Text.assemble(
            (record.verdict.value, style_of(record.verdict)), " ", (f"{record.scenario} {record.target}", "bold")
        )
        yield from map(_Indented, failure_lines(record, one_a_sequence=True))
    rest = failed[_FAILURES_SHOWN:]
    if rest:
        yield Text(f"\n… and {_count(len(rest), 'more failure')}, in full in the record (--json) or the page (--html)")


def failure_lines(record: CellRecord, *, one_a_sequence: bool = False) -> Iterator[str]:
    """The sentences of one failure, most telling first, with a few findings a check; other reports use the same."""
    if not record.failed_checks and record.message:
        yield record.message
    for check in record.failed_checks:
        yield from _check_lines(check, one_a_sequence)
    if record.failed_checks and record.message not in [c["message"] for c in record.failed_checks]:
        yield record.message
    yield from (f"diagnosis: {d['sentence']}" for d in record.diagnosis[:2])
    yield from last_words(record)


def last_words(record: CellRecord) -> Iterator[str]:
    """What a lost worker said last of its own, and the place in the user's code where it stood."""
    if record.verdict not in (Verdict.CRASHED, Verdict.TIMED_OUT):
        return
    said, frames = _before_and_in_the_stack(record.stderr)
    own = [line for line in said.splitlines() if line.strip() and not _STACK.match(line)]
    if own:
        yield f"stderr: {own[-1]}"
    for file, line, function in _FRAME.findall(frames):
        if file.startswith("pagedbench/"):  # from here on inwards it was the user's
            return
        if not file.startswith("<"):
            yield f"at {file}, line {line}, in {function}"
            return


def _before_and_in_the_stack(stderr: str) -> tuple[str, str]:
    """What stands before the stack of the thread that matters, and its frames: of the one that crashed, or of the main
    one, which comes last where the worker was asked what keeps it."""
    threads = list(_THREAD.finditer(stderr))
    if not threads:
        return stderr, ""
    it = next((thread for thread in threads if thread[1] == "Current thread"), threads[-1])
    return stderr[: it.start()], stderr[it.end() :]


def _check_lines(check: CheckDict, one_a_sequence: bool) -> Iterator[str]:
    """A check's message, then its worst findings; a message that only repeats the worst finding gives way to it."""
    findings = check["findings"]
    repeats = bool(findings) and finding_line(findings[0]).startswith(check["message"])
    shown = list(findings[:1]) if repeats else []
    for finding in findings[len(shown) :]:
        told = {f.get("sequence") for f in shown}
        if len(shown) < _FINDINGS_SHOWN - (not repeats) and not (one_a_sequence and finding.get("sequence") in told):
            shown.append(finding)
    left = len(findings) - len(shown)
    first, *rest = [finding_line(f) for f in shown] if repeats else [check["message"], *map(finding_line, shown)]
    lines = [f"{check['check']}: {first}", *(f"  {line}" for line in rest)]
    lines[-1] += f" (and {left} more)" if left else ""
    yield from lines


_PLACES = ("sequence", "query_token", "head", "logical_block", "physical_block")


def finding_line(finding: FindingDict) -> str:
    """A finding's sentence, with the coordinates that the sentence does not name itself."""
    message = finding.get("message", "")
    words = {name: name.replace("_", " ") for name in _PLACES if finding.get(name) is not None}
    missing = [f"{word} {finding[name]}" for name, word in words.items() if word not in message]  # type: ignore[literal-required]
    return f"{message} ({', '.join(missing)})" if missing else message


@dataclass(frozen=True)
class _Indented:
    """A line, wrapped here and not by a `Padding`, which would fill every line of a log with blanks."""

    line: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        further = self.line.startswith(" ")  # a check's second finding: told from the rest of a long first one
        first, hang = (f"{_HANG}· ", f"{_HANG}  ") if further else ("  ", _HANG)
        width = max(options.max_width - 2, 1)
        yield Text(textwrap.fill(self.line.strip(), width, initial_indent=first, subsequent_indent=hang))


def _skips(records: Sequence[CellRecord]) -> Iterator[RenderableType]:
    """Reasons of skips, each once, with the cells it is the reason of."""
    skipped = [r for r in records if r.verdict is Verdict.SKIPPED]
    yield from _grouped("SKIPPED", "dim", ((reason_of_skip(r), r) for r in skipped))


def reason_of_skip(record: CellRecord) -> str:
    """Why a cell was skipped: its own message, or the first one of its checks."""
    own = [record.message, *(c["message"] for c in record.checks)]
    return next((message for message in own if message), "no check applies to it")


def _expected(records: Sequence[CellRecord]) -> Iterator[RenderableType]:
    known = [r for r in records if r.verdict is Verdict.EXPECTED]
    yield from _grouped("EXPECTED", "cyan", ((r.message, r) for r in known))


def _warnings(records: Sequence[CellRecord]) -> Iterator[RenderableType]:
    yield from _grouped("warning", "yellow", ((warning, r) for r in records for warning in r.all_warnings))


def _floors(records: Sequence[CellRecord]) -> Iterator[RenderableType]:
    """Each cell's: the numbers are what was asked for."""
    yield from _grouped("floor", "cyan", ((r.floor, r) for r in records if r.floor), by_numbers=True)


def _grouped(
    title: str, style: str, pairs: Iterable[tuple[str, CellRecord]], *, by_numbers: bool = False
) -> Iterator[RenderableType]:
    """One line a sentence with the cells it is true of, and apart those of which it is true with other numbers; or a
    line for those, too."""
    groups: dict[str, list[tuple[str, CellRecord]]] = {}
    for sentence, record in pairs:
        same = sentence if by_numbers else _NUMBER.sub("#", sentence)
        groups.setdefault(same, []).append((sentence, record))
    if groups:
        yield Text()
    for members in groups.values():
        sentence = members[0][0]
        same = _named([r for said, r in members if said == sentence])
        others = _named([r for said, r in members if said != sentence])
        cells = f"{same}; with other numbers: {others}" if others else same
        yield Text.assemble((title, style), " ", sentence, (f" ({cells})", "dim"))


def _named(records: Sequence[CellRecord]) -> str:
    """The first few cells by name, the rest by number."""
    names = [f"{r.scenario} {r.target}" for r in records[:_CELLS_NAMED]]
    rest = len(records) - len(names)
    return ", ".join(names) + (f" and {rest} more" if rest else "")


def _remarks(records: Sequence[CellRecord]) -> Iterator[RenderableType]:
    """What the columns' marks mean."""
    sampled = [r for r in records if r.sampled_rows is not None]
    if sampled:
        yield Text()
        yield Text("* checked on a seeded sample of the rows: a full reference would take minutes", style="dim")
    silent = dict.fromkeys(r.target for r in records if any(map(_without_lse, r.checks)))
    if silent:
        yield Text()
        yield Text(f"LSE not judged, since none is returned: {', '.join(silent)}", style="dim")


def _without_lse(check: CheckDict) -> bool:
    judged = check["check"] == "accuracy" and check["metrics"].get("rows", 0.0) > 0
    return judged and "worst_lse_ratio" not in check["metrics"]


def summary(records: Sequence[CellRecord]) -> Text:
    """How many cells came to what, on what."""
    counts = Counter(r.verdict for r in records)
    told = ", ".join(f"{counts[v]} {v.value}" for v in Verdict if counts[v])
    result = f"{_count(len(records), 'cell')}: {told or 'nothing was run'}"
    return Text.assemble("\n", (result, "bold"), ("\n" + _circumstances(records), "dim"))


def _circumstances(records: Sequence[CellRecord]) -> str:
    if not records:
        return ""
    seconds = sum(r.durations.get("total", 0.0) for r in records)
    return f"{machine(records)}; cells took {seconds:,.1f} s"  # summed: several may have run at a time


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _checks_run(records: Sequence[CellRecord]) -> Iterator[RenderableType]:
    """Which checks ran, and which said nothing about any cell and why: that is no pass."""
    ran, silent = Counter[str](), dict[str, str]()
    for check in (c for r in records for c in r.checks):
        if check["verdict"] == Verdict.SKIPPED.value:
            silent.setdefault(check["check"], check["message"])
        else:
            ran[check["check"]] += 1
    if ran:
        yield Text()
        yield Text("checks: " + ", ".join(f"{name} ({count})" for name, count in ran.items()), style="dim")
    for name, reason in silent.items():
        if name not in ran:
            yield Text(f"not applicable: {name}: {reason}", style="dim")
