"""In the worker, after the checks: what a cell's verdict is worth, and what is wrong where something is.

Blindness beside a pass, the floor on request, a diagnosis and a picture of a failure. Changes no verdict: what fails
here is a remark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pagedbench.checks.base import CheckContext, CheckResult
from pagedbench.checks.blindness import blindness
from pagedbench.results.record import CellRecord, DiagnosisDict
from pagedbench.runner.protocol import Job
from pagedbench.words import Verdict

_MOST_DIAGNOSES = 5


def explain(job: Job, context: CheckContext, results: Sequence[CheckResult], record: CellRecord) -> None:
    """Add warnings, diagnosis and pictures to the record of a checked cell."""
    record.warnings += blindness(context.scenario, context.layout)
    if job.floor:
        _remark(record, "the floor", lambda: _floor(context, record))
    wrong = any(result.verdict.is_wrong for result in results)
    if job.diagnose and wrong:
        _remark(record, "a diagnosis", lambda: _diagnosis(context, results, record))
    if job.pictures and any(result.verdict is Verdict.FOOTPRINT for result in results):
        _remark(record, "a picture", lambda: _picture(context, record))


def _remark(record: CellRecord, what: str, work: Callable[[], None]) -> None:
    """Do it; if it cannot be done, say so and go on."""
    try:
        work()
    except Exception as error:
        record.warnings.append(f"{what} could not be made: {type(error).__name__}: {error}")


def _floor(context: CheckContext, record: CellRecord) -> None:
    from pagedbench.checks.floor import floor

    record.warnings.append(f"floor: {floor(context).sentence}")


def _diagnosis(context: CheckContext, results: Sequence[CheckResult], record: CellRecord) -> None:
    from pagedbench.faults.diagnosis import diagnose

    record.diagnosis += [
        DiagnosisDict(sentence=d.sentence, fault=d.fault, score=d.score)
        for d in diagnose(context, results)[:_MOST_DIAGNOSES]
    ]


def _picture(context: CheckContext, record: CellRecord) -> None:
    from pagedbench.report.footprint_plot import footprint_svg

    picture = footprint_svg(context)
    if picture is not None:
        record.pictures["footprint"] = picture
