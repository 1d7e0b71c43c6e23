"""What compute-sanitizer prints, folded into a cell's verdict. Outputs shortened from NVIDIA's documentation."""

from __future__ import annotations

import pytest

from pagedbench.errors import UsageError
from pagedbench.results.record import CellRecord
from pagedbench.runner.sanitize import fold_findings, sanitizer_command
from pagedbench.words import Verdict

OUT_OF_BOUNDS = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ {access} of size 4 bytes
=========     at out_of_bounds_kernel()+0x30 in memcheck_demo.cu:24
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x87654320 is out of bounds
"""
UNINITIALISED = """\
========= Uninitialized __global__ memory read of size 4 bytes
=========     at vectorAdd(float*, int)+0x60 in vectorAdd.cu:20
"""
RACE = """\
========= Error: Race reported between Write access at sumKernel(int*, int*)+0x90 in block_error.cu:13
=========     and Read access at sumKernel(int*, int*)+0x100 in block_error.cu:16 [16 hazards]
"""


def folded(output: str, tool: str, verdict: Verdict = Verdict.PASS) -> CellRecord:
    record = CellRecord("docs-decode", "mine", "decode", "cuda", verdict, message="as checked")
    fold_findings(record, output, tool)
    return record


@pytest.mark.parametrize(
    ("output", "tool", "verdict", "kernel"),
    [
        (OUT_OF_BOUNDS.format(access="write"), "memcheck", Verdict.CORRUPTED, "out_of_bounds_kernel()"),
        (OUT_OF_BOUNDS.format(access="read"), "memcheck", Verdict.FOOTPRINT, "out_of_bounds_kernel()"),
        (UNINITIALISED, "initcheck", Verdict.LEAK, "vectorAdd(float*, int)"),
        (RACE, "racecheck", Verdict.UNSTABLE, "sumKernel(int*, int*)"),
    ],
)
def test_a_report_decides_a_cell_that_had_passed(output: str, tool: str, verdict: Verdict, kernel: str) -> None:
    record = folded(output, tool)
    assert record.verdict is verdict
    assert kernel in record.checks[-1]["findings"][0]["message"]


def test_no_report_is_one_more_check_that_passed() -> None:
    record = folded("========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n", "memcheck")
    assert record.verdict is Verdict.PASS
    assert record.checks[-1]["verdict"] == "PASS"


def test_a_crash_is_explained_by_the_report_and_what_the_kernel_prints_is_not_taken_for_one() -> None:
    record = folded(OUT_OF_BOUNDS.format(access="write"), "memcheck", Verdict.CRASHED)
    assert record.verdict is Verdict.CORRUPTED
    assert folded("Invalid __global__ write of size 4 bytes\n", "memcheck").verdict is Verdict.PASS


def test_a_skipped_cell_was_not_sanitized() -> None:
    assert folded("", "memcheck", Verdict.SKIPPED).checks == []


def test_an_unknown_tool_and_a_missing_sanitizer_are_usage_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="memchek"):
        sanitizer_command("memchek")
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(UsageError, match="not installed"):
        sanitizer_command("memcheck")
