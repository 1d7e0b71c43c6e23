"""The parent's part of a comparison: what is asked of the worker, and what stands in the record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pagedbench.results.comparison import ComparisonRecord
from pagedbench.results.record import CellRecord
from pagedbench.runner.compare import SideChoice, compare_scenarios
from pagedbench.runner.protocol import Job, ResolvedTarget
from pagedbench.scenario.loader import loads
from pagedbench.timing.options import TimingOptions
from pagedbench.words import Verdict

from .conftest import SCENARIO


class Workers:
    """Finds every side wrong, and keeps whom it was asked about."""

    device = "cpu"
    environment: dict[str, Any] = {}

    def __init__(self) -> None:
        self.judged: list[str] = []

    def judge(self, job: Job, compile_seconds: float, on_stage: Callable[[str], None]) -> CellRecord:
        self.judged.append(job.backend)
        return CellRecord(job.scenario.name, job.backend, job.path, job.device, Verdict.MISMATCH, "is wrong")


class Watcher:
    def begin(self, label: str) -> None: ...

    def stage(self, name: str) -> None: ...

    def end(self, record: ComparisonRecord) -> None: ...


def side(name: str, reason: str | None = None) -> SideChoice:
    return SideChoice(ResolvedTarget(name, ("decode",), available=reason is None, reason=reason), "decode")


def compared(*sides: SideChoice) -> tuple[ComparisonRecord, list[str]]:
    workers = Workers()
    result = compare_scenarios(
        loads(SCENARIO.format(name="small")),
        [sides],
        workers,  # type: ignore[arg-type]
        TimingOptions(),
        Watcher(),
    )
    (record,) = result.records
    return record, workers.judged


def test_beside_a_side_that_is_not_there_none_is_judged() -> None:
    """To judge and time the other takes its time, and comes to no comparison."""
    record, judged = compared(side("torch"), side("fa9", "fa9 is not installed"))
    assert judged == []
    assert [(s.backend, s.verdict) for s in record.sides] == [("torch", Verdict.SKIPPED), ("fa9", Verdict.SKIPPED)]
    assert record.sides[0].message.endswith("nothing to compare it with: fa9 is not available")
    assert record.sides[1].message == "fa9 is not installed"
    assert record.message == "", "that would make the comparison undecided: exit 5 in place of 3"


def test_two_that_are_there_are_compared_beside_a_third_that_is_not() -> None:
    _, judged = compared(side("torch"), side("fa9", "fa9 is not installed"), side("mine.py:f"))
    assert judged[0] == "torch"
    assert judged[-1] == "mine.py:f"
