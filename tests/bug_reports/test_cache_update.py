"""Reports of memory changed by a decode step that must not be. H15; what is refused is in `test_crashes.py`."""

from __future__ import annotations

import pytest

from pagedbench.words import Verdict

from .judging import faults_named, judged, said_by, scenario


@pytest.mark.parametrize(
    ("keys", "block_size", "shape"),
    [([4, 32], 16, "32/32 128 float16"), ([16], 16, "4/2 64 bfloat16"), ([3, 9, 12], 3, "6/3 80 float32")],
    ids=["report", "one sequence", "blocks of three"],
)
def test_h15_a_token_written_past_the_pool_lands_in_a_guard_band(keys: list[int], block_size: int, shape: str) -> None:
    """Dao-AILab/flash-attention #638: unrelated tensors change after a decode call."""
    blocks = sum(-(-key // block_size) for key in keys)
    batch = {"query_lens": [1] * len(keys), "cached_lens": [key - 1 for key in keys]}
    full = {"block_size": block_size, "num_blocks": blocks}
    record = judged("AppendPastThePool", scenario("full", batch, full, shape), diagnose=len(keys) == 2)
    assert record.verdict is Verdict.CORRUPTED
    found = said_by(record, "cache-update")
    assert "the guard band between k_cache and v_cache changed" in found
    assert "the guard band between v_cache and" in found
    if len(keys) == 2:
        assert faults_named(record) == ["append-past-the-pool"]


def test_h15_a_right_append_into_the_very_last_slot() -> None:
    text = scenario(
        "full", {"query_lens": [1], "cached_lens": [15]}, {"block_size": 16, "num_blocks": 1}, "32/32 128 float16"
    )
    assert judged("right_decode", text).verdict is Verdict.PASS
