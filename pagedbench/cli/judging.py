"""What `run` and `check` do alike: load, judge cell by cell, show, write, and choose the exit code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import typer
from rich.text import Text

from pagedbench.cli.outputs import OutputFiles
from pagedbench.cli.progress import CellProgress
from pagedbench.errors import UsageError
from pagedbench.report.table import make_console, render
from pagedbench.results.record import CellRecord
from pagedbench.results.store import RecordStore, read_unfinished
from pagedbench.runner.cells import JudgeOptions, plan
from pagedbench.runner.outcome import final_exit_code, strict_failures, unmet_requirements
from pagedbench.runner.pool import WorkerOptions, Workers
from pagedbench.runner.session import RunResult, run_cells
from pagedbench.scenario.loader import load_scenarios
from pagedbench.scenario.model import Scenario
from pagedbench.timing.options import TimingOptions

SIGNAL_EXIT = 128


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
    timing: TimingOptions | None = None
    sanitizer: str | None = None
    floor: bool = False
    pictures: bool = False
    resume: bool = False
    files: OutputFiles = field(default_factory=OutputFiles)


@dataclass(frozen=True)
class Gate:
    """What must hold beyond every kernel being right."""

    require: Sequence[str] = ()
    strict: bool = False


def judge(request: Request) -> RunResult:
    """Judge all cells of a request; records go to the file of `--json` as they are made.

    Raises `UsageError` and `ScenarioError` before anything runs.
    """
    if request.resume and request.files.json is None:
        raise UsageError("--resume needs the file to go on from", "give it with --json FILE")
    options = WorkerOptions(request.device, request.timeout, request.sanitizer)
    with ExitStack() as stack:
        workers = stack.enter_context(Workers(options))  # first: its imports overlap with the loading below
        scenarios = [_seeded(s, request.seed) for s in load_scenarios(request.scenarios)]
        cells = plan(scenarios, workers.resolve(request.backends, request.paths))
        judging = JudgeOptions(
            command=request.command,
            suite=request.suite,
            device=workers.device,
            timing=request.timing,
            floor=request.floor,
            pictures=request.pictures,
            sanitizer=request.sanitizer,
        )
        done = _earlier(request)
        store = stack.enter_context(RecordStore(request.files.json, done.values())) if request.files.json else None
        progress = stack.enter_context(CellProgress(make_console(stderr=True), len(cells)))
        return run_cells(cells, workers, judging, progress, store=store, done=done)


def conclude(result: RunResult, files: OutputFiles, gate: Gate, *, slower: bool = False) -> None:
    """Show a result, write the files asked for, and leave with the exit code that it deserves."""
    try:
        make_console().print(render(result.records))
    finally:  # the reader of a pipe may have gone, which is no reason to lose the files
        files.write(result.records)
    warnings = make_console(stderr=True)
    unmet = unmet_requirements(result.records, gate.require)
    if gate.strict:
        unmet += [f"--strict: {sentence}" for sentence in strict_failures(result.records)]
    for sentence in unmet:
        warnings.print(Text(f"failure: {sentence}", style="bold red"))
    if result.interrupted_by is not None:
        done = f"{len(result.records)} of {result.planned} cells were done"
        more = "; --resume goes on from there" if files.json else ""
        warnings.print(Text(f"interrupted by {result.interrupted_by.name}: {done}{more}", style="bold"))
        raise typer.Exit(SIGNAL_EXIT + result.interrupted_by)
    raise typer.Exit(final_exit_code(result.records, undecided=bool(unmet), slower=slower))


def _seeded(scenario: Scenario, seed: int | None) -> Scenario:
    return scenario if seed is None else replace(scenario, inputs=replace(scenario.inputs, seed=seed))


def _earlier(request: Request) -> Mapping[str, CellRecord]:
    """Records of the run that this one goes on from, by fingerprint."""
    if not (request.resume and request.files.json):
        return {}
    return {record.fingerprint: record for record in read_unfinished(request.files.json)}
