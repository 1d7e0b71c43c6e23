"""Reports about tools: a reference that dies, tolerances that pass anything, a crash that fails the rest.

H19, H20 and H22.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pagedbench.layout.build import build_layout
from pagedbench.oracle import reference as oracle
from pagedbench.oracle.reference import Limits, reference
from pagedbench.runner.outcome import final_exit_code
from pagedbench.scenario.loader import loads
from pagedbench.tensors.inputs import random_inputs
from pagedbench.words import ExitCode, Verdict

from .judging import Ended, faults_named, judged, run_command, said_by, scenario


def decode(name: str, keys: list[int], block_size: int = 16, shape: Any = "4/2 64 bfloat16", **more: Any) -> str:
    batch = {"query_lens": [1] * len(keys), "cached_lens": [key - 1 for key in keys]}
    return scenario(name, batch, {"block_size": block_size}, shape, **more)


# H19: the reference at long contexts ---------------------------------------------------------------------------------


def test_h19_a_long_prefill_is_answered_for_a_sample_of_rows_that_is_said() -> None:
    """vllm-project/vllm #1223: 40,960 by 40,960 scores of 32 heads in fp64 are 430 GB; here two million at a time."""
    text = scenario("prefill", {"query_lens": [40_960], "cached_lens": [0]}, {"block_size": 256}, "1/1 16 bfloat16")
    (wanted,) = loads(text)
    layout = build_layout(wanted)
    inputs = random_inputs(wanted, layout, "cpu")
    few = Limits(scores=1 << 21, flops=4e8)
    answer = reference(inputs, layout, wanted.attention, device="cpu", limits=few)
    assert answer.sampled
    assert answer.total_rows == 40_960
    assert {0, 40_959} <= set(answer.rows.tolist())
    assert 2 < len(answer.rows) < 4096


@pytest.mark.parametrize("keys", [131_072, 40_961])
def test_h19_long_decode_is_cheap_and_whole(keys: int) -> None:
    text = scenario("long", {"query_lens": [1], "cached_lens": [keys - 1]}, {"block_size": 256}, "2/1 16 bfloat16")
    record = judged("torch", text, suite="run")
    assert record.verdict is Verdict.PASS
    assert record.sampled_rows is None


@pytest.mark.parametrize("error", [MemoryError("no more"), torch.OutOfMemoryError("CUDA out of memory")])
def test_h19_no_reference_is_never_a_pass(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def dies(self: object) -> None:
        raise error

    monkeypatch.setattr(oracle._Oracle, "answer", dies)
    record = judged("right_decode", decode("any", [20, 33]))
    assert record.verdict is Verdict.NO_REFERENCE
    assert "ran out of memory" in record.message
    assert final_exit_code([record], undecided=False, slower=False) is ExitCode.UNDECIDED


# H20: tolerances that pass anything ----------------------------------------------------------------------------------

ONE_SIGN = {"v": {"distribution": "uniform", "scale": 0.25, "offset": 0.75}}
NEGATIVE_CONTROLS = {"MeanOfV": "mean-of-v", "AllZeros": "all-zeros", "RandomNumbers": None, "BlocksPermuted": None}


@pytest.mark.parametrize("kernel", NEGATIVE_CONTROLS)
def test_h20_constants_and_noise_fail_even_where_v_has_one_sign(kernel: str) -> None:
    """Xilinx/mlir-air #1427: V in [0.5, 1] with atol 0.5 and rtol 0.2 let a constant pass."""
    fault = NEGATIVE_CONTROLS[kernel]
    record = judged(kernel, decode("one-sign", [41, 71], inputs=ONE_SIGN), diagnose=fault is not None)
    assert record.verdict.is_wrong
    assert not said_by(record, "accuracy").startswith("PASS")
    assert faults_named(record) == ([fault] if fault else [])


@pytest.mark.parametrize("kernel", NEGATIVE_CONTROLS)
@pytest.mark.parametrize("offset", [-0.75, 0.0], ids=["negative", "centred"])
def test_h20_siblings(kernel: str, offset: float) -> None:
    inputs = {"v": {"distribution": "uniform", "scale": 0.25, "offset": offset}}
    text = decode("other-signs", [300, 9], 32, "8/8 32 float16", inputs=inputs)
    assert judged(kernel, text, suite="run", diagnose=False).verdict.is_wrong


def test_h20_a_scenario_that_cannot_tell_says_so_and_the_footprint_still_does() -> None:
    text = decode("constant", [41, 71], inputs={"v": {"distribution": "constant"}})
    record = judged("MeanOfV", text, diagnose=False)
    assert said_by(record, "accuracy").startswith("PASS")
    assert record.verdict is Verdict.FOOTPRINT
    assert any(warning.startswith("BLIND: all values of V have one sign") for warning in record.warnings)


# H22: one crash, and everything after it -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def moods(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """Right, abort(), right, a sleep without end, right: one kernel, five scenarios."""
    heads = {"first": 4, "aborts": 8, "second": 4, "hangs": 16, "last": 4}
    text = "---\n".join(decode(name, [5, 9], 4, f"{count}/2 16 bfloat16") for name, count in heads.items())
    folder = tmp_path_factory.mktemp("moods")
    return run_command(folder, text, "run", "--no-timing", "--timeout", 12, kernel="Moody")


@pytest.mark.slow
def test_h22_each_scenario_gets_its_own_verdict(moods: Ended) -> None:
    """meta-pytorch/BackendBench #45, NVIDIA/cuml #7906, pytorch/pytorch #49019, NVIDIA/nvbench #88."""
    assert {record.scenario: record.verdict for record in moods.records} == {
        "first": Verdict.PASS,
        "aborts": Verdict.CRASHED,
        "second": Verdict.PASS,
        "hangs": Verdict.TIMED_OUT,
        "last": Verdict.PASS,
    }
    assert moods.code == ExitCode.UNDECIDED


@pytest.mark.slow
def test_h22_what_happened_and_where_is_said(moods: Ended) -> None:
    said = {record.scenario: record.message for record in moods.records}
    assert said["aborts"] == "abort() was called (SIGABRT), in the check accuracy"
    assert said["hangs"].startswith("no answer within 12 s")
