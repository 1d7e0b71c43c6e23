"""What `run` and `check` do alike: load, judge cell by cell, show, write, and choose the exit code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import typer
from rich.text import Text

from pagedbench.cli.outputs import OutputFiles
from pagedbench.cli.progress import CellProgress, resolving
from pagedbench.cli.replacing import Earlier, of_cell
from pagedbench.errors import CannotWrite, UsageError
from pagedbench.report.changes import render_changes
from pagedbench.report.table import make_console, one_a_cell, render
from pagedbench.results.baseline import BaselineComparison, compare_records, require_equal_environments
from pagedbench.results.record import CellRecord
from pagedbench.results.store import RecordStore, read_unfinished
from pagedbench.runner.cells import Cell, JudgeOptions, plan
from pagedbench.runner.outcome import final_exit_code, strict_failures, unmet_requirements
from pagedbench.runner.paths import plain_target
from pagedbench.runner.pool import WorkerOptions, Workers
from pagedbench.runner.session import RunResult, run_cells
from pagedbench.runner.signals import SIGNAL_EXIT
from pagedbench.scenario.loader import load_scenarios
from pagedbench.scenario.model import Scenario
from pagedbench.timing.options import Quantity, TimingOptions

BASELINE_TIMING = TimingOptions(quantities=("kernel", "call"))
"""What is timed for a baseline and against one: only kernel times are compared, and a gate shall not take long."""


@dataclass(frozen=True)
class Request:
    """What a command line asks to be judged, and how."""

    command: str
    scenarios: Sequence[str]
    suite: str
    backends: Sequence[str] = ()
    paths: Sequence[str] = ()
    device: str = "auto"
    seed: int | None = None
    timeout: float = 60.0
    require: Sequence[str] = ()
    """What must be judged: a name that means nothing is refused before a cell is judged, not after an hour of it."""
    jobs: int = 1
    timing: TimingOptions | None = None
    sanitizer: str | None = None
    floor: bool = False
    pictures: bool = False
    resume: bool = False
    files: OutputFiles = field(default_factory=OutputFiles)
    equals: Sequence[CellRecord] = ()
    """Records whose environment the run must have: refused before a cell is judged, not after an hour of it."""


@dataclass(frozen=True)
class Gate:
    """What must hold beyond every kernel being right."""

    require: Sequence[str] = ()
    strict: bool = False
    baseline: Sequence[CellRecord] | None = None
    across: bool = False

    def compare(self, result: RunResult) -> BaselineComparison | None:
        """The run against the baseline; None without one, or for half a run. Raises `UsageError` if it is refused."""
        if self.baseline is None or result.interrupted_by is not None:
            return None
        return compare_records(result.records, self.baseline, across=self.across)

    def unmet(self, records: Sequence[CellRecord], comparison: BaselineComparison | None) -> list[str]:
        """A sentence for everything that had to be judged and was not."""
        sentences = unmet_requirements(records, self.require)
        if self.strict:
            sentences += [f"--strict: {sentence}" for sentence in strict_failures(records)]
        if comparison is not None:
            sentences += [f"{c.name}: {c.reason}" for c in comparison.missing]
        return sentences


def judge(request: Request, processes: int = 1) -> RunResult:
    """Judge all cells of a request, in so many worker processes one after the other, each judging all; or, where
    nothing is timed, in as many at a time as the request has `jobs`, dividing the cells.

    They start together, since most of a start is imports, and the first one begins when all are there: nothing else
    runs while one of them times. Records go to the file of `--json` as they are made. Raises `UsageError` and
    `ScenarioError` before anything runs.
    """
    if request.resume and request.files.json is None:
        raise UsageError("--resume needs the file to go on from", "give it with --json FILE")
    request.files.prepare(request.scenarios)
    earlier = _earlier(request)
    before = Earlier(request.files.json, of_cell) if request.files.json and not request.resume else None
    everything = RunResult(planned=0)
    with ExitStack() as stack:
        kept = [record for records in earlier.values() for record in records]
        store = stack.enter_context(RecordStore(request.files.json, kept)) if request.files.json else None
        options = WorkerOptions(request.device, request.timeout, request.sanitizer, at_a_time=request.jobs)
        everyone = [[stack.enter_context(Workers(options)) for _ in range(request.jobs)] for _ in range(processes)]
        scenarios = [_seeded(s, request.seed) for s in load_scenarios(request.scenarios)]  # while the workers import
        for team in everyone:
            team[0].wait()
        for number, team in enumerate(everyone):
            done = {fingerprint: rs[number] for fingerprint, rs in earlier.items() if len(rs) > number}
            try:
                result = _judge_once(request, scenarios, team, store, done)
            finally:
                _end(team)
            everything.records += result.records
            everything.planned += result.planned
            everything.interrupted_by, everything.failed = result.interrupted_by, result.failed
            if result.interrupted_by is not None or result.failed is not None:
                break
    if before is not None:
        before.tell_cells(everything.records)
    return everything


def _end(team: Sequence[Workers]) -> None:
    """End workers at the same time: a process that holds a GPU takes a while."""
    with ThreadPoolExecutor(len(team)) as threads:
        for ended in [threads.submit(workers.close) for workers in team]:
            ended.result()


def _judge_once(
    request: Request,
    scenarios: Sequence[Scenario],
    team: Sequence[Workers],
    store: RecordStore | None,
    done: Mapping[str, CellRecord],
) -> RunResult:
    """Judge all cells once."""
    workers = team[0]
    cells = plan(scenarios, resolving(workers)(request.backends, request.paths))
    _refuse_unknown(request.require, cells, workers)
    names = {scenario.name for scenario in scenarios}
    require_equal_environments([workers.environment], [r for r in request.equals if r.scenario in names])
    judging = JudgeOptions(
        command=request.command,
        suite=request.suite,
        device=workers.device,
        timing=_timing_on(workers.device, request.timing),
        floor=request.floor,
        pictures=request.pictures,
        sanitizer=request.sanitizer,
    )
    if store is not None:
        current = [cell.fingerprint(judging) for cell in cells]
        _forget_outdated(store, cells, current, judging)
        if request.resume:
            typer.echo(_resumed(cells, current, done, judging), err=True)
    with CellProgress(make_console(stderr=True), len(cells)) as progress:
        return run_cells(cells, team, judging, progress, store=store, done=done)


def _refuse_unknown(required: Sequence[str], cells: Sequence[Cell], workers: Workers) -> None:
    """Raises `UsageError` for a required target that does not exist; one that does may be missing among the cells."""
    judged = {plain_target(name) for cell in cells for name in (cell.target.name, f"{cell.target.name}:{cell.path}")}
    others = [target for target in required if plain_target(target) not in judged]
    if others:
        workers.require_known(others)


def _resumed(
    cells: Sequence[Cell], current: Sequence[str], done: Mapping[str, CellRecord], judging: JudgeOptions
) -> str:
    """How many cells stay, and why others that are in the file do not: who sees none of them kept wants to know."""
    known = {record.key for record in done.values()}
    kept = sum(fingerprint in done for fingerprint in current)
    again = sum(
        cell.key(judging) in known and fingerprint not in done for cell, fingerprint in zip(cells, current, strict=True)
    )
    changed = "the kernel, the scenario or an option has changed (--html is one: it wants pictures)"
    why = f"; {again} are judged again, since {changed}"
    return f"resumed: {kept} of {len(cells)} cells stay as they were judged before" + (why if again else "")


def _forget_outdated(store: RecordStore, cells: Sequence[Cell], current: Sequence[str], judging: JudgeOptions) -> None:
    """Of cells that are judged again, since the kernel is another now, the earlier record goes: a report made from the
    file would show what is mended."""
    keys, fingerprints = {cell.key(judging) for cell in cells}, set(current)
    store.forget(lambda record: record.key in keys and record.fingerprint not in fingerprints)


def conclude(result: RunResult, files: OutputFiles, gate: Gate) -> None:
    """Show a result, write the files asked for, and leave with the exit code that it deserves."""
    unmet: list[str] = []
    slower: list[str] = []
    shown = one_a_cell(result.records)
    try:
        make_console().print(render(shown))
        comparison = gate.compare(result)
        unmet = gate.unmet(result.records, comparison)
        if comparison is not None:
            slower = comparison.slower_cells
            make_console().print(render_changes(comparison))
    except UsageError as refused:
        unmet = [refused.message]
        raise
    finally:  # the disk that the table goes to may be full, which is no reason to lose the files
        unwritten = _write(files, shown, [*_cut_short(result), *unmet, *slower])
    unmet += unwritten
    if result.failed is not None:
        unmet += [*_cut_short(result), *([result.failed.hint] if result.failed.hint else [])]
    say_unmet(unmet)
    if result.interrupted_by is not None:
        more = "; --resume goes on from there" if files.json else ""
        make_console(stderr=True).print(Text(f"{_cut_short(result)[0]}{more}", style="bold"))
        raise typer.Exit(SIGNAL_EXIT + result.interrupted_by)
    raise typer.Exit(final_exit_code(result.records, undecided=bool(unmet), slower=bool(slower)))


def say_unmet(sentences: Sequence[str]) -> None:
    """On stderr, what had to hold and does not."""
    console = make_console(stderr=True)
    for sentence in sentences:
        console.print(Text(f"failure: {sentence}", style="bold red"))


def _write(files: OutputFiles, records: Sequence[CellRecord], unmet: Sequence[str]) -> list[str]:
    """Write the files; a sentence for what could not be: whoever reads that file would miss what was found, but it is
    no reason to forget it."""
    try:
        files.write(records, unmet)
    except CannotWrite as error:
        return [error.message]
    return []


def _cut_short(result: RunResult) -> list[str]:
    """The sentence on a run that ended early: half a run is not green, however its cells came out."""
    done = f"{len(result.records)} of {result.planned} cells were done"
    if result.failed is not None:
        return [f"ended early, {done}: {result.failed.message}"]
    return [] if result.interrupted_by is None else [f"interrupted by {result.interrupted_by.name}: {done}"]


def _seeded(scenario: Scenario, seed: int | None) -> Scenario:
    return scenario if seed is None else replace(scenario, inputs=replace(scenario.inputs, seed=seed))


def _timing_on(device: str, timing: TimingOptions | None) -> TimingOptions | None:
    """On a CPU the kernel's time and the call's are one and the same thing, measured once, and there are no graphs; the
    total is more by what is planned."""
    if timing is None or device != "cpu":
        return timing
    total: tuple[Quantity, ...] = ("total",) if "total" in timing.quantities else ()
    return replace(timing, quantities=("kernel", "call", *total))


def _earlier(request: Request) -> Mapping[str, list[CellRecord]]:
    """Records of the run that this one goes on from, by fingerprint: one for each process that judged the cell."""
    found: dict[str, list[CellRecord]] = {}
    if request.resume and request.files.json:
        for record in read_unfinished(request.files.json):
            found.setdefault(record.fingerprint, []).append(record)
    return found
