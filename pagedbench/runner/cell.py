"""In the worker: one cell walked from its scenario to its record.

Available → supported → fits into memory → checked → explained if wrong → timed if right. What each step finds is the
work of other packages; here is the order, what an exception means, and what goes into the record.
"""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import torch

from pagedbench.backends.base import Backend
from pagedbench.backends.files import USER_MODULE
from pagedbench.backends.library import cuda_context_is_dead
from pagedbench.backends.registry import backends, find_backend, presence
from pagedbench.checks.base import Check, CheckContext, CheckResult
from pagedbench.checks.blindness import blindness, unreached
from pagedbench.checks.floor import floor
from pagedbench.errors import PagedbenchError, said
from pagedbench.faults.diagnosis import diagnose
from pagedbench.oracle.reference import NoReference
from pagedbench.report.footprint_plot import footprint_svg
from pagedbench.results.record import CellRecord, CheckDict
from pagedbench.results.text import clipped, printable
from pagedbench.runner.common import Common
from pagedbench.runner.limits import limit_address_space
from pagedbench.runner.paths import shorten_paths
from pagedbench.runner.protocol import Job
from pagedbench.runner.relations import checks_of, mistyped_targets
from pagedbench.runner.work import work_of
from pagedbench.scenario.model import Scenario
from pagedbench.tensors.prepare import available_bytes, call_spec, estimate_bytes
from pagedbench.timing.options import TimingOptions
from pagedbench.words import AttnPath, Verdict, worst

SMALL_FLOPS = 4e9
MOST_RESERVE = 1 << 28
MOST_MESSAGE = 500  # characters of an exception's first line; the traceback has more
DECLARE = "what a kernel cannot take is declared with unsupported= of @pagedbench.backend: such cells are then skipped"
SECONDS_A_FLOP = {"cpu": 4e-10, "cuda": 2e-12}
"""What a stage may take longer for the size of its batch: a few calls of a slow kernel, on a slow machine."""


class Tell(Protocol):
    """Sends an event to the parent at once."""

    def __call__(self, event: str, **values: object) -> None:
        """`stage` with `name` and `allowance`, `check` with `result`, or `verdict` with `record`."""


@dataclass(frozen=True)
class Judged:
    """A cell's record, and whether this process should judge no further one (dead context, memory run out)."""

    record: CellRecord
    worker_is_spent: bool = False


class _Decided(Exception):
    """The cell's verdict is known before any check ran."""

    def __init__(self, verdict: Verdict, message: str) -> None:
        super().__init__(message)
        self.verdict = verdict
        self.message = message


@dataclass(frozen=True)
class Failure:
    """What an exception out of a backend or a check means."""

    verdict: Verdict
    message: str
    worker_is_spent: bool


def judge(job: Job, tell: Tell, backend: Backend | None = None, common: Common | None = None) -> Judged:
    """Walk one cell. Never raises for what a kernel does; a crash of the process is the parent's to see.

    `backend` is the one to judge where the job's name alone does not find it (a function in a running test). `common`
    is what jobs on the same scenario hand on to each other.
    """
    shared = common or Common()
    record = CellRecord(job.scenario.name, job.backend, job.path, job.device, Verdict.SKIPPED)
    walk = _Walk(job, record, tell, shared, backend)
    spent = False
    try:
        walk.run()
    except _Decided as decided:
        record.verdict, record.message = decided.verdict, decided.message
    except (Exception, SystemExit) as error:
        failure = read_failure(error)
        record.verdict, record.message = failure.verdict, failure.message
        record.error = _traceback(error)
        spent = failure.worker_is_spent
    if record.verdict not in (Verdict.PASS, Verdict.SKIPPED):
        shared.forget_values()
    if not (spent or walk.spent):
        release_memory(job.device)
    return Judged(record, spent or walk.spent)


class _Walk:
    """The steps of one cell, in order. `spent` is set when the process should not be used again."""

    def __init__(self, job: Job, record: CellRecord, tell: Tell, common: Common, backend: Backend | None) -> None:
        self._job = job
        self._common = common
        self._backend = backend
        self._record = record
        self._tell = tell
        self._allowance = 0.0
        self.spent = False

    def run(self) -> None:
        """All steps; fills the record."""
        with self._stage("its preparation"):
            context = self._admit()
        with threads_for(context):
            results = self._judge(context)
            if self._record.verdict is Verdict.PASS and self._job.timing is not None:
                results += self._time(context, self._job.timing)
                self._conclude(results)
            if not self.spent:
                self._explain(context, results)
        if self._record.verdict is Verdict.PASS:
            self._common.keep(context)

    def _judge(self, context: CheckContext) -> list[CheckResult]:
        """The checks, and what there is to say beside their verdict."""
        results = self._check(context)
        self._note_sample(context)
        self._conclude(results)
        appends = context.backend.traits_for(context.path).appends
        self._record.warnings.extend(blindness(context.scenario, context.layout))
        self._record.warnings.extend(mistyped_targets(context.scenario, [b.name for b in backends()]))
        self._record.warnings.extend(unreached(context.scenario.override, context.path, appends))
        if self._record.verdict is Verdict.PASS and self._job.floor:
            with self._stage("its floor"):
                self._record.floor = floor(context).sentence
        return results

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        """Tell the parent where we are, and keep how long it took."""
        self._tell("stage", name=name, allowance=self._allowance)
        begun = time.perf_counter()
        try:
            yield
        finally:
            self._record.durations[name] = round(time.perf_counter() - begun, 4)

    def _admit(self) -> CheckContext:
        """The context to check in. Raises `_Decided` for a cell that cannot run here."""
        job = self._job
        backend, path = self._backend or find_backend(job.backend), AttnPath(job.path)
        there = presence(backend, job.device)
        if not there.available:
            raise _Decided(Verdict.SKIPPED, there.reason or f"{backend.name} is not available on {job.device}")
        if path not in backend.paths:
            raise _Decided(Verdict.SKIPPED, f"{backend.name} has no {path} path")
        scenario, layout = self._common.known(job.scenario)
        if path is AttnPath.DECODE and layout.batch and layout.uniform_query_len is None:
            lengths = f"{layout.query_lens.min()} to {layout.query_lens.max()}"
            raise _Decided(Verdict.SKIPPED, f"decode cannot take prefill: its query lengths differ, {lengths}")
        reason = backend.unsupported(call_spec(scenario, layout, path, job.device))
        if reason is not None:
            raise _Decided(Verdict.SKIPPED, reason)
        self._reserve(estimate_bytes(scenario, layout, path, job.device).total)
        self._allowance = work_of(scenario.attention, layout).flops * SECONDS_A_FLOP[job.device]
        return self._common.context(scenario, backend, path, job.device)

    def _reserve(self, need: int) -> None:
        """Skip what does not fit, and bound what may be used beyond it."""
        have = available_bytes(self._job.device) + self._common.held_bytes(self._job.device)
        self._record.memory = {"need": need, "have": have}
        if need > have:
            raise _Decided(Verdict.SKIPPED, f"needs {_gib(need)} of memory, {_gib(have)} are free")
        if self._job.device == "cpu":
            limit_address_space(need, torch.get_num_threads())

    def _check(self, context: CheckContext) -> list[CheckResult]:
        """The results of the suite. An exception of the backend ends it: the other checks would meet it again; and so
        does an output that is none."""
        results = []
        for check in checks_of(self._job.suite, self._job.scenario, self._job.related):
            with self._stage(f"the check {check.name}"):
                result = self._one_check(check, context)
            results.append(result)
            self._record.checks.append(as_dict(result))
            self._tell("check", result=as_dict(result))
            if result.final or result.verdict in (Verdict.ERROR, Verdict.CRASHED):
                break
        return results

    def _one_check(self, check: Check, context: CheckContext) -> CheckResult:
        try:
            reason = check.not_applicable(context)
            if reason is not None:
                return CheckResult(check.name, Verdict.SKIPPED, reason)
            result = check.run(context)
            _synchronise(self._job.device)
            return result
        except (Exception, SystemExit) as error:
            return self._failed(check.name, error)

    def _time(self, context: CheckContext, options: TimingOptions) -> list[CheckResult]:
        """How the timed buffers were judged, if they were found wrong or the backend raised; else nothing."""
        from pagedbench.runner.timed import AFTER_TIMING, time_cell

        try:
            with self._stage("its timing"):
                after = time_cell(context, options, self._record)
        except (Exception, SystemExit) as error:
            after = self._failed(AFTER_TIMING, error)
        if after.verdict is Verdict.PASS:
            return []
        self._record.checks.append(as_dict(after))
        return [after]

    def _explain(self, context: CheckContext, results: list[CheckResult]) -> None:
        """Say what a failing cell behaves like. The verdict is told before: asking a bad kernel again may end it."""
        wrong = self._record.verdict.is_wrong
        if not (wrong or self._record.verdict is Verdict.ERROR) or any(result.final for result in results):
            return
        self._tell("verdict", record=self._record.to_json())
        if self._job.diagnose:
            with self._stage("its diagnosis"), self._harmless("diagnosis"):
                # Of an exception, that no fault explains it is no news.
                found = [d for d in diagnose(context, results) if wrong or d.fault]
                self._record.diagnosis = [{"sentence": d.sentence, "fault": d.fault, "score": d.score} for d in found]
        if self._job.pictures and wrong:
            with self._stage("its picture"), self._harmless("picture"):
                svg = footprint_svg(context)
                self._record.pictures |= {"footprint": svg} if svg else {}

    @contextmanager
    def _harmless(self, what: str) -> Iterator[None]:
        """What explains a verdict must not change it: an exception in here is a warning."""
        try:
            yield
            _synchronise(self._job.device)
        except (Exception, SystemExit) as error:
            failure = read_failure(error)
            self.spent = self.spent or failure.worker_is_spent
            self._record.warnings.append(f"no {what}: {failure.message}")

    def _failed(self, name: str, error: BaseException) -> CheckResult:
        """An exception as the result of a check."""
        failure = read_failure(error)
        self.spent = self.spent or failure.worker_is_spent
        self._record.error = _traceback(error)
        place = place_in_users_file(error)
        meant = f"; {DECLARE}" if place and isinstance(error, NotImplementedError) else ""
        unusual = unusual_for_a_kernel(self._job.scenario) if place else ""
        return CheckResult(name, failure.verdict, failure.message + place + unusual + meant)

    def _note_sample(self, context: CheckContext) -> None:
        """Say when the oracle answered for some rows only. Asking for a reference here would make one."""
        reference = context.__dict__.get("reference")
        if reference is not None and reference.sampled:
            self._record.sampled_rows, self._record.total_rows = len(reference.rows), reference.total_rows

    def _conclude(self, results: list[CheckResult]) -> None:
        """The cell's verdict from its checks', and the sentence of the check that decided it."""
        record = self._record
        record.verdict = worst(result.verdict for result in results)
        record.message = next((r.message for r in results if r.verdict is record.verdict), "")
        # Of every execution that was held against the oracle, which this figure tells.
        held = [result.metrics for result in results if "worst_error" in result.metrics]
        ratios = [of[name] for of in held for name in ("worst_ratio", "worst_lse_ratio") if name in of]
        record.worst_error = max(ratios, default=None)


def read_failure(error: BaseException) -> Failure:
    """Whose fault an exception is and what it leaves behind.

    After a CUDA error the context answers every later call with the same error, so the process is spent; after memory
    ran out it may hold what it could not free.
    """
    text = printable(f"{type(error).__name__}: {said(error)}").rstrip(": ")
    first_line = clipped(text.splitlines()[0], MOST_MESSAGE)
    if isinstance(error, NoReference):
        return Failure(Verdict.NO_REFERENCE, str(error), worker_is_spent=False)
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in text:
        return Failure(Verdict.ERROR, f"ran out of memory ({first_line})", worker_is_spent=True)
    if "CUDA error" in text or "CUDA_ERROR" in text or cuda_context_is_dead():
        return Failure(Verdict.CRASHED, first_line, worker_is_spent=True)
    return Failure(Verdict.ERROR, error.message if isinstance(error, PagedbenchError) else first_line, False)


def place_in_users_file(error: BaseException) -> str:
    """Where a user's own file is on the way of an exception, the line in it: ` (my_kernel.py:12)`."""
    places = [
        f" ({Path(frame.f_code.co_filename).name}:{line})"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__", "").startswith(USER_MODULE)
    ]
    return places[-1] if places else ""


def unusual_for_a_kernel(scenario: Scenario) -> str:
    """What a user's kernel may not be made for, and an exception in it seldom says (`; here nothing is appended`)."""
    spec, facts = scenario.attention, []
    if not scenario.batch.append:
        facts.append("nothing is appended: k_new and v_new are None")
    if spec.head_dim_v != spec.head_dim:
        facts.append(f"V has head dim {spec.head_dim_v} beside K's {spec.head_dim}")
    return f"; here {', and '.join(facts)}" if facts else ""


def as_dict(result: CheckResult) -> CheckDict:
    """A check's result as it stands in the record; coordinates that do not apply are left out."""
    findings = [{k: v for k, v in asdict(f).items() if v is not None} for f in result.findings]
    return {
        "check": result.check,
        "verdict": result.verdict.value,
        "message": result.message,
        "findings": findings,  # type: ignore[typeddict-item]
        "metrics": {name: float(value) for name, value in result.metrics.items()},
        "warnings": list(result.warnings),
    }


def _traceback(error: BaseException) -> str:
    return printable(shorten_paths("".join(traceback.format_exception(error))))[-4000:]


@contextmanager
def threads_for(context: CheckContext) -> Iterator[None]:
    """One thread for a small batch on a CPU: handing out such work costs more than doing it, and on a busy machine the
    helpers keep each other waiting. The record of a timing says how many threads there were."""
    threads = torch.get_num_threads()
    if context.device == "cpu" and work_of(context.scenario.attention, context.layout).flops < SMALL_FLOPS:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _synchronise(device: str) -> None:
    """Wait for the device, so that an error surfaces in the step that made it."""
    if device == "cuda":
        torch.cuda.synchronize()


def release_memory(device: str) -> None:
    """Leave nothing of this cell for the next, but what torch holds in reserve for small ones: to give that back and
    ask for it again takes longer than their checks."""
    gc.collect()
    if device == "cuda" and torch.cuda.memory_reserved() > MOST_RESERVE:
        torch.cuda.empty_cache()


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
