"""The work of `compare`: sort the words, load, compare, show, write, and the exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from pagedbench.cli.outputs import OutputFiles
from pagedbench.cli.progress import ComparisonProgress, resolving
from pagedbench.cli.replacing import Earlier, compared, of_comparison
from pagedbench.errors import CannotWrite, ScenarioError, UsageError
from pagedbench.report.comparison import render, to_csv, to_markdown
from pagedbench.report.table import make_console
from pagedbench.results.comparison import ComparisonRecord
from pagedbench.results.store import RecordStore, is_record_file, read_text, write_text
from pagedbench.runner.compare import Compared, compare_scenarios
from pagedbench.runner.pool import WorkerOptions, Workers
from pagedbench.runner.sides import groups_of, sort_words
from pagedbench.runner.signals import SIGNAL_EXIT
from pagedbench.scenario.loader import load_scenarios
from pagedbench.scenario.model import Scenario
from pagedbench.timing.options import TimingOptions
from pagedbench.words import ExitCode, exit_code


@dataclass(frozen=True)
class Request:
    """What the command line asks for."""

    words: Sequence[str]
    sweep: Sequence[str]
    backend: str | None
    paths: Sequence[str]
    layers: int | None
    device: str
    seed: int | None
    timing: TimingOptions
    timeout: float
    across: bool
    json: Path | None
    csv: Path | None
    markdown: Path | None
    plot: Path | None


def compare(request: Request) -> int:
    """Do all of it; the exit code. Raises `UsageError` and `ScenarioError` before anything runs."""
    if are_records(request.words):
        _refuse_idle(request, ("sweep", "layers", "json", "csv", "markdown", "plot"), "two files of records")
        return _compare_records(request.words, across=request.across)
    shown_again = is_record(request.words)
    if shown_again:
        _refuse_idle(request, ("sweep", "json"), "a file of comparisons that is shown again")
    files = OutputFiles(json=request.json, csv=request.csv, markdown=request.markdown, plot=request.plot)
    files.prepare(request.words)
    if shown_again:
        records = read_comparisons(Path(request.words[0]))
        make_console().print(render(records, layers=request.layers))
        _write(request, records)
        return _code(records)
    before = Earlier(request.json, of_comparison) if request.json else None
    result = _run(request)
    if before is not None:
        before.tell(map(compared, result.records))
    unwritten = False
    if result.records:
        make_console().print(render(result.records, layers=request.layers))
        unwritten = _could_not_write(request, result.records)
    if result.interrupted_by is not None:
        done = f"{len(result.records)} of {result.planned} comparisons were done"
        print(f"interrupted by {result.interrupted_by.name}: {done}", file=sys.stderr)
        return SIGNAL_EXIT + result.interrupted_by
    code = _code(result.records)
    return ExitCode.UNDECIDED if unwritten and code in (ExitCode.OK, ExitCode.NOTHING_CHECKED) else code


def _could_not_write(request: Request, records: Sequence[ComparisonRecord]) -> bool:
    """Write the files; whether one could not be, which is said: it is no reason to forget what was measured."""
    try:
        _write(request, records)
    except CannotWrite as error:
        print(f"failure: {error.message}", file=sys.stderr)
        return True
    return False


def _refuse_idle(request: Request, options: Sequence[str], given: str) -> None:
    """Raises `UsageError` for an option that would have no effect: a file that never appears, say."""
    idle = next((name for name in options if getattr(request, name)), None)
    if idle:
        raise UsageError(f"--{idle} does nothing with {given}", hint="leave it out, or measure: compare A B")


def _code(records: Sequence[ComparisonRecord]) -> int:
    undecided = any(record.message for record in records)
    code = exit_code(side.verdict for record in records for side in record.sides)
    if code is ExitCode.OK and not any(record.pairs for record in records):
        code = ExitCode.NOTHING_CHECKED
    return ExitCode.UNDECIDED if undecided and code in (ExitCode.OK, ExitCode.NOTHING_CHECKED) else code


def _run(request: Request) -> Compared:
    with ExitStack() as stack:
        workers = stack.enter_context(Workers(WorkerOptions(request.device, request.timeout)))
        words = sort_words(request.words, resolving(workers), is_scenario)
        scenarios = _swept(words.scenarios, parse_sweeps(request.sweep))
        if request.seed is not None:
            scenarios = [replace(s, inputs=replace(s.inputs, seed=request.seed)) for s in scenarios]
        groups = groups_of(words.sides, resolving(workers), backend=request.backend, paths=request.paths)
        store = stack.enter_context(RecordStore(request.json)) if request.json else None
        watcher = stack.enter_context(
            ComparisonProgress(make_console(stderr=True), len(scenarios) * len(groups), store)
        )
        return compare_scenarios(scenarios, groups, workers, request.timing, watcher)


def _swept(targets: Sequence[str], sweep: dict[str, list[object]]) -> list[Scenario]:
    """The scenarios with the sweep's values. What is refused may stand in no file: the hint says where it is from."""
    try:
        return load_scenarios(targets, sweep)
    except ScenarioError as error:
        if sweep and not error.hint:
            fields = " and ".join(sweep)
            bare = next((p.field for p in error.problems if p.field in sweep and p.needed == "a list"), None)
            error.hint = (
                f"a list a value, in brackets: --sweep '{bare}=[30],[4000]'"
                if bare
                else f"--sweep sets {fields}; what the scenario fixes beside it, a block table say, must fit"
            )
        raise


def _write(request: Request, records: Sequence[ComparisonRecord]) -> None:
    if request.csv:
        write_text(request.csv, to_csv(records))
    if request.markdown:
        write_text(request.markdown, to_markdown(records, layers=request.layers))
    if request.plot:
        from pagedbench.report.plots import plot_comparisons

        for file in plot_comparisons(records, request.plot):
            print(f"drawn: {file}", file=sys.stderr)


def is_scenario(word: str) -> bool:
    """Whether the word names scenarios, be they valid or not."""
    try:
        load_scenarios([word])
    except UsageError:
        return False
    except ScenarioError:
        return True
    return True


def parse_sweeps(texts: Sequence[str]) -> dict[str, list[object]]:
    """The values of each field. Raises `UsageError` for a field that is given twice: one would be lost."""
    found: dict[str, list[object]] = {}
    for name, values in map(parse_sweep, texts):
        if name in found:
            raise UsageError(f"--sweep {name} is given twice", hint=f"write all values in one: --sweep {name}=A,B,C")
        found[name] = values
    return found


def parse_sweep(text: str) -> tuple[str, list[object]]:
    """`cache.block_size=16,32` or `batch.cached_lens=[30],[4000]` as a field and its values, written as in YAML."""
    name, equals, values = text.partition("=")
    if not equals or not name.strip() or not values.strip():
        raise UsageError(f"--sweep {text!r} has no field and values", hint="write --sweep cache.block_size=16,32,64")
    try:
        found = yaml.safe_load(f"[{values}]")
    except yaml.YAMLError:
        found = None
    if not isinstance(found, list):
        raise UsageError(f"--sweep {name}: {values!r} is no list of values", hint="separate them by commas")
    return name.strip(), found


def is_record(words: Sequence[str]) -> bool:
    """Whether one file of comparisons is given, to be shown and drawn again."""
    return len(words) == 1 and is_record_file(words[0])


def read_comparisons(file: Path) -> list[ComparisonRecord]:
    """What `compare --json` wrote. Raises `UsageError` for any other file."""
    lines = enumerate(read_text(file).splitlines(), start=1)
    records = [_read_line(f"{file}:{number}", line) for number, line in lines if line.strip()]
    if not records:
        raise UsageError(f"{file} is empty", hint="give the file of compare --json")
    return records


def _read_line(place: str, line: str) -> ComparisonRecord:
    try:
        return ComparisonRecord.from_json(line)
    except UsageError as error:
        raise UsageError(f"{place}: {error.message}", error.hint) from error


def are_records(words: Sequence[str]) -> bool:
    """Whether two files of records are given. Raises `UsageError` where they are mixed with other words."""
    files = [word for word in words if is_record_file(word)]
    if files and not is_record(words) and (len(files) != 2 or len(words) != 2):
        raise UsageError("records are compared two files at a time", hint="compare NEW.jsonl OLD.jsonl")
    return len(files) == 2


def _compare_records(words: Sequence[str], *, across: bool) -> int:
    """New records against old ones, by the rules of baselines."""
    from pagedbench.report.changes import render_changes
    from pagedbench.results.baseline import compare_records
    from pagedbench.results.store import read_records
    from pagedbench.runner.outcome import final_exit_code

    new, old = (read_records(Path(word)) for word in words)
    comparison = compare_records(new, old, across=across)
    make_console().print(render_changes(comparison))
    return int(final_exit_code(new, undecided=bool(comparison.missing), slower=comparison.slower))
