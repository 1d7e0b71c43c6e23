"""`pagedbench backends`: what is here, what each can do and why not, and with `--probe` whether that is true."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pagedbench.cli import options as o

if TYPE_CHECKING:
    from collections.abc import Sequence
    from signal import Signals

    from pagedbench.backends.probe import Trial
    from pagedbench.report.capabilities import BackendReport


def command(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="BACKEND", help="Only these, in detail.", autocompletion=o.complete_backend, show_default=False
        ),
    ] = None,
    probe: Annotated[
        bool, typer.Option("--probe", help="Try each feature, and mark claims that are not true.")
    ] = False,
    device: o.Device = "auto",
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """List the backends: versions, paths, features, and why something is not there."""
    from pagedbench.backends.registry import backend_names
    from pagedbench.report.capabilities import detail, overview, print_out
    from pagedbench.runner.listing import ask

    where = _device(device)
    asked = list(dict.fromkeys(names or backend_names()))
    first: dict[str, tuple[str, BackendReport]] = {}  # torch and torch:decode are one
    for name, report in zip(asked, ask(asked, where), strict=True):
        first.setdefault(report.name, (name, report))
    asked, reports = [name for name, _ in first.values()], [report for _, report in first.values()]
    ended_by = None
    if probe:
        there = [name for name, report in zip(asked, reports, strict=True) if report.available]
        trials, ended_by = _trials(there, where)
        reports = [_probed(report, trials.get(report.name, [])) for report in reports]
    if json:
        _print_json(reports)
    elif names:
        for report in reports:
            print_out(detail(report))
    else:
        print_out(overview(reports, where))
    if ended_by is not None:
        from pagedbench.runner.signals import SIGNAL_EXIT

        raise typer.Exit(SIGNAL_EXIT + ended_by)


def _device(asked: str) -> str:
    import torch

    from pagedbench.runner.environment import require_device

    require_device(asked)
    return asked if asked != "auto" else "cuda" if torch.cuda.is_available() else "cpu"


def _trials(there: Sequence[str], device: str) -> tuple[dict[str, list[Trial]], Signals | None]:
    """What the probes of those that are there found, by backend, and the signal that ended them early, if one did."""
    from contextlib import closing

    from rich.console import Console

    from pagedbench.backends.probe import probe_all, trials_of
    from pagedbench.backends.registry import backend_of
    from pagedbench.cli.progress import TrialProgress
    from pagedbench.runner.signals import interruptible

    chosen = [backend_of(name) for name in there]
    planned = sum(len(trials_of(backend)) for backend in chosen)
    found: dict[str, list[Trial]] = {}
    with (
        interruptible() as interruption,
        TrialProgress(Console(stderr=True), planned) as progress,
        closing(probe_all(chosen, device)) as trials,
    ):
        for backend, trial in trials:
            found.setdefault(backend.name, []).append(trial)
            progress.end(f"{backend.name}:{trial.path} {trial.feature} {trial.verdict}")
    if interruption.by is not None:
        done = sum(map(len, found.values()))
        name = interruption.by.name
        typer.echo(f"interrupted by {name}: {done} of {planned} trials were made; the others are claims", err=True)
    return found, interruption.by


def _probed(report: BackendReport, trials: Sequence[Trial]) -> BackendReport:
    """The report with what the probe found beside each claim."""
    from dataclasses import replace

    found = {(trial.feature, trial.path): trial for trial in trials}
    abilities = [
        replace(ability, works=trial.works, found=f"{trial.verdict} {trial.message}".strip())
        if (trial := found.get((ability.feature, ability.path)))
        else ability
        for ability in report.abilities
    ]
    return replace(report, abilities=tuple(abilities))


def _print_json(reports: list[BackendReport]) -> None:
    import json
    from dataclasses import asdict

    typer.echo(json.dumps([asdict(report) for report in reports], indent=2, ensure_ascii=False))
