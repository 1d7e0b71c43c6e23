"""Reports of two meanings of one argument: causal alignment, window ends, index dtypes. H16 to H18."""

from __future__ import annotations

from typing import Any

import pytest

from pagedbench.errors import ScenarioError
from pagedbench.scenario.loader import loads
from pagedbench.words import Verdict

from .judging import faults_named, judged, said_by, scenario


def attention(shape: str = "4/2 64 bfloat16", **more: Any) -> dict[str, Any]:
    heads, head_dim, dtype = shape.split()
    num_heads, num_kv_heads = map(int, heads.split("/"))
    return {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "head_dim": int(head_dim), "dtype": dtype, **more}


def keys_of(name: str, queries: list[int], keys: list[int], block_size: int, spec: Any) -> str:
    return scenario(
        name, {"query_lens": queries, "cached_lens": keys, "append": False}, {"block_size": block_size}, spec
    )


# H16: causal, to the top left or to the bottom right -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("queries", "keys", "shape"),
    [
        ([2], [5], "4/2 64 bfloat16"),
        ([5], [2], "4/2 64 bfloat16"),
        ([2, 3, 4], [5, 3, 2], "4/4 32 float16"),
        ([7], [40], "6/1 80 float32"),
    ],
)
def test_h16_a_top_left_mask_is_recognised(queries: list[int], keys: list[int], shape: str) -> None:
    """pytorch/pytorch #108108, Dao-AILab/flash-attention #581, #1778, ml-explore/mlx #2836."""
    record = judged("CausalTopLeft", keys_of("causal", queries, keys, 4, shape), "paged-varlen")
    assert record.verdict is Verdict.FOOTPRINT
    assert faults_named(record)[0] == "causal-top-left"


@pytest.mark.parametrize("length", [1, 3, 17])
def test_h16_for_equal_lengths_the_two_agree(length: int) -> None:
    text = keys_of("causal", [length], [length], 4, "4/2 64 bfloat16")
    assert judged("CausalTopLeft", text, "paged-varlen", suite="run").verdict is Verdict.PASS


def test_h16_more_queries_than_keys_leave_zeros_by_design() -> None:
    """#1778 in small: the upper half of the output is zero, and right."""
    text = keys_of("causal", [8], [4], 4, "4/2 64 bfloat16")
    for path in ("varlen", "decode", "paged-varlen"):
        assert judged("torch", text, path, suite="run").verdict is Verdict.PASS


# H17: the ends of a window -------------------------------------------------------------------------------------------


def windowed(queries: int, keys: int, block_size: int = 4, shape: str = "4/2 64 bfloat16", **window: Any) -> str:
    return keys_of("window", [queries], [keys], block_size, attention(shape, **window))


WINDOWS = {
    "win (3, 0)": windowed(16, 16, window_size=[3, 0]),
    "win (4, 0)": windowed(16, 16, window_size=[4, 0]),
    "one less than a block": windowed(1, 11, window=3),
    "a block, fp16": windowed(1, 11, shape="8/8 32 float16", window=4),
    "one more than a block": windowed(1, 11, window=5),
    "of 16 in blocks of 16": windowed(3, 50, 16, window=16),
}


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("kernel", ["WindowOneWide", "WindowOneNarrow"])
def test_h17_off_by_one_at_the_left_end(window: str, kernel: str) -> None:
    """huggingface/transformers #39408, #29623, vllm-project/vllm #3385: both ends of `window_size` are inclusive."""
    told = window in ("win (3, 0)", "a block, fp16")
    record = judged(kernel, WINDOWS[window], diagnose=told)
    assert record.verdict is Verdict.FOOTPRINT
    said = "which it must not see" if kernel == "WindowOneWide" else "misses key"
    assert said in record.message
    if told:
        named = "window-one-wide" if kernel == "WindowOneWide" else "window-one-narrow"
        assert named in faults_named(record)


@pytest.mark.parametrize(("keys", "shows"), [(4, False), (5, True), (6, True)])
def test_h17_a_window_of_4_shows_from_5_keys_on(keys: int, shows: bool) -> None:
    record = judged("WindowOneWide", windowed(1, keys, window=4), diagnose=False)
    assert record.verdict.is_wrong is shows
    assert any(w.startswith("BLIND: the window of 4 keys hides none") for w in record.warnings) is not shows


@pytest.mark.parametrize("window", WINDOWS)
def test_h17_the_right_window_passes(window: str) -> None:
    assert judged("right_decode", WINDOWS[window], suite="run").verdict is Verdict.PASS


def test_h17_both_spellings_mean_the_same_and_are_not_taken_together() -> None:
    (short,), (long,) = loads(windowed(1, 11, window=4)), loads(windowed(1, 11, window_size=[3, 0]))
    assert short.attention == long.attention
    with pytest.raises(ScenarioError, match=r"attention\.window"):
        loads(windowed(1, 11, window=4, window_size=[3, 0]))


# H18: int64 where int32 is expected ----------------------------------------------------------------------------------


def int64(array: str, keys: list[int], block_size: int = 2) -> str:
    spec = attention("8/2 64 bfloat16", index_dtype={array: "int64"})
    return keys_of("int64", [1] * len(keys), keys, block_size, spec)


@pytest.mark.parametrize("keys", [[2, 2], [5, 9, 3]], ids=["report", "sibling"])
def test_h18_a_table_read_in_halves_is_a_wrong_footprint(keys: list[int]) -> None:
    """flashinfer-ai/flashinfer #725, #1654: no dtype check, and the second sequence reads elsewhere."""
    record = judged("TableWordsMisread", int64("block_table", keys))
    assert record.verdict.is_wrong
    assert "sequence 1" in said_by(record, "footprint")
    assert "index-words-misread" in faults_named(record)


@pytest.mark.parametrize("keys", [[2, 2], [5, 9]], ids=["report", "sibling"])
def test_h18_a_sequence_that_comes_back_as_zeros_is_said_to_be_that(keys: list[int]) -> None:
    record = judged("LengthWordsMisread", int64("total_seqlens", keys), diagnose=False)
    assert record.verdict is Verdict.FOOTPRINT
    assert "all rows of sequence 1 are zero" in said_by(record, "accuracy")


@pytest.mark.parametrize("array", ["block_table", "cu_seqlens_q", "cu_seqlens_k", "cache_seqlens", "total_seqlens"])
def test_h18_a_backend_that_refuses_int64_is_skipped_with_its_reason(array: str) -> None:
    record = judged("RefusesInt64", int64(array, [2, 2]))
    assert record.verdict is Verdict.SKIPPED
    assert record.message == f"{array} is int64: needs int32"
    assert judged("torch", int64(array, [2, 2]), suite="run").verdict is Verdict.PASS
