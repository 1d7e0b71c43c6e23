"""Workers as the parent uses them: one at a time, reused from cell to cell, replaced when a cell took one down.

Whatever happens in a worker, `judge` returns a record of exactly that cell. The parent imports no torch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from types import TracebackType
from typing import Any

from pagedbench.errors import PagedbenchError, UsageError
from pagedbench.results.record import CellRecord, CheckDict
from pagedbench.runner.limits import GIB, host_memory_available
from pagedbench.runner.paths import plain_target
from pagedbench.runner.process import WorkerGone, WorkerProcess
from pagedbench.runner.protocol import Job, Message, ResolvedTarget
from pagedbench.runner.sanitize import SLOWDOWN, fold_findings, sanitizer_command
from pagedbench.words import Verdict

START_SECONDS = 180.0  # importing torch and its libraries from a cold network disk
REQUEST_SECONDS = 120.0
MEMORY_SHARE = 0.85  # of the host memory that is free at the start: a worker that takes more is stopped
CROWDED = 3.0  # times as long a compiler may take beside others: 180 s were too few beside 31
ROOM_FOR_A_CELL = 16 * GIB  # a worker beside others may take this much: CUDA, a compiler, the inputs of a long batch
SANITIZER_OUTPUT = 4 << 20


class WorkerError(PagedbenchError):
    """No worker can be had: nothing can be judged (exit 5)."""


class RequestLost(UsageError):
    """A question of the parent's own took the worker down: what was to be loaded for it cannot be. `reason` is how it
    ended."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class _EndedBefore(Exception):
    """A worker that waited for a cell was found ended when one was sent to it."""


@dataclass(frozen=True)
class WorkerOptions:
    """How workers run: for which device, how long a stage may take (seconds, without compiling), under which tool of
    compute-sanitizer, with how many bytes of resident memory (None: a share of what is free). `at_a_time` of them work
    side by side, and divide the machine's memory and CPU cores among them."""

    device: str = "auto"
    timeout: float = 60.0
    sanitizer: str | None = None
    memory_limit: int | None = None
    at_a_time: int = 1

    @property
    def stage_seconds(self) -> float:
        """What a stage may take, the sanitizer's slowness allowed for."""
        return self.timeout * (SLOWDOWN if self.sanitizer else 1.0)

    def seconds_for(self, compile_seconds: float) -> float:
        """What a stage may take that compiles for so long on a machine to itself."""
        return self.stage_seconds + compile_seconds * (CROWDED if self.at_a_time > 1 else 1.0)


class Workers:
    """A context manager; the first worker starts at once, so that its imports overlap with what the parent does."""

    def __init__(self, options: WorkerOptions) -> None:
        self._options = options
        self._wrapper = sanitizer_command(options.sanitizer) if options.sanitizer else ()
        self._memory_limit = options.memory_limit or _memory_share(options.at_a_time)
        self._hello: Message | None = None
        self._environment: dict[str, Any] | None = None
        self._judged: list[str] = []  # the backends of the cells that the present worker was given
        self._crashed_alone: set[str] = set()
        self._process: WorkerProcess | None = self._start()

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the worker; a later request would start another."""
        self._discard()

    def wait(self) -> None:
        """Return when the worker has started. Raises `UsageError` where there is no such device."""
        self._ready()

    @property
    def device(self) -> str:
        """The device that cells run on, `cpu` or `cuda`; waits for the worker. Raises `UsageError` if there is none."""
        return str(self._ready()["device"])

    @property
    def environment(self) -> dict[str, Any]:
        """What the worker says of the machine."""
        if self._environment is None:
            self._environment = self._request({"do": "environment", "device": self.device})["environment"]
        return dict(self._environment)

    def resolve(self, targets: Sequence[str], paths: Sequence[str]) -> list[ResolvedTarget]:
        """The backends that the names mean; the device's defaults for none. Raises `UsageError` for a wrong name.

        A library that takes the worker down when it is imported must not take the others with it: then nothing is
        imported here, and the library's own cells say how it ends.
        """
        message = {"do": "resolve", "targets": list(targets), "paths": list(paths), "device": self.device}
        try:
            reply = self._request({**message, "ask": True})
        except RequestLost:
            if targets and all(".py" in target for target in targets):
                raise  # a file has to be imported to know what is in it
            reply = self._request({**message, "ask": False})
        return [ResolvedTarget.from_message(target) for target in reply["targets"]]

    def require_known(self, targets: Sequence[str]) -> None:
        """Raises `UsageError` for a name that means nothing. No library is imported; a file is."""
        self._request({"do": "resolve", "targets": list(targets), "paths": [], "device": self.device, "ask": False})

    def describe(self, backend: str, device: str, seconds: float) -> Message:
        """What a backend says of itself within so many seconds (`listing.describe`). Raises as `_request`."""
        report: Message = self._request({"do": "describe", "backend": backend, "device": device}, seconds)["report"]
        return report

    def _request(self, message: Message, seconds: float = REQUEST_SECONDS) -> Message:
        """The reply to a question of the parent's own. Raises `UsageError` when it is refused, `RequestLost` when it
        ends the worker."""
        worker = self._live()
        try:
            worker.send(message)
            reply = worker.receive(seconds)
        except WorkerGone as gone:
            said = worker.output()
            self._discard()
            asked = " ".join(message.get("targets", [])) or message["do"]
            raise RequestLost(f"loading {asked} failed: {gone.reason}\n{said}".rstrip(), gone.reason) from None
        if reply["event"] == "refused":
            raise UsageError(reply["message"], reply["hint"])
        return reply

    def judge(self, job: Job, compile_seconds: float, on_stage: Callable[[str], None]) -> CellRecord:
        """The record of one cell. `on_stage` is told the name of each stage as it begins."""
        begun = time.monotonic()
        at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        seconds = self._options.seconds_for(compile_seconds)
        worker = self._live()
        try:
            record, spent = self._judged_by(worker, job, seconds, on_stage)
        except _EndedBefore as ended:
            self._discard()
            worker = self._live()
            record, spent = self._judged_by(worker, job, seconds, on_stage, again=True)
            record.warnings.append(f"judged by a new worker: {ended}")
        record.stderr = worker.output()
        if self._options.sanitizer:
            fold_findings(record, worker.output(SANITIZER_OUTPUT), self._options.sanitizer)
        company = [backend for backend in dict.fromkeys(self._judged) if backend != job.backend]
        if spent:
            self._discard()
        if record.verdict is Verdict.CRASHED and company and job.backend not in self._crashed_alone:
            self._try_alone(record, job, seconds, on_stage, company)
        record.time = at
        record.durations["total"] = round(time.monotonic() - begun, 4)
        return record

    def _try_alone(
        self, record: CellRecord, job: Job, seconds: float, on_stage: Callable[[str], None], company: Sequence[str]
    ) -> None:
        """Whether a cell crashes in a worker of its own as well. Where it does not, the record says so and names whom
        it shared the worker with: a kernel may damage memory, or leave a thread that does, and be gone when it shows.

        It stays a crash: that it passes alone is no proof, and the run must not turn green while nobody is to blame.
        A backend that did it alone once is not asked again: every try costs a start.
        """
        try:
            worker = self._live()
        except PagedbenchError:  # the next cell says why; this one is judged, and its record is not to be lost
            return
        alone, spent = self._judged_by(worker, job, seconds, on_stage, again=True)
        if spent:
            self._discard()
        if alone.verdict is Verdict.CRASHED:
            self._crashed_alone.add(job.backend)
        else:
            record.message += (
                f"; alone in a new worker it is {alone.verdict.value}: perhaps the doing of {' or '.join(company)}, "
                "judged in the same worker before"
            )

    def _judged_by(
        self,
        worker: WorkerProcess,
        job: Job,
        seconds: float,
        on_stage: Callable[[str], None],
        *,
        again: bool = False,
    ) -> tuple[CellRecord, bool]:
        """The record, and whether the worker is spent. Raises `_EndedBefore` where its end was no doing of the cell,
        unless this is `again`: what ends two workers before they say a word is the cell.
        """
        progress = _Progress(on_stage)
        last = plain_target(self._judged[-1]) if self._judged else ""
        when = f"between a cell of {last} and this one" if last else "before its first cell"
        self._judged.append(job.backend)
        try:
            worker.send({**job.to_message(), "seconds": seconds})
            return progress.follow(worker, seconds)
        except WorkerGone as gone:
            if not again and not progress.begun and not gone.timed_out:
                raise _EndedBefore(f"{gone.reason}, {when}") from None
            return progress.verdict_so_far(gone) or progress.lost(job, gone), True

    def ask(self, message: Message, seconds_a_stage: float, on_stage: Callable[[str], None]) -> Message:
        """The reply to a request of several stages that judges no cell. Raises `WorkerGone` when none came."""
        worker = self._live()
        try:
            seconds = self._options.stage_seconds + seconds_a_stage
            worker.send({**message, "seconds": seconds})
            while (reply := worker.receive(seconds))["event"] == "stage":
                on_stage(reply["name"])
        except WorkerGone:
            self._discard()
            raise
        if reply["spent"]:
            self._discard()
        return reply

    def kill(self) -> None:
        """Tell the process of a request that another thread waits for to end: that thread hears that it is gone."""
        if self._process is not None:
            self._process.tell_to_end()

    def _start(self) -> WorkerProcess:
        self._judged = []
        others = self._options.at_a_time
        threads = max((os.cpu_count() or 1) // others, 1) if others > 1 else None
        return WorkerProcess(self._options.device, self._wrapper, self._memory_limit, threads)

    def _live(self) -> WorkerProcess:
        """A worker that is ready for a request."""
        if self._process is None or self._hello is None:
            return self._started(self._process or self._start())
        return self._process

    def _ready(self) -> Message:
        if self._hello is None:
            self._live()
        assert self._hello is not None
        return self._hello

    def _started(self, worker: WorkerProcess, *, again: bool = False) -> WorkerProcess:
        """The worker, once it has said that it is ready; another where it was ended before, by whomever: that costs no
        cell, and not the run. Raises `WorkerError` if that one ends as well, or if one does not answer."""
        self._process = worker
        try:
            reply = worker.receive(START_SECONDS)
        except WorkerGone as gone:
            said = worker.output()
            self._discard()
            if not again and not gone.timed_out:
                return self._started(self._start(), again=True)
            raise WorkerError(f"the worker process does not start: {gone.reason}\n{said}".rstrip()) from None
        if reply["event"] == "refused":
            raise UsageError(reply["message"], reply["hint"])
        self._hello = reply
        return worker

    def _discard(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None


def _memory_share(at_a_time: int) -> int:
    """What one of so many workers may take, in bytes of resident memory."""
    free = int(host_memory_available() * MEMORY_SHARE)
    return min(free, max(free // at_a_time, ROOM_FOR_A_CELL))


_BEFORE = "its start"


class _Progress:
    """What has been heard of a cell so far: enough for its record when the worker does not come back."""

    def __init__(self, on_stage: Callable[[str], None]) -> None:
        self._on_stage = on_stage
        self._stage = _BEFORE
        self._allowance = 0.0  # seconds that the stage may take beyond what every one may
        self._checks: list[CheckDict] = []
        self._verdict: CellRecord | None = None

    @property
    def begun(self) -> bool:
        """Whether the worker said anything of the cell."""
        return self._stage != _BEFORE

    def follow(self, worker: WorkerProcess, seconds_a_stage: float) -> tuple[CellRecord, bool]:
        """Listen until the cell is done: its record, and whether the worker is spent. Raises `WorkerGone`."""
        while True:
            reply = worker.receive(seconds_a_stage + self._allowance)
            try:
                done = self._heard(reply)
            except (KeyError, TypeError, ValueError, UsageError):
                worker.kill()
                raise WorkerGone("sent what is no reply: something wrote into its channel to pagedbench") from None
            if done is not None:
                return done
            if reply["event"] == "stage":
                self._on_stage(self._stage)

    def _heard(self, reply: Message) -> tuple[CellRecord, bool] | None:
        """Take in a reply: the cell's record, and whether the worker is spent, with the last one."""
        if reply["event"] == "stage":
            self._stage, self._allowance = str(reply["name"]), float(reply["allowance"])
        elif reply["event"] == "check":
            self._checks.append(reply["result"])
        elif reply["event"] == "verdict":
            self._verdict = CellRecord.from_json(reply["record"])
        else:
            return CellRecord.from_json(reply["record"]), bool(reply["spent"])
        return None

    def verdict_so_far(self, gone: WorkerGone) -> CellRecord | None:
        """The record of a cell that was judged, and took its worker down when it was asked again to explain itself."""
        if self._verdict is not None:
            self._verdict.warnings.append(f"{gone.reason}, in {self._stage}")
        return self._verdict

    def lost(self, job: Job, gone: WorkerGone) -> CellRecord:
        """The record of a cell that took its worker down."""
        return CellRecord(
            scenario=job.scenario.name,
            backend=job.backend,
            path=job.path,
            device=job.device,
            verdict=Verdict.TIMED_OUT if gone.timed_out else Verdict.CRASHED,
            message=f"{gone.reason}, in {self._stage}",
            checks=self._checks,
        )
