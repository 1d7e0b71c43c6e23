"""In the worker: time one cell that was found right, and look at what the timed loop left behind.

What is timed is the placement that was checked, in fresh memory; the append writes the same slots at each call, so the
state never advances. Fast and wrong must not pass: the last output of the loop is judged like the first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pagedbench.backends.base import Output
from pagedbench.backends.execute import Stage, stages
from pagedbench.checks.accuracy import judge
from pagedbench.checks.base import CheckContext, CheckResult
from pagedbench.results.record import CellRecord
from pagedbench.runner.work import work_of
from pagedbench.timing.measure import Subject, measure
from pagedbench.timing.measurement import Measurement
from pagedbench.timing.options import TimingOptions
from pagedbench.timing.roofline import Work, measure_peaks
from pagedbench.words import Verdict

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


def time_cell(context: CheckContext, options: TimingOptions, record: CellRecord) -> CheckResult:
    """Measure the cell and fill in the record's times; returns how the timed buffers were judged afterwards."""
    prepared = context.prepare()
    backend, attention = context.backend, context.scenario.attention
    job = [_Timed(stage) for stage in stages(backend, prepared.call, backend.plan(prepared.call))]
    judged: list[CheckResult] = []

    def verify() -> str | None:
        output = job[-1].last
        assert output is not None, "the loop ran the last stage"
        judged.append(judge(context, output, context.layout, context.reference, AFTER_TIMING))
        return None if judged[-1].verdict is Verdict.PASS else judged[-1].message

    work = work_of(attention, context.layout)
    subject = Subject(
        plan=lambda: backend.plan(prepared.call),
        work=work,
        peaks=measure_peaks(context.device, attention.dtype),
        dtype=attention.dtype,
        verify=verify,
    )
    _fill_in(record, measure(job, device=context.device, options=options, subject=subject), work)
    return judged[-1]


def _fill_in(record: CellRecord, measurement: Measurement, work: Work) -> None:
    """The record's figures of speed. Times that must not be used stay out of them, with the reason as a warning."""
    record.timing = measurement.to_dict()
    record.work = {"bytes": work.bytes, "flops": work.flops}
    kernel = measurement.get("kernel")
    if measurement.invalid is not None or kernel is None:
        record.warnings.append(f"no time: {measurement.invalid or 'the kernel time could not be measured'}")
        return
    record.time_us, record.spread_us = kernel.median / 1e3, kernel.mad / 1e3
    record.gb_per_s, record.tflop_per_s = work.bytes / kernel.median, work.flops / kernel.median / 1e3
    record.limit_share = measurement.roofline.share if measurement.roofline else None
    record.warnings.extend(measurement.warnings)
