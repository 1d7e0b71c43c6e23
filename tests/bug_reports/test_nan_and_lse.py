"""Reports of NaN, of rows without keys, and of their log-sum-exp. H10 to H12."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pagedbench.layout.build import build_layout
from pagedbench.oracle.reference import reference
from pagedbench.scenario.loader import loads
from pagedbench.tensors.inputs import random_inputs
from pagedbench.words import Verdict

from .judging import faults_named, judged, said_by, scenario


def lengths(
    name: str, queries: list[int], keys: list[int], block_size: int, shape: Any = "8/2 64 bfloat16", **more: Any
) -> str:
    """Nothing is appended: the keys are the cached ones."""
    batch = {"query_lens": queries, "cached_lens": keys, "append": False, **more.pop("batch", {})}
    return scenario(name, batch, {"block_size": block_size, **more.pop("cache", {})}, shape, **more)


# H10: NaN in the unused rest of the last block -----------------------------------------------------------------------

REPORTED = {
    "flashinfer-ai/flashinfer #941": ([13], 4, "8/2 64 bfloat16"),
    "Dao-AILab/flash-attention #1745": ([1, 3], 3, "1/1 64 float16"),
    "Dao-AILab/flash-attention #2374": ([32, 64, 96, 48], 128, "8/8 64 bfloat16"),
    "sibling: fp32": ([70, 5], 16, "4/2 32 float32"),
}


@pytest.mark.parametrize("report", REPORTED)
def test_h10_zero_times_nan(report: str) -> None:
    """Poison is on unless it is turned off; where it is off the check of leaks brings its own."""
    keys, block_size, shape = REPORTED[report]
    text = lengths("tail", [1] * len(keys), keys, block_size, shape)
    assert judged("TailMultipliedByZero", text, suite="run", diagnose=False).verdict is Verdict.NON_FINITE
    clean = judged("TailMultipliedByZero", f"{text}inputs: {{poison: none}}\n", diagnose=len(keys) == 1)
    assert clean.verdict is Verdict.LEAK
    assert "NaN in V of the rest of a partly used block shows" in clean.message
    if len(keys) == 1:
        assert faults_named(clean) == ["tail-leaks"]


@pytest.mark.parametrize("poison", ["nan", "inf", "large", "none"])
def test_h10_the_oracle_does_not_read_what_must_not_be_read(poison: str) -> None:
    text = lengths("tail", [1], [13], 4) + f"inputs: {{poison: {poison}}}\n"
    assert judged("right_decode", text).verdict is Verdict.PASS


# H11: the LSE of rows without keys -----------------------------------------------------------------------------------

BLIND_ROWS = {
    "report": ([5], [2]),
    "among ordinary sequences": ([5, 3, 4], [2, 40, 0]),
    "no key at all": ([4], [0]),
    "one row of many": ([33], [32]),
}


@pytest.mark.parametrize("rows", BLIND_ROWS)
def test_h11_a_finite_lse_of_a_row_without_keys_is_a_mismatch(rows: str) -> None:
    """flashinfer-ai/flashinfer #4452, fix #4401: the first q − k rows see nothing; their LSE is −inf."""
    queries, keys = BLIND_ROWS[rows]
    text = lengths("blind", queries, keys, 16)
    record = judged("FiniteLseOfEmptyRows", text, "paged-varlen", suite="run", diagnose=rows == "report")
    assert record.verdict is Verdict.MISMATCH
    assert "LSE is -1e+30, needed -inf" in record.message
    if rows == "report":
        assert faults_named(record) == ["lse-finite-for-empty-rows"]


@pytest.mark.parametrize("rows", BLIND_ROWS)
def test_h11_minus_infinity_equals_minus_infinity(rows: str) -> None:
    text = lengths("blind", *BLIND_ROWS[rows], 16)
    assert judged("right_paged_varlen", text, "paged-varlen", suite="run").verdict is Verdict.PASS


def test_h11_the_oracle_makes_no_nan_of_them() -> None:
    (wanted,) = loads(lengths("blind", [5, 4], [2, 0], 16))
    layout = build_layout(wanted)
    answer = reference(random_inputs(wanted, layout, "cpu"), layout, wanted.attention, device="cpu")
    blind = answer.visible == 0
    assert blind.tolist() == [True, True, True, False, False, True, True, True, True]
    assert bool((answer.out[blind] == 0).all())
    assert bool((answer.lse[blind] == -torch.inf).all())
    assert not bool(answer.out.isnan().any() | answer.lse.isnan().any())


# H12: decode rows without keys ---------------------------------------------------------------------------------------


def idle_row(at: int = 3, block_size: int = 16, shape: str = "8/2 64 bfloat16") -> str:
    keys = [37, 5, 90]
    keys.insert(at, 0)
    return lengths("idle", [1] * 4, keys, block_size, shape)


OUTCOMES = {
    "EmptyRowsDividedByZero": (Verdict.NON_FINITE, "output is NaN but the row sees no key and must be 0"),
    "EmptyRowsUntouched": (Verdict.NOT_WRITTEN, "no row was written"),
}


@pytest.mark.parametrize("kernel", OUTCOMES)
def test_h12_nan_and_stale_memory_are_told_apart(kernel: str) -> None:
    """vllm-project/vllm #57094, #37442, flashinfer-ai/flashinfer #2883."""
    verdict, said = OUTCOMES[kernel]
    record = judged(kernel, idle_row(at=1))
    assert record.verdict is verdict
    assert record.message.startswith("sequence 1")
    assert said in record.message
    expected = {"EmptyRowsDividedByZero": "empty-rows-divide-by-zero", "EmptyRowsUntouched": "empty-rows-untouched"}
    assert expected[kernel] in faults_named(record)


@pytest.mark.parametrize("text", [idle_row(3), idle_row(0, 4, "4/4 32 float16"), idle_row(2, 64, "6/1 80 bfloat16")])
def test_h12_siblings(text: str) -> None:
    for kernel, (verdict, _) in OUTCOMES.items():
        assert judged(kernel, text, suite="run", diagnose=False).verdict is verdict
    assert judged("right_decode", text, suite="run").verdict is Verdict.PASS


def test_h12_leaving_them_alone_is_right_where_the_backend_declares_it() -> None:
    assert judged("EmptyRowsUntouchedDeclared", idle_row()).verdict is Verdict.PASS


@pytest.mark.parametrize("kernel", ["EmptyRowsDividedByZero", "EmptyRowsUntouched", "right_decode"])
def test_h12_the_dead_rows_of_a_padded_graph_are_nobodys_business(kernel: str) -> None:
    """Five live rows and three dead ones: whatever comes out of those, the live ones are right."""
    text = scenario(
        "padded",
        {"query_lens": [1] * 5, "cached_lens": [37, 5, 90, 31, 32], "append": False, "padding_rows": 3},
        {"block_size": 16, "trash_block": True},
        "8/2 64 bfloat16",
    )
    record = judged(kernel, text, suite="run")
    assert record.verdict is Verdict.PASS
    assert "every row written" in said_by(record, "unwritten")
