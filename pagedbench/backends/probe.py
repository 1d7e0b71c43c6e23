"""Tries each feature of a backend on its tiny scenario, in a process of its own, since a wrong kernel may end it.

`python -m pagedbench.backends.probe BACKEND DEVICE` reads the features and paths to try from stdin, and prints one JSON
line for each; `probe` reads them, and goes on behind one that crashed in a new process. Claims are ignored: what is
refused is tried. Most of the time goes into compiling, so `probe_all` has many processes side by side, several of one
backend that compiles.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from queue import SimpleQueue

from pagedbench.backends.base import Backend
from pagedbench.backends.features import FEATURES, Feature
from pagedbench.backends.library import cuda_context_is_dead
from pagedbench.backends.registry import find_backend
from pagedbench.errors import said
from pagedbench.words import AttnPath, Verdict, worst

TIMEOUT = 120.0
CHECKS = ("accuracy", "cache-update")
LINE = "trial: "  # libraries print to stdout, too
SPENT = 75  # exit status of a process that ends itself, since what it tried last has left the device unusable
CORES_A_PROCESS = 4  # which a process that compiles keeps busy, about

Todo = Sequence[tuple[str, str]]
"""Features and paths to try, by name."""


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


def trials_of(backend: Backend) -> Todo:
    """Every feature on every path of a backend on which it makes sense."""
    return [(feature.name, path.value) for feature in FEATURES for path in feature.paths(backend)]


def probe_all(chosen: Sequence[Backend], device: str) -> Generator[tuple[Backend, Trial], None, None]:
    """Try everything on several backends, as many processes at a time as there are CPU cores; each trial as it ends.

    Closed early, it ends the processes that still run.
    """
    cores = max(os.cpu_count() or 1, 2)
    pieces = [(backend, piece) for backend in chosen for piece in _pieces(backend, cores // CORES_A_PROCESS)]
    found: SimpleQueue[tuple[Backend, Trial] | BaseException | None] = SimpleQueue()
    running = _Running()

    def work(backend: Backend, piece: Todo) -> None:
        try:
            for trial in _probe(backend, device, piece, running):
                found.put((backend, trial))
            found.put(None)
        except BaseException as error:  # raised where the trials are asked for
            found.put(error)

    threads = ThreadPoolExecutor(cores)
    try:
        for piece in pieces:
            threads.submit(work, *piece)
        left = len(pieces)
        while left:
            heard = found.get()
            if isinstance(heard, BaseException):
                raise heard
            if heard is None:
                left -= 1
            else:
                yield heard
    finally:
        running.end()
        threads.shutdown(cancel_futures=True)


def probe(backend: Backend, device: str) -> Iterator[Trial]:
    """Try everything on one backend, in order, in one process at a time."""
    yield from _probe(backend, device, trials_of(backend), _Running())


def _pieces(backend: Backend, most: int) -> list[Todo]:
    """A backend's trials, dealt out by feature where it compiles: paths share what is compiled."""
    todo = trials_of(backend)
    names = list(dict.fromkeys(feature for feature, _ in todo))
    count = max(min(most, len(names)), 1) if backend.traits.compile_seconds else 1
    dealt = [set(names[i::count]) for i in range(count)]
    return [[one for one in todo if one[0] in hand] for hand in dealt]


@dataclass
class _Running:
    """The processes at work, from several threads."""

    processes: set[subprocess.Popen[str]] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)
    ended: bool = False

    def start(self, command: Sequence[str]) -> subprocess.Popen[str] | None:
        """Start one; None once `end` was called."""
        with self.lock:
            if self.ended:
                return None
            pipe = subprocess.PIPE
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
            self.processes.add(process)
            return process

    def end(self) -> None:
        """Kill what runs, and start no more."""
        with self.lock:
            self.ended = True
            for process in self.processes:
                process.kill()


def _probe(backend: Backend, device: str, todo: Todo, running: _Running) -> Iterator[Trial]:
    """The trials asked for, each as it ends; a crash or a time-out costs one."""
    command = [sys.executable, "-m", "pagedbench.backends.probe", backend.source, device]
    while todo and (process := running.start(command)) is not None:
        allowed = TIMEOUT + backend.traits.compile_seconds * len(todo)
        late = threading.Event()
        timer = threading.Timer(allowed, _overdue, (process, late))
        timer.start()
        done = 0
        try:
            for trial in _asked(process, todo):
                done += 1
                yield trial
        finally:
            timer.cancel()
        todo = todo[done:]
        if todo and process.returncode != SPENT and not running.ended:
            (feature, path), *todo = todo
            ended = f"no answer within {allowed:g} s" if late.is_set() else _how(process.returncode)
            yield Trial(feature, path, Verdict.CRASHED.value, ended)


def _asked(process: subprocess.Popen[str], todo: Todo) -> Iterator[Trial]:
    """What a process answers, until it ends."""
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError), process.stdin as asked:  # it may have ended before it read
            json.dump(list(todo), asked)
        for line in process.stdout:
            if line.startswith(LINE):
                yield Trial(**json.loads(line.removeprefix(LINE)))


def _overdue(process: subprocess.Popen[str], late: threading.Event) -> None:
    late.set()
    process.kill()


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
        text = " ".join(said(error).split())
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
        if trial.verdict == Verdict.ERROR and cuda_context_is_dead():
            sys.exit(SPENT)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
