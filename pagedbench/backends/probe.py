"""Tries each feature of a backend on its tiny scenario, in a process of its own, since a wrong kernel may end it.

`python -m pagedbench.backends.probe BACKEND DEVICE` reads the features and paths to try from stdin, and prints one JSON
line for each; `probe` reads them, and goes on behind one that crashed. Claims are ignored: what is refused is tried.
Most of the time goes into compiling, so `probe_all` has several backends' processes side by side.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass

from pagedbench.backends.base import Backend
from pagedbench.backends.features import FEATURES, Feature
from pagedbench.backends.registry import find_backend
from pagedbench.words import AttnPath, Verdict, worst

TIMEOUT = 120.0
CHECKS = ("accuracy", "cache-update")
LINE = "trial: "  # libraries print to stdout, too


@dataclass(frozen=True)
class Trial:
    """What happened when a feature was tried on a path: PASS, or a verdict with its message."""

    feature: str
    path: str
    verdict: str
    message: str = ""

    @property
    def works(self) -> bool:
        """The numbers are right and the cache is as it must be."""
        return self.verdict == Verdict.PASS.value


def probe(backend: Backend, device: str) -> Iterator[Trial]:
    """Try every feature on every path of a backend; a crash or a time-out costs one trial."""
    todo = [(feature.name, path.value) for feature in FEATURES for path in feature.paths(backend)]
    while todo:
        trials, ended = _run(backend, device, todo)
        yield from trials
        todo = todo[len(trials) :]
        if todo:
            (feature, path), *todo = todo
            yield Trial(feature, path, Verdict.CRASHED.value, ended)


def probe_all(chosen: Sequence[Backend], device: str) -> Iterator[tuple[Backend, list[Trial]]]:
    """Probe several backends, as many at a time as there are CPU cores; each with its trials once it is done."""
    with ThreadPoolExecutor(max(os.cpu_count() or 1, 2)) as threads:
        probes = {threads.submit(lambda one: list(probe(one, device)), backend): backend for backend in chosen}
        for done in as_completed(probes):
            yield probes[done], done.result()


def _run(backend: Backend, device: str, todo: Sequence[tuple[str, str]]) -> tuple[list[Trial], str]:
    """The trials that one process gets through, and how it ended."""
    command = [sys.executable, "-m", "pagedbench.backends.probe", backend.source, device]
    allowed = TIMEOUT + backend.traits.compile_seconds * len(todo)
    try:
        done = subprocess.run(
            command, input=json.dumps(todo), capture_output=True, text=True, timeout=allowed, check=False
        )
        printed, ended = done.stdout, _how(done.returncode)
    except subprocess.TimeoutExpired as late:
        printed = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
        ended = f"no answer within {allowed:g} s"
    lines = [line.removeprefix(LINE) for line in printed.splitlines() if line.startswith(LINE)]
    return [Trial(**json.loads(line)) for line in lines], ended


def _how(code: int) -> str:
    """How a process ended, from its exit code, as `subprocess` gives it."""
    if code >= 0:
        return f"the process exited with status {code}"
    names = {number.value: number.name for number in signal.Signals}
    return f"the process was ended by {names.get(-code, f'signal {-code}')}"


def try_feature(backend: Backend, feature: Feature, path: AttnPath, device: str) -> Trial:
    """Run one feature here and now, without asking whether it is supported."""
    from pagedbench.checks.base import CheckContext
    from pagedbench.checks.registry import CHECKS as KNOWN
    from pagedbench.layout.build import build_layout

    context = CheckContext(feature.scenario, build_layout(feature.scenario), backend, path, device)
    try:
        results = [KNOWN[name].run(context) for name in CHECKS if KNOWN[name].not_applicable(context) is None]
    except Exception as error:
        text = " ".join(str(error).split())
        return Trial(feature.name, path.value, Verdict.ERROR.value, f"{type(error).__name__}: {text[:300]}")
    verdict = worst(result.verdict for result in results)
    return Trial(
        feature.name, path.value, verdict.value, next((r.message for r in results if r.verdict == verdict), "")
    )


def main(name: str, device: str) -> None:
    """The process's work."""
    backend, known = find_backend(name), {feature.name: feature for feature in FEATURES}
    for feature, path in json.load(sys.stdin):
        trial = try_feature(backend, known[feature], AttnPath(path), device)
        print(LINE + json.dumps(asdict(trial)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
