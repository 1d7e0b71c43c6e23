"""What each backend says of itself, asked in a worker: a library may crash, hang or print when it is imported.

The parent's side is `ask`, the worker's `describe`. One that takes the worker down is listed with how it ended, and the
rest are asked in a new worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pagedbench.report.capabilities import Ability, BackendReport
from pagedbench.runner.pool import RequestLost, WorkerOptions, Workers
from pagedbench.words import AttnPath

if TYPE_CHECKING:
    from pagedbench.backends.base import Backend, Traits

ANSWER_SECONDS = 60.0  # importing one library more


def ask(names: Sequence[str], device: str) -> list[BackendReport]:
    """A report of each backend, in the order of the names. Raises `UsageError` for a name that means nothing."""
    with Workers(WorkerOptions()) as workers:
        return [_ask_one(workers, name, device) for name in names]


def _ask_one(workers: Workers, name: str, device: str) -> BackendReport:
    try:
        said = workers.describe(name, device, ANSWER_SECONDS)
    except RequestLost as lost:
        return _lost(name, lost.reason)
    abilities = tuple(Ability(**ability) for ability in said.pop("abilities"))
    return BackendReport(**{**said, "paths": tuple(said["paths"])}, abilities=abilities)


def _lost(name: str, reason: str) -> BackendReport:
    """In place of a report: how the process ended that was to make it."""
    return BackendReport(
        name=name,
        about="could not be loaded",
        version=None,
        available=False,
        reason=f"loading it fails: {reason}",
        note=None,
        paths=(),
    )


def describe(backend: Backend, device: str) -> dict[str, Any]:
    """In the worker: a `BackendReport` as a message."""
    from pagedbench.backends.registry import presence

    found = presence(backend, device)
    report = BackendReport(
        name=backend.name,
        about=backend.about,
        version=found.version,
        available=found.available,
        reason=found.reason,
        note=found.note,
        paths=tuple(path.value for path in backend.paths),
        traits=_traits(backend),
        abilities=tuple(_abilities(backend, device)) if found.available else (),
    )
    return asdict(report)


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
    if path is AttnPath.VARLEN:
        return "by the tool, before it gathers"
    return "in place, by the library" if traits.appends else "by the tool, before the call"


def _merged(sentences: list[str]) -> str:
    """One sentence where all paths say the same."""
    bare = {sentence.partition(": ")[2] for sentence in sentences}
    return bare.pop() if len(bare) == 1 else "; ".join(sentences)


def _abilities(backend: Backend, device: str) -> list[Ability]:
    from pagedbench.backends.features import FEATURES, claim

    return [
        Ability(feature.name, path.value, claim(backend, feature, path, device), hint=feature.hint)
        for feature in FEATURES
        for path in feature.paths(backend)
    ]
