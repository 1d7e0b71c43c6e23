"""`pagedbench shrink`: a failing scenario reduced to a smallest one that fails in the same way, saved as a file."""

from __future__ import annotations

from enum import Enum
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pagedbench.cli.options import Device, Timeout

if TYPE_CHECKING:
    from pagedbench.results.record import CellRecord
    from pagedbench.runner.pool import Workers
    from pagedbench.runner.protocol import ResolvedTarget
    from pagedbench.scenario.model import Scenario


class Suite(str, Enum):
    """The checks that must fail."""

    RUN = "run"
    QUICK = "quick"
    FULL = "full"


def command(
    scenario: Annotated[str, typer.Argument(metavar="SCENARIO", help="A shipped name or a file.", show_default=False)],
    backend: Annotated[str, typer.Option("--backend", "-b", metavar="TARGET", help="The backend that fails.")],
    path: Annotated[str | None, typer.Option("--path", "-p", help="Its path; one only.", show_default=False)] = None,
    suite: Annotated[Suite, typer.Option("--suite", help="The checks that must fail.")] = Suite.QUICK,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to save it.", dir_okay=False, show_default=False)
    ] = None,
    most: Annotated[int, typer.Option("--most", min=1, help="Try at most so many scenarios.")] = 400,
    device: Device = "auto",
    timeout: Timeout = 60.0,
) -> None:
    """Make a failing scenario small: fewer sequences, shorter, fewer heads, no feature that the failure does not need.

    Exit 0 with the smallest scenario saved; 3 if the scenario does not fail. Ctrl-C saves the smallest so far.
    """
    from dataclasses import replace

    from pagedbench.cli.naming import only_scenario
    from pagedbench.cli.outputs import refuse_shared
    from pagedbench.cli.progress import resolving
    from pagedbench.errors import UsageError
    from pagedbench.layout.drawing.words import plural
    from pagedbench.report.table import reason_of_skip
    from pagedbench.results.store import require_room, write_text
    from pagedbench.runner.pool import WorkerOptions, Workers
    from pagedbench.runner.shrink import shrink
    from pagedbench.runner.signals import SIGNAL_EXIT
    from pagedbench.scenario.dump import dumps
    from pagedbench.words import ExitCode, Verdict

    first = only_scenario(scenario)
    name = f"{first.name.split('[')[0]}-shrunk"
    file = output or _unused(name)
    refuse_shared({"output": file}, [scenario, backend], written_by_hand=[".py", ".jsonl", ".gz"])
    require_room(file)  # what is found takes minutes
    with Workers(WorkerOptions(device, timeout)) as workers:
        (target, *more) = resolving(workers)([backend], [path] if path else [])
        if more or len(target.paths) != 1:
            raise UsageError(f"{backend} has the paths {', '.join(target.paths)}", "choose one with --path")
        judged = _judged(workers, target, suite, first)
        wanted = judged.verdict
        if not wanted.is_wrong and not wanted.is_undecided:
            hint = "" if suite is Suite.FULL else f" in the suite {suite.value}; --suite full has more checks"
            why = f": {reason_of_skip(judged)}" if wanted is Verdict.SKIPPED else hint
            typer.echo(f"{first.name} does not fail on {target.name}:{target.paths[0]}: {wanted}{why}")
            raise typer.Exit(int(ExitCode.NOTHING_CHECKED))
        typer.echo(f"{first.name} on {target.name}:{target.paths[0]}: {wanted}; shrinking", err=True)
        found = shrink(first, lambda s: _judged(workers, target, suite, s).verdict is wanted, most=most)
    kernel = f"{Path(target.name).name}:{target.paths[0]}"
    tried = f"{plural(found.tried, 'scenario')} tried"
    if found.interrupted_by is not None:
        tried = f"interrupted by {found.interrupted_by.name}: {tried}"
        if not found.kept:
            typer.echo(f"{tried}, none of them smaller and failing; nothing saved", err=True)
            raise typer.Exit(SIGNAL_EXIT + found.interrupted_by)
    form = "The smallest form" if found.interrupted_by is None and found.tried < most else "A smaller form"
    about = f"{form} of {first.name} on which {kernel} still gives {wanted}."
    if not found.kept:
        about = f"As {first.name}, on which {kernel} gives {wanted}: nothing smaller that was tried does."
    text = dumps(replace(found.scenario, name=name, about=about))
    write_text(file, text)
    typer.echo(text, nl=False)
    typer.echo(f"{tried}, {found.kept} kept; saved as {file}", err=True)
    if found.interrupted_by is not None:
        raise typer.Exit(SIGNAL_EXIT + found.interrupted_by)


def _unused(name: str) -> Path:
    """A file of that name that is not there yet: what another kernel, or a longer search, came to is kept."""
    numbered = (Path(f"{name}-{number}.yaml" if number > 1 else f"{name}.yaml") for number in count(1))
    return next(file for file in numbered if not file.exists())


def _judged(workers: Workers, target: ResolvedTarget, suite: Suite, scenario: Scenario) -> CellRecord:
    from pagedbench.runner.protocol import Job

    job = Job(scenario, target.name, target.paths[0], workers.device, suite.value, diagnose=False)
    return workers.judge(job, target.compile_seconds, lambda stage: None)
