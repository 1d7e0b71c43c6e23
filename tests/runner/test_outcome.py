"""What `expect`, `--require` and `--strict` make of verdicts, and the exit code that follows."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagedbench.results.record import CellRecord
from pagedbench.runner.outcome import (
    apply_expectation,
    final_exit_code,
    strict_failures,
    unmet_requirements,
    wants_memory,
)
from pagedbench.scenario.model import Expectation
from pagedbench.words import ExitCode, Verdict


def record(verdict: Verdict, *, scenario: str = "a", backend: str = "torch", path: str = "decode") -> CellRecord:
    return CellRecord(scenario, backend, path, "cpu", verdict, message="as found")


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        ("skip", Verdict.SKIPPED),
        ("raises", Verdict.ERROR),
        ("raises", Verdict.CRASHED),
        ("fail", Verdict.MISMATCH),
        ("fail", Verdict.LEAK),
    ],
)
def test_a_known_outcome_is_expected_and_keeps_what_it_was(outcome: str, verdict: Verdict) -> None:
    known = record(verdict)
    apply_expectation(known, [Expectation("torch", outcome, "upstream 123")])  # type: ignore[arg-type]
    assert known.verdict is Verdict.EXPECTED
    assert known.expected == {"outcome": outcome, "because": "upstream 123", "verdict": verdict.value}
    assert "upstream 123" in known.message
    assert "as found" in known.message


def test_an_outcome_that_no_longer_happens_is_a_pass_that_says_so() -> None:
    fixed = record(Verdict.PASS)
    apply_expectation(fixed, [Expectation("torch:decode", "fail", "upstream 123")])
    assert fixed.verdict is Verdict.PASS
    assert fixed.warnings[0].startswith("now passes: remove the expectation")
    assert strict_failures([fixed])


def test_another_failure_than_the_known_one_stays_a_failure() -> None:
    worse = record(Verdict.CRASHED)
    apply_expectation(worse, [Expectation("torch", "fail", "upstream 123")])
    assert worse.verdict is Verdict.CRASHED
    assert "expected fail" in worse.warnings[0]


def test_a_skipped_cell_cannot_tell_whether_its_failure_still_happens() -> None:
    absent = record(Verdict.SKIPPED)
    apply_expectation(absent, [Expectation("torch", "fail", "upstream 123")])
    assert absent.verdict is Verdict.SKIPPED
    assert not absent.warnings


def test_the_expectation_of_the_path_counts_before_that_of_the_backend() -> None:
    both = [Expectation("torch", "skip", "general"), Expectation("torch:decode", "fail", "special")]
    known = record(Verdict.MISMATCH)
    apply_expectation(known, both)
    assert known.expected is not None
    assert known.expected["because"] == "special"


def test_an_expectation_of_another_target_says_nothing() -> None:
    other = record(Verdict.MISMATCH)
    apply_expectation(
        other, [Expectation("flash-attn-3", "fail", "upstream 123"), Expectation("torch:varlen", "fail", "")]
    )
    assert other.verdict is Verdict.MISMATCH


def test_a_required_backend_may_judge_a_scenario_on_any_of_its_paths() -> None:
    records = [record(Verdict.PASS, path="varlen"), record(Verdict.SKIPPED, path="decode")]
    assert unmet_requirements(records, ["torch"]) == []
    assert "torch:decode is required, but a was skipped: as found" in unmet_requirements(records, ["torch:decode"])


def test_a_required_backend_must_judge_every_scenario_and_be_there_at_all() -> None:
    records = [record(Verdict.PASS), record(Verdict.SKIPPED, scenario="b")]
    assert unmet_requirements(records, ["torch"]) == ["torch is required, but b was skipped: as found"]
    assert unmet_requirements(records, ["triton"]) == ["triton is required, but no cell was run with it"]


@pytest.mark.parametrize("recorded", ["kernels/mine.py:my_decode", "./kernels/mine.py:my_decode"])
@pytest.mark.parametrize(
    "named", ["kernels/mine.py:my_decode", "./kernels/mine.py:my_decode", "{here}/kernels/mine.py:my_decode"]
)
def test_a_file_is_the_same_however_its_path_is_written(named: str, recorded: str) -> None:
    named = named.format(here=Path.cwd())
    passed = record(Verdict.PASS, backend=recorded)
    assert unmet_requirements([passed], [named]) == []
    assert unmet_requirements([passed], [f"{named}:{passed.path}"]) == []
    wrong = record(Verdict.MISMATCH, backend=recorded)
    apply_expectation(wrong, [Expectation(named, "fail", "known")])
    assert wrong.verdict is Verdict.EXPECTED


def test_strict_does_not_let_a_blind_pass_through() -> None:
    blind = record(Verdict.PASS)
    blind.warnings.append("BLIND: one block a sequence")
    noisy = record(Verdict.PASS)
    noisy.warnings.append("the CPU was busy")
    assert strict_failures([blind, noisy]) == ["a torch:decode: BLIND: one block a sequence"]


@pytest.mark.parametrize(
    ("verdicts", "undecided", "slower", "code"),
    [
        ([Verdict.PASS, Verdict.SKIPPED, Verdict.EXPECTED], False, False, ExitCode.OK),
        ([], False, False, ExitCode.NOTHING_CHECKED),
        ([Verdict.SKIPPED], False, False, ExitCode.NOTHING_CHECKED),
        ([Verdict.EXPECTED, Verdict.SKIPPED], False, False, ExitCode.NOTHING_CHECKED),
        ([Verdict.PASS, Verdict.MISMATCH, Verdict.CRASHED], False, True, ExitCode.WRONG),
        ([Verdict.PASS, Verdict.CRASHED], False, True, ExitCode.UNDECIDED),
        ([Verdict.PASS, Verdict.NO_REFERENCE], False, False, ExitCode.UNDECIDED),
        ([Verdict.PASS], False, True, ExitCode.SLOWER),
        ([Verdict.PASS], True, True, ExitCode.UNDECIDED),
        ([Verdict.SKIPPED], True, False, ExitCode.UNDECIDED),
        ([Verdict.MISMATCH], True, False, ExitCode.WRONG),
    ],
)
def test_exit_codes(verdicts: list[Verdict], undecided: bool, slower: bool, code: ExitCode) -> None:
    assert final_exit_code([record(v) for v in verdicts], undecided=undecided, slower=slower) is code


@pytest.mark.parametrize(
    ("verdict", "message", "wanting"),
    [
        (Verdict.SKIPPED, "needs 133.0 GiB of memory, 131.9 GiB are free", True),
        (Verdict.ERROR, "ran out of memory (OutOfMemoryError: CUDA out of memory.)", True),
        (Verdict.CRASHED, "RuntimeError: CUDA error: out of memory", True),
        (Verdict.NO_REFERENCE, "the oracle ran out of memory: tried to allocate", True),
        (Verdict.SKIPPED, "block size 32: flash-attn 2.8 needs a multiple of 256", False),
        (Verdict.MISMATCH, "out of memory is what it may say, but its numbers are wrong", False),
    ],
)
def test_what_came_of_too_little_memory_is_told_from_the_rest(verdict: Verdict, message: str, wanting: bool) -> None:
    found = record(verdict)
    found.message = message
    assert wants_memory(found) is wanting
