"""Reports of results that depend on the other sequences of the batch. H13.

Dao-AILab/flash-attention #1897, #2450, sgl-project/sgl-flash-attn #43: the number of KV splits comes from the whole
batch, so the order of summation does. That is no error of a row, and a matter of its own beside accuracy.
"""

from __future__ import annotations

import pytest

from pagedbench.words import Verdict

from .judging import faults_named, judged, said_by, scenario


def one_long_sequence(splits: int | str, shape: str = "4/4 64 bfloat16", mates: int = 3) -> str:
    heads, head_dim, dtype = shape.split()
    num_heads, num_kv_heads = map(int, heads.split("/"))
    return scenario(
        "mates",
        {"query_lens": [1] * (1 + mates), "cached_lens": [1023] + [100] * mates},
        {"block_size": 16},
        {
            "num_heads": num_heads,
            "num_kv_heads": num_kv_heads,
            "head_dim": int(head_dim),
            "dtype": dtype,
            "num_splits": splits,
        },
    )


def test_h13_a_backend_that_promises_invariance_is_held_to_it_bit_by_bit() -> None:
    record = judged("SplitsByBatchDeclaredInvariant", one_long_sequence("auto"), suite="full")
    assert record.verdict is Verdict.UNSTABLE
    assert said_by(record, "accuracy").startswith("PASS")
    assert "alone" in record.message
    assert "must be the same bits" in record.message
    assert faults_named(record) == ["splits-by-batch"]


@pytest.mark.parametrize("shape", ["4/4 64 bfloat16", "8/2 64 float16"], ids=["MHA", "GQA, fp16"])
def test_h13_without_the_promise_the_difference_is_reported_and_within_budget(shape: str) -> None:
    record = judged("SplitsByBatch", one_long_sequence("auto", shape), suite="full")
    assert record.verdict is Verdict.PASS
    assert "within budget, largest difference: " in said_by(record, "invariance")
    metrics = next(c["metrics"] for c in record.checks if c["check"] == "invariance")
    assert 0 < metrics["largest_difference"] < 0.01


@pytest.mark.parametrize("splits", [1, 4])
def test_h13_a_fixed_number_of_splits_gives_the_same_bits(splits: int) -> None:
    record = judged("SplitsByBatchDeclaredInvariant", one_long_sequence(splits, mates=7), suite="full")
    assert record.verdict is Verdict.PASS
