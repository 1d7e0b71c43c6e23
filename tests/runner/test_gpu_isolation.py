"""On a GPU: an illegal access, a device assertion, an endless kernel or all memory costs its own cell, no other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pagedbench.results.record import CellRecord
from pagedbench.results.store import read_records
from pagedbench.words import ExitCode, Verdict

from .conftest import Start

pytestmark = [pytest.mark.gpu, pytest.mark.alone]
KERNELS = Path(__file__).with_name("gpu_kernels.py")
Write = Callable[..., Path]


def judged(start: Start, scenario: Path, records: Path, *functions: str) -> tuple[dict[str, CellRecord], int, str]:
    """The records by function, the exit code and all output of a check with a kernel that is right after each."""
    targets = [target for name in functions for target in ("--backend", f"{KERNELS}:{name}_decode")]
    run = start("check", scenario, "--device", "cuda", "--timeout", 20, "--json", records, *targets)
    out, err = run.communicate(timeout=300)
    found = {r.backend.rpartition(":")[2].removesuffix("_decode"): r for r in read_records(records)}
    return found, run.returncode, out + err


@pytest.mark.parametrize("bad", ["wild_write", "assert"])
def test_an_illegal_access_is_a_crash_and_the_next_cell_passes(
    start: Start, scenario_file: Write, tmp_path: Path, bad: str
) -> None:
    found, code, told = judged(start, scenario_file("small"), tmp_path / "records.jsonl", bad, "good")
    assert found[bad].verdict is Verdict.CRASHED, told
    assert "CUDA error" in found[bad].message  # which one depends on the driver, and on what else is on the GPU
    assert found["good"].verdict is Verdict.PASS, told
    assert code == ExitCode.UNDECIDED


def test_an_endless_kernel_times_out_where_it_was_called_and_the_next_cell_passes(
    start: Start, scenario_file: Write, tmp_path: Path
) -> None:
    found, code, told = judged(start, scenario_file("small"), tmp_path / "records.jsonl", "endless", "good")
    assert found["endless"].verdict is Verdict.TIMED_OUT, told
    assert "in endless_decode" in found["endless"].stderr
    assert found["good"].verdict is Verdict.PASS, told
    assert code == ExitCode.UNDECIDED


def test_all_device_memory_is_an_error_and_given_back_to_the_next_cell(
    start: Start, scenario_file: Write, tmp_path: Path
) -> None:
    found, code, told = judged(start, scenario_file("small"), tmp_path / "records.jsonl", "hungry", "good")
    assert found["hungry"].verdict is Verdict.ERROR, told
    assert "ran out of memory" in found["hungry"].message
    assert found["good"].verdict is Verdict.PASS, told
    assert code == ExitCode.UNDECIDED


def test_a_scenario_after_the_one_that_crashed_is_judged_by_the_same_kernel(
    start: Start, scenario_file: Write, tmp_path: Path
) -> None:
    """H22: one illegal access must not fail everything after it."""
    records = tmp_path / "records.jsonl"
    targets = ("--backend", f"{KERNELS}:wild_write_decode", "--backend", f"{KERNELS}:good_decode")
    start("check", scenario_file("a", "b"), "--device", "cuda", "--json", records, *targets).communicate(timeout=300)
    crashed_then_passed = [Verdict.CRASHED, Verdict.PASS]
    assert [r.verdict for r in read_records(records)] == crashed_then_passed * 2
