"""`pagedbench selftest`: prove the checks. Every fault of the catalogue is planted in a right kernel and must be
caught."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pagedbench.cli.options import Device
from pagedbench.words import ExitCode

if TYPE_CHECKING:
    from pagedbench.runner.selftest import Plan, Trialled

_SECONDS_BETWEEN_LINES = 15.0


def command(
    device: Device = "cpu",
    lengths: Annotated[
        str, typer.Option("--lengths", metavar="N,N,...", help="Add decode steps of so many keys.", show_default=False)
    ] = "",
    faults: Annotated[
        list[str] | None,
        typer.Option("--fault", metavar="NAME", help="Only this fault. Repeatable.", show_default=False),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(
            "--jobs", "-j", min=0, help="Processes at a time. Default: one a core, at most 4.", show_default=False
        ),
    ] = 0,
    full: Annotated[
        bool, typer.Option("--full", help="All checks on long trials too, and what was read located. Minutes more.")
    ] = False,
    explain: Annotated[bool, typer.Option("--list", help="Print what the faults are, and run nothing.")] = False,
    json: Annotated[
        Path | None,
        typer.Option(
            "--json", metavar="FILE", help="A record for each fault and scenario.", dir_okay=False, show_default=False
        ),
    ] = None,
) -> None:
    """Prove the checks: plant every fault of the catalogue, print which check catches it.

    Exit 1 if a fault that can show is missed, or if the right kernel is accused.
    """
    from pagedbench.faults.catalogue import FAULTS, find_fault
    from pagedbench.report.table import make_console

    chosen = [find_fault(name) for name in faults] if faults else list(FAULTS)
    console = make_console()
    if explain:
        for fault in chosen:
            report = f" [{fault.report}]" if fault.report else ""
            console.print(
                f"{fault.kind}  {fault.name}: {fault.sentence}; shows with {fault.shows}{report}", markup=False
            )
        return
    from pagedbench.runner.selftest import Plan

    plan = Plan(tuple(_numbers(lengths)), tuple(fault.name for fault in chosen), _device(device), full)
    _run(plan, jobs or min(4, os.cpu_count() or 1), json)


def _run(plan: Plan, jobs: int, file: Path | None) -> None:
    from pagedbench.checks.registry import CHECKS
    from pagedbench.report.kill_matrix import summary, table
    from pagedbench.report.table import make_console
    from pagedbench.runner.selftest import run_in_parallel, run_selftest
    from pagedbench.runner.signals import SIGNAL_EXIT, interruptible

    expected = plan.count
    results: list[Trialled] = []
    with _progress(expected) as advance, _records(file) as keep, interruptible() as interruption:
        made = run_in_parallel(plan, jobs, advance) if jobs > 1 else run_selftest(plan, advance)
        with closing(made):
            for result in made:
                results.append(result)
                keep(result)
    console = make_console()
    console.print(table(results, list(CHECKS)))
    for line in [*summary(results, whole=interruption.by is None), *([plan.left_out] if plan.left_out else [])]:
        console.print(line, markup=False)
    if interruption.by is not None:
        tried = f"{len(results)} of {expected} pairs were tried"
        make_console(stderr=True).print(f"interrupted by {interruption.by.name}: {tried}", markup=False)
        raise typer.Exit(SIGNAL_EXIT + interruption.by)
    if any(result.failed for result in results):
        raise typer.Exit(ExitCode.WRONG)


@contextmanager
def _records(file: Path | None) -> Iterator[Callable[[Trialled], None]]:
    """Writes a record as each result is made, so that an interrupted run keeps what it had."""
    import json

    from pagedbench.cli.outputs import refuse_shared
    from pagedbench.cli.replacing import Earlier, of_trial, tried
    from pagedbench.errors import CannotWrite
    from pagedbench.report.kill_matrix import record
    from pagedbench.results.store import require_room

    if file is None:
        yield lambda result: None
        return
    refuse_shared({"json": file})
    require_room(file)
    before, made = Earlier(file, of_trial), []

    def keep(result: Trialled) -> None:
        made.append(record(result))
        print(json.dumps(made[-1]), file=stream)

    try:
        stream = file.open("w", encoding="utf-8", buffering=1)
    except OSError as error:
        raise CannotWrite(file, error.strerror) from error
    with stream:
        yield keep
    before.tell(map(tried, made))


@contextmanager
def _progress(total: int) -> Iterator[Callable[[str], None]]:
    """A bar on stderr, a line every quarter of a minute where that is no terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from pagedbench.report.table import make_console

    console = make_console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=20), MofNCompleteColumn())
    last_line, done = time.monotonic(), 0
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)

        def advance(label: str) -> None:
            nonlocal last_line, done
            bar.update(task, completed=done, description=label)
            done += 1
            if not console.is_terminal and time.monotonic() - last_line > _SECONDS_BETWEEN_LINES:
                last_line = time.monotonic()
                console.print(f"{done} of {total}: {label}", markup=False)

        yield advance


def _numbers(text: str) -> list[int]:
    from pagedbench.errors import UsageError

    try:
        return [int(part) for part in text.split(",") if part]
    except ValueError as error:
        raise UsageError(f"--lengths {text}: found no list of numbers", "write --lengths 70,1000,8192") from error


def _device(name: str) -> str:
    import torch

    from pagedbench.errors import UsageError

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("there is no CUDA device", "use --device cpu")
    return name
