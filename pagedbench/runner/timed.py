"""In the worker: time one cell that was found right, and look at what the timed loop left behind.

What is timed is the placement that was checked, on the very memory that was checked: the append writes the same slots
at each call, so the state never advances. Fast and wrong must not pass: the last output of the loop and the memory it
leaves are judged like the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from pagedbench.backends.base import Backend, Output
from pagedbench.backends.execute import Stage, stages, tool_writes
from pagedbench.checks.accuracy import judge
from pagedbench.checks.base import CheckContext, CheckResult
from pagedbench.checks.cache_update import judge_memory
from pagedbench.results.record import CellRecord
from pagedbench.runner.work import work_of
from pagedbench.tensors.call import Call
from pagedbench.tensors.prepare import Prepared
from pagedbench.timing.measure import Subject, measure
from pagedbench.timing.measurement import Measurement
from pagedbench.timing.options import TimingOptions
from pagedbench.timing.parts import Part
from pagedbench.timing.roofline import Work, measure_peaks, remeasure_peaks
from pagedbench.words import AttnPath, Verdict

AFTER_TIMING = "after timing"


@dataclass
class _Timed:
    """A stage as the clock wants it: its result is kept, the last one to be looked at after the loop."""

    stage: Stage
    last: Output | None = None

    @property
    def name(self) -> str:
        return self.stage.name

    @property
    def run(self) -> Callable[[], None]:
        return self._run

    def _run(self) -> None:
        self.last = self.stage.run()


@dataclass(frozen=True)
class TimedCall:
    """A call as the clock wants it: its stages, what is known of it, and, after the loop, how it was judged."""

    job: Sequence[_Timed]
    subject: Subject
    judged: list[CheckResult]

    @property
    def output(self) -> Output:
        """What the call last gave. Raises `TypeError` where its last stage gave nothing."""
        output = self.job[-1].last
        if output is None:
            raise TypeError("the backend returned no Output")
        return output


def timed_call(context: CheckContext, prepared: Prepared) -> TimedCall:
    """The cell's call on `prepared`, to be timed; its output and all its memory are judged after the last call."""
    backend, attention, call = context.backend, context.scenario.attention, prepared.call
    judged: list[CheckResult] = []
    subject = Subject(
        plan=(lambda: backend.plan(call)) if type(backend).plan is not Backend.plan else None,
        work=work_of(attention, context.layout),
        peaks=measure_peaks(context.device, attention.dtype),
        peaks_again=lambda: remeasure_peaks(context.device, attention.dtype),
        dtype=attention.dtype,
        verify=lambda: _wrong(judged, judge_buffers(context, prepared, timed.output)),
        part=_append_inside(context, call),
    )
    timed = TimedCall([_Timed(stage) for stage in stages(backend, call, backend.plan(call))], subject, judged)
    return timed


def _append_inside(context: CheckContext, call: Call) -> Part | None:
    """The append of a kernel that does it beside its attention; None where it is a stage, or there is none."""
    backend = context.backend
    inside = call.k_new is not None and call.spec.path is not AttnPath.VARLEN and not tool_writes(backend, call)
    if not inside or context.scenario.override.values:
        return None
    bare = without_append(call)
    if backend.unsupported(bare.spec) is not None:
        return None
    return Part("append", "attention", [_Timed(stage) for stage in stages(backend, bare, backend.plan(bare))])


def without_append(call: Call) -> Call:
    """The same call once its new tokens are in the cache: nothing to append, the same keys, an output of its own."""
    host = call.host and replace(call.host, cache_seqlens=call.host.total_seqlens)
    return replace(
        call,
        spec=replace(call.spec, append=False),
        k_new=None,
        v_new=None,
        cache_seqlens=call.total_seqlens,
        host=host,
        out=None if call.out is None else torch.empty_like(call.out),
    )


def judge_buffers(context: CheckContext, prepared: Prepared, output: Output) -> CheckResult:
    """The output by the oracle, then the memory bit for bit; the first of the two that is wrong."""
    result = judge(context, output, context.layout, context.reference, AFTER_TIMING)
    if result.verdict is not Verdict.PASS:
        return result
    return judge_memory(prepared, AFTER_TIMING, by_tool=tool_writes(context.backend, prepared.call))


def _wrong(judged: list[CheckResult], result: CheckResult) -> str | None:
    judged.append(result)
    return None if result.verdict is Verdict.PASS else result.message


def time_cell(context: CheckContext, options: TimingOptions, record: CellRecord) -> CheckResult:
    """Measure the cell and fill in the record's times; returns how the timed buffers were judged afterwards."""
    timed = timed_call(context, context.base.prepared)
    measurement = measure(timed.job, device=context.device, options=options, subject=timed.subject)
    _fill_in(record, measurement, work_of(context.scenario.attention, context.layout))
    return timed.judged[-1]


def _fill_in(record: CellRecord, measurement: Measurement, work: Work) -> None:
    """The record's figures of speed. Times that must not be used stay out of them, with the reason as a warning."""
    record.timing = measurement.to_dict()
    record.work = {"bytes": work.bytes, "flops": work.flops}
    kernel = measurement.kernel
    if measurement.invalid is not None or kernel is None:
        record.warnings.append(f"no time: {measurement.invalid or 'the kernel time could not be measured'}")
        return
    record.time_us = kernel.median / 1e3
    record.spread_us = kernel.mad / 1e3 if len(kernel.samples) > 1 else None  # one sample has none
    record.gb_per_s, record.tflop_per_s = work.bytes / kernel.median, work.flops / kernel.median / 1e3
    record.limit_share = measurement.roofline.share if measurement.roofline else None
    if measurement.launch_bound and measurement.call is not None:
        record.warnings.append(
            f"launch-bound: the host takes {measurement.call.median / 1e3:.1f} µs to start what the device does in "
            f"{kernel.median / 1e3:.1f} µs"
        )
    record.warnings.extend(w for w in measurement.warnings if w.startswith("kernel"))
