"""`pagedbench baseline`: keep records to hold later versions against, and compare by hand."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pagedbench.cli import options as o

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pagedbench.results.record import CellRecord

PROCESSES = 3


class Action(str, Enum):
    """What to do."""

    SAVE = "save"
    COMPARE = "compare"
    LIST = "list"


def command(
    action: Annotated[Action, typer.Argument(help="save, compare or list.", show_default=False)],
    name: Annotated[str, typer.Argument(help="The baseline's name.", show_default=False)] = "",
    sources: Annotated[
        list[str] | None,
        typer.Argument(help="Files of records, or scenarios to run now.", metavar="SOURCE", show_default=False),
    ] = None,
    backend: o.Backends = None,
    path: o.Paths = None,
    device: o.Device = "auto",
    timeout: o.Timeout = 60.0,
    processes: Annotated[int, typer.Option(min=PROCESSES, help="Worker processes that time each cell.")] = PROCESSES,
    across: o.Across = False,
) -> None:
    """Save records as a baseline (results/baselines/NAME.jsonl), compare records with one, or list them.

    `save NAME SCENARIO...` runs the scenarios in three processes; `save NAME RECORDS...` takes what `run --json` wrote.
    `compare NAME RECORDS...` exits 1 for a cell that is not right any more, 4 for one that is slower beyond doubt.
    """
    from pagedbench.cli.judging import BASELINE_TIMING, Request
    from pagedbench.errors import UsageError
    from pagedbench.results.baseline import FOLDER, baseline_file, load_baseline, save_baseline
    from pagedbench.results.store import is_record_file, require_room

    if action is Action.LIST:
        typer.echo("\n".join(sorted(file.stem for file in FOLDER.glob("*.jsonl"))) or f"no baselines in {FOLDER}")
        return
    files = [Path(source) for source in sources or () if is_record_file(source)]
    scenarios = [source for source in sources or () if not is_record_file(source)]
    if not sources or (files and scenarios):
        raise UsageError(f"baseline {action.value} needs records or scenarios", "give .jsonl files, or scenarios")
    # a wrong name, or one that cannot be written, is refused before anything is timed, not after
    old = load_baseline(name) if action is Action.COMPARE else []
    if action is Action.SAVE:
        require_room(baseline_file(name))
    request = Request(
        command="run",
        scenarios=scenarios,
        suite="run",
        backends=backend or (),
        paths=path or ("all",),  # as `check` takes them: what a baseline lacks, it holds against nothing
        device=device,
        timeout=timeout,
        timing=BASELINE_TIMING,
    )
    records = _read(files) if files else _run(request, processes)
    if action is Action.SAVE:
        untimed = "" if any(record.timing for record in records) else "; none is timed: it holds verdicts alone"
        before = ", in place of an earlier one" if baseline_file(name).exists() else ""
        typer.echo(f"saved {len(records)} records as {save_baseline(name, records)}{before}{untimed}")
    else:
        _compare(records, old, across=across)


def _read(files: Sequence[Path]) -> list[CellRecord]:
    from pagedbench.results.store import read_records

    return [record for file in files for record in read_records(file)]


def _run(request: object, processes: int) -> list[CellRecord]:
    from pagedbench.cli.judging import Request, judge
    from pagedbench.report.table import make_console, one_a_cell, render
    from pagedbench.runner.signals import SIGNAL_EXIT

    assert isinstance(request, Request)
    result = judge(request, processes)
    make_console().print(render(one_a_cell(result.records)))
    if result.interrupted_by is not None:
        done = f"{len(result.records)} of {result.planned} cells were done, and no baseline was saved or compared"
        typer.echo(f"interrupted by {result.interrupted_by.name}: {done}", err=True)
        raise typer.Exit(SIGNAL_EXIT + result.interrupted_by)
    if result.failed is not None:
        raise result.failed
    return result.records


def _compare(records: Sequence[CellRecord], old: Sequence[CellRecord], *, across: bool) -> None:
    from pagedbench.report.changes import render_changes
    from pagedbench.report.table import make_console
    from pagedbench.results.baseline import compare_records
    from pagedbench.runner.outcome import final_exit_code

    comparison = compare_records(records, old, across=across)
    make_console().print(render_changes(comparison))
    raise typer.Exit(final_exit_code(records, undecided=bool(comparison.missing), slower=comparison.slower))
