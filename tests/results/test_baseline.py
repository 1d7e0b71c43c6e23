"""Baselines: correctness is compared cell by cell, speed only beyond doubt, and only where it can be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagedbench.errors import NotWhole, UsageError
from pagedbench.results.baseline import compare_records, load_baseline, save_baseline
from pagedbench.results.record import CellRecord
from pagedbench.words import Verdict

ENVIRONMENT = {"gpu": "NVIDIA H200", "driver": "580.159", "torch": "2.13.0"}


def record(
    verdict: Verdict = Verdict.PASS,
    *,
    kernel_us: float | None = None,
    seed: int = 0,
    notes: Sequence[str] = (),
    peaks: float = 1.0,
    sm_mhz: int | None = None,
    **values: object,
) -> CellRecord:
    """A cell; its kernel times have 1 % of noise, and 0.3 % of luck that a process has as a whole. `notes` of its
    timing; `peaks` scales what the machine reached at best; `sm_mhz` is the chip's clock meanwhile."""
    timing = None
    if kernel_us is not None:
        rng = np.random.default_rng(seed)
        luck = rng.normal(1, 0.003)
        samples = kernel_us * 1e3 * luck * rng.normal(1, 0.01, 200)
        roofline = {"peak_gb_s": 28 * peaks, "peak_tflop_s": 1.2 * peaks}
        timing = {"quantities": {"kernel": {"samples": samples.tolist()}}, "invalid": None}
        timing |= {"notes": list(notes), "roofline": roofline, "sm_mhz": sm_mhz}
    base: dict[str, object] = {"scenario": "docs-decode", "backend": "torch", "path": "decode", "device": "cuda"}
    base |= {"environment": ENVIRONMENT, "scenario_hash": "abc", "timing": timing}
    return CellRecord(**{**base, "verdict": verdict, **values})  # type: ignore[arg-type]


def processes(kernel_us: float, first_seed: int, count: int = 3, **values: Any) -> list[CellRecord]:
    return [record(kernel_us=kernel_us, seed=first_seed + i, **values) for i in range(count)]


def test_a_cell_that_was_right_and_fails_is_a_regression_with_its_reason() -> None:
    found = compare_records([record(Verdict.MISMATCH, message="3 rows are wrong")], [record()])
    assert found.regressed
    assert found.changes[0].reason == "MISMATCH: 3 rows are wrong"


def test_a_cell_that_failed_before_is_no_regression_and_its_repair_is_told() -> None:
    wrong = record(Verdict.MISMATCH)
    assert not compare_records([wrong], [wrong]).regressed
    assert compare_records([record()], [wrong]).changes[0].change == "fixed"


def test_a_cell_that_is_no_longer_judged_is_missing_and_a_new_one_is_new() -> None:
    gone = compare_records([record(Verdict.SKIPPED, message="not installed")], [record()])
    assert [c.reason for c in gone.missing] == ["judged in the baseline, but not now: not installed"]
    other = compare_records([record(backend="triton")], [record()])
    assert [c.reason for c in other.missing] == [
        "judged in the baseline, but not now; judge its backend and path, too, or save the baseline without it"
    ]
    assert compare_records([record()], [record(Verdict.SKIPPED)]).changes[0].change == "new"


def test_scenarios_that_were_not_asked_for_are_left_out() -> None:
    found = compare_records([record()], [record(), record(scenario="edge-padding")])
    assert [c.key[0] for c in found.changes] == ["docs-decode"]


def test_a_baseline_that_knows_none_of_the_scenarios_is_no_other_environment() -> None:
    found = compare_records([record(environment={"gpu": "NVIDIA H200"})], [record(scenario="edge-padding")])
    assert [c.change for c in found.changes] == ["new"]
    assert not found.differences


def test_another_scenario_under_the_same_name_is_not_compared() -> None:
    found = compare_records([record(scenario_hash="xyz")], [record()])
    assert found.changes[0].change == "not compared"


def test_a_slow_down_of_5_percent_of_a_100_us_kernel_is_found() -> None:
    found = compare_records(processes(105.0, 100), processes(100.0, 200))
    assert found.slower
    assert found.changes[0].ratio == pytest.approx(1.05, abs=0.01)


def test_identical_code_raises_no_false_alarm_in_twenty_runs() -> None:
    for trial in range(20):
        found = compare_records(processes(100.0, 1000 + 10 * trial), processes(100.0, 5000 + 10 * trial))
        assert not found.slower


BUSY = "interference: this process was preempted 182 times while it was timed (load 3.9 on 2 cores)"
SLOW_CLOCK = "the chip's clock was 1,650 MHz on the slower side, 1,980 MHz on the other"
THROTTLED = "kernel: every sample was throttled (power cap); shown for want of better ones"


@pytest.mark.parametrize(
    ("new", "old", "why"),
    [
        ({"notes": [BUSY]}, {}, "other programs ran beside 3 of 6 processes"),
        ({}, {"notes": [BUSY]}, "other programs ran beside 3 of 6 processes"),
        ({"notes": [THROTTLED]}, {}, "the chip was throttled on the slower side"),
        ({"notes": [THROTTLED], "sm_mhz": 1500}, {}, "the chip was throttled on the slower side"),
        ({"sm_mhz": 1650}, {"sm_mhz": 1980}, SLOW_CLOCK),
        ({"device": "cpu", "peaks": 0.8}, {"device": "cpu"}, "the machine itself was 1.25 times as slow"),
    ],
)
def test_a_change_that_the_machine_may_explain_is_no_alarm(new: dict[str, Any], old: dict[str, Any], why: str) -> None:
    found = compare_records(processes(120.0, 100, **new), processes(100.0, 200, **old))
    assert not found.slower
    assert found.changes[0].change == "ambiguous"
    assert found.changes[0].reason.endswith(f"; but {why}")


def test_a_kernel_is_found_slower_where_the_machine_does_not_explain_it() -> None:
    """A GPU throttled on both sides, on the quicker one, or in name only, or whose clock was lower by less; a CPU that
    was faster meanwhile, or slower by less."""
    for new, old in [
        ({"notes": [THROTTLED]}, {"notes": [THROTTLED]}),
        ({}, {"notes": [THROTTLED]}),
        ({"notes": [THROTTLED], "sm_mhz": 1980}, {"sm_mhz": 1980}),
        ({"sm_mhz": 1935}, {"sm_mhz": 1980}),
        ({"device": "cpu", "peaks": 1.3}, {"device": "cpu"}),
        ({"device": "cpu", "peaks": 0.95}, {"device": "cpu"}),
    ]:
        assert compare_records(processes(120.0, 100, **new), processes(100.0, 200, **old)).slower


def test_too_few_processes_are_ambiguous_and_never_slower() -> None:
    found = compare_records(processes(150.0, 1, count=2), processes(100.0, 50))
    assert found.changes[0].change == "ambiguous"
    assert not found.slower


def test_times_from_another_environment_are_refused_with_the_difference_unless_asked_for() -> None:
    elsewhere = [record(kernel_us=100.0, seed=i, environment={**ENVIRONMENT, "gpu": "NVIDIA H100"}) for i in range(3)]
    with pytest.raises(UsageError, match="gpu: NVIDIA H100 → NVIDIA H200"):
        compare_records(processes(100.0, 1), elsewhere)
    assert compare_records(processes(100.0, 1), elsewhere, across=True).differences


def test_the_library_version_is_what_is_compared_and_no_difference() -> None:
    other = [record(kernel_us=100.0, seed=i, environment={**ENVIRONMENT, "backend_version": "3"}) for i in range(3)]
    assert not compare_records(processes(100.0, 9), other).differences


def test_a_baseline_comes_back_as_saved_and_a_wrong_name_gets_a_hint(tmp_path: Path) -> None:
    save_baseline("main", processes(100.0, 1), tmp_path)
    assert len(load_baseline("main", tmp_path)) == 3
    with pytest.raises(UsageError) as caught:
        load_baseline("mian", tmp_path)
    assert caught.value.hint == "did you mean main?"


@pytest.mark.parametrize("size", [0, 100, -100])
def test_a_baseline_that_is_empty_or_cut_off_is_no_gate(size: int, tmp_path: Path) -> None:
    file = save_baseline("main", processes(100.0, 1), tmp_path)
    file.write_text(file.read_text()[:size])
    with pytest.raises(NotWhole) as refused:
        load_baseline("main", tmp_path)
    assert refused.value.hint == "save it again: pagedbench baseline save main SCENARIO..."


@pytest.mark.parametrize(
    ("records", "complaint"),
    [
        (processes(100.0, 1, count=2), r"was timed in 2 process\(es\), a baseline needs 3"),
        ([record(Verdict.SKIPPED)], "no cell passed"),
    ],
)
def test_what_makes_no_baseline_is_refused(records: list[CellRecord], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=complaint):
        save_baseline("main", records, tmp_path)


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden"])
def test_a_name_is_no_path(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no name"):
        save_baseline(name, processes(100.0, 1), tmp_path)
