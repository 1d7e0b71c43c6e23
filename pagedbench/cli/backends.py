"""`pagedbench backends`: what is here, what each can do and why not, and with `--probe` whether that is true."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pagedbench.cli import options as o

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pagedbench.backends.base import Backend, Traits
    from pagedbench.backends.probe import Trial
    from pagedbench.report.capabilities import Ability, BackendReport
    from pagedbench.words import AttnPath


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
    from pagedbench.backends.registry import backends, find_backend
    from pagedbench.report.capabilities import detail, overview, print_out

    where = _device(device)
    chosen = [find_backend(name) for name in names] if names else backends()
    trials = _trials(chosen, where) if probe else {}
    reports = [_report(backend, where, trials.get(backend.name, [])) for backend in chosen]
    if json:
        _print_json(reports)
    elif names:
        for report in reports:
            print_out(detail(report))
    else:
        print_out(overview(reports, where))


def _device(asked: str) -> str:
    import torch

    from pagedbench.errors import UsageError

    if asked not in {"auto", "cpu", "cuda"}:
        raise UsageError(f"there is no device {asked!r}", hint="auto, cpu or cuda")
    return asked if asked != "auto" else "cuda" if torch.cuda.is_available() else "cpu"


def _report(backend: Backend, device: str, trials: Sequence[Trial]) -> BackendReport:
    from pagedbench.report.capabilities import BackendReport

    found = backend.available(device)
    return BackendReport(
        name=backend.name,
        about=backend.about,
        version=found.version,
        available=found.available,
        reason=found.reason,
        note=found.note,
        paths=tuple(path.value for path in backend.paths),
        traits=_traits(backend),
        abilities=tuple(_abilities(backend, device, trials)) if found.available else (),
    )


def _traits(backend: Backend) -> dict[str, str]:
    """What the backend declares, as sentences, path by path where its functions differ."""
    said: dict[str, list[str]] = {}
    for path in backend.paths:
        traits = backend.traits_for(path)
        leaks = [region for region, contract in traits.nan_regions.items() if contract == "may-leak"]
        sentences = {
            "append": _who_appends(path, traits),
            "LSE": traits.lse_note,
            "repeatable": "equal calls give equal bits" if traits.repeatable else "equal calls may differ in bits",
            "NaN": f"may leak from {', '.join(leaks)}" if leaks else "leaks from no slot that must not be read",
        }
        for name, sentence in sentences.items():
            said.setdefault(name, []).append(f"{path}: {sentence}")
    return {name: _merged(sentences) for name, sentences in said.items()}


def _who_appends(path: AttnPath, traits: Traits) -> str:
    from pagedbench.words import AttnPath

    if path is AttnPath.VARLEN:
        return "by the tool, before it gathers"
    return "in place, by the library" if traits.appends else "by the tool, before the call"


def _merged(sentences: list[str]) -> str:
    """One sentence where all paths say the same."""
    bare = {sentence.partition(": ")[2] for sentence in sentences}
    return bare.pop() if len(bare) == 1 else "; ".join(sentences)


def _abilities(backend: Backend, device: str, trials: Sequence[Trial]) -> list[Ability]:
    from dataclasses import replace

    from pagedbench.backends.features import FEATURES, claim
    from pagedbench.report.capabilities import Ability

    claims = {
        (feature.name, path.value): Ability(
            feature.name, path.value, claim(backend, feature, path, device), hint=feature.hint
        )
        for feature in FEATURES
        for path in feature.paths(backend)
    }
    for trial in trials:
        key = (trial.feature, trial.path)
        claims[key] = replace(claims[key], works=trial.works, found=f"{trial.verdict} {trial.message}".strip())
    return list(claims.values())


def _trials(chosen: Sequence[Backend], device: str) -> dict[str, list[Trial]]:
    """What the probes of those that are there found, by backend, with their progress on stderr."""
    from rich.console import Console
    from rich.progress import track

    from pagedbench.backends.probe import probe_all

    there = [backend for backend in chosen if backend.available(device).available]
    done = track(
        probe_all(there, device),
        description=f"probing {len(there)} backends",
        total=len(there),
        console=Console(stderr=True),
        transient=True,
    )
    return {backend.name: trials for backend, trials in done}


def _print_json(reports: list[BackendReport]) -> None:
    import json
    from dataclasses import asdict

    typer.echo(json.dumps([asdict(report) for report in reports], indent=2, ensure_ascii=False))
