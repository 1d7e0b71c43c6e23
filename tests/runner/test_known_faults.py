"""Shipped expectations of a library's faults, with a stand-in for the library: known while it fails, told when mended.

The stand-ins do what was seen of the library on a GPU, and run through the whole command on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shutil import copyfile

import pytest

from pagedbench.results.record import CellRecord
from pagedbench.results.store import read_records
from pagedbench.runner.outcome import NOW_PASSES
from pagedbench.scenario.catalog import shipped
from pagedbench.words import ExitCode, Verdict

from .conftest import Start

KERNELS = Path(__file__).with_name("faulty_libraries.py")
Judged = Callable[..., tuple[CellRecord, int]]


@pytest.fixture
def judged(start: Start, tmp_path: Path) -> Judged:
    """The record of a shipped scenario whose expectations of a library are those of a stand-in, and the exit code."""

    def judge(scenario: str, function: str, library: str) -> tuple[CellRecord, int]:
        (entry,) = (one for one in shipped() if one.name == scenario)
        file, records = tmp_path / "scenario.yaml", tmp_path / f"{function}.jsonl"
        stand_in = f"{copyfile(KERNELS, tmp_path / KERNELS.name).name}:{function}"
        file.write_text(entry.text().replace(f"  {library}:", f"  {stand_in}:"))
        run = start("check", file.name, "--device", "cpu", "--json", records, "--backend", stand_in)
        _, told = run.communicate(timeout=60)
        assert not told
        (record,) = read_records(records)
        return record, run.returncode

    return judge


CASES = [
    ("features-window-blocks-away", "follows_the_table_decode", "minds_the_window_decode", "flash-attn-3"),
    ("features-sinks-empty-rows", "sinkless_lse_paged_varlen", "right_lse_paged_varlen", "flash-attn-3"),
]


@pytest.mark.parametrize(("scenario", "faulty", "mended", "library"), CASES, ids=[case[0] for case in CASES])
def test_the_fault_is_expected_with_its_evidence_until_it_is_mended(
    judged: Judged, scenario: str, faulty: str, mended: str, library: str
) -> None:
    known, code = judged(scenario, faulty, library)
    assert known.verdict is Verdict.EXPECTED
    assert "H200" in known.message
    assert code == ExitCode.NOTHING_CHECKED
    now, code = judged(scenario, mended, library)
    assert now.verdict is Verdict.PASS, now.message
    assert any(warning.startswith(NOW_PASSES) for warning in now.warnings)
    assert code == ExitCode.OK


def test_with_a_null_block_the_same_kernel_is_right(judged: Judged) -> None:
    record, _ = judged("features-window-blocks-null", "follows_the_table_decode", "flash-attn-3")
    assert record.verdict is Verdict.PASS, record.message
