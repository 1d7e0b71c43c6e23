"""Reports of wrong results: plausible numbers, no error. H1 to H4."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pagedbench.words import Verdict

from .judging import faults_named, judged, said_by, scenario

# H1: the combine step of split KV ------------------------------------------------------------------------------------


def two_sequences(batch: int = 2, splits: int = 2, block_size: int = 256, shape: str = "4/4 64 bfloat16") -> str:
    heads, head_dim, dtype = shape.split()
    num_heads, num_kv_heads = map(int, heads.split("/"))
    keys = 4 * block_size
    return scenario(
        "combine",
        {"query_lens": [1] * batch, "cached_lens": [keys] * batch, "append": False},
        {"block_size": block_size, "block_table": [[4 * b + i for i in range(4)] for b in range(batch)]},
        {
            "num_heads": num_heads,
            "num_kv_heads": num_kv_heads,
            "head_dim": int(head_dim),
            "dtype": dtype,
            "causal": False,
            "num_splits": splits,
        },
    )


@pytest.mark.parametrize("kernel", ["CombineToRow0", "CombineToRow0OfItsOwnMemory"])
def test_h1_rows_that_the_combine_step_never_wrote_are_named(kernel: str) -> None:
    """pytorch/pytorch #194167: every sequence lands on sequence 0; whoever allocates the memory, a row that nobody
    wrote is said to be that, and no mere error."""
    record = judged(kernel, two_sequences(), "paged-varlen")
    assert record.verdict is Verdict.NOT_WRITTEN
    assert record.message.startswith("sequence 1: no row was written")
    assert "sequence 0" not in said_by(record, "unwritten")
    assert faults_named(record) == ["combine-to-row-0"]


@pytest.mark.parametrize(
    "text",
    [
        two_sequences(batch=3, block_size=16),
        two_sequences(splits=4, block_size=64, shape="8/2 64 float16"),
        two_sequences(batch=5, splits=3, block_size=48, shape="6/1 80 bfloat16"),
    ],
    ids=["three sequences", "fp16, four splits", "five sequences, blocks of 48"],
)
def test_h1_siblings(text: str) -> None:
    record = judged("CombineToRow0", text, "paged-varlen", suite="run", diagnose=False)
    assert record.verdict is Verdict.NOT_WRITTEN
    assert "sequence 1: no row was written" in said_by(record, "unwritten")


@pytest.mark.parametrize("right", [{"splits": 1}, {"batch": 1}], ids=["one split", "one sequence"])
def test_h1_is_right_by_accident_with_one_split_or_one_sequence(right: dict[str, int]) -> None:
    assert judged("CombineToRow0", two_sequences(**right), "paged-varlen", suite="run").verdict is Verdict.PASS


# H2: block ids cut to 16 bits ----------------------------------------------------------------------------------------


def high_ids(table: list[list[int]], block_size: int = 1, **cache: Any) -> str:
    needed = [sum(block >= 0 for block in row) for row in table]
    return scenario(
        "high-ids",
        {"query_lens": [1] * len(table), "cached_lens": [blocks * block_size - 1 for blocks in needed]},
        {"block_size": block_size, "block_table": table, "num_blocks": 65_600, **cache},
        "8/1 32 bfloat16",
    )


def test_h2_a_block_id_of_65_536_reads_block_0() -> None:
    """ROCm/aiter #3062: `id & 0xFFFF`; no NaN, plausible numbers, unless what lies there is a decoy."""
    record = judged("Ids16Bits", high_ids([[65_536, 3, 65_537], [65_599, 7, 9]]))
    assert record.verdict.is_wrong
    assert "reads block 0 (free) instead of block 65536 for key 0" in said_by(record, "footprint")
    assert "block-id-16-bits" in faults_named(record)


@pytest.mark.parametrize("poison", ["none", "large"])
def test_h2_siblings_whatever_the_decoy_holds(poison: str) -> None:
    text = high_ids([[65_540, -1], [1, 65_599]]) + f"inputs: {{poison: {poison}}}\n"
    record = judged("Ids16Bits", text, diagnose=False)
    assert record.verdict.is_wrong
    assert "instead of block 65540" in said_by(record, "footprint")


def test_h2_with_the_reports_blocks_of_16() -> None:
    text = high_ids([[65_536]], block_size=16)
    assert judged("Ids16Bits", text, suite="run", diagnose=False).verdict is Verdict.NON_FINITE


@pytest.mark.parametrize("table", [[[32_767, 32_768, 40_000]], [[65_535, 2]]])
def test_h2_ids_that_fit_are_right(table: list[list[int]]) -> None:
    assert judged("Ids16Bits", high_ids(table), suite="run").verdict is Verdict.PASS


def test_h2_a_pool_that_does_not_fit_is_a_skip_that_says_how_much_it_needs() -> None:
    """2²⁴ blocks of 16 with 8 KV heads of 128: 512 GiB each for K and V."""
    text = scenario(
        "huge",
        {"query_lens": [1], "cached_lens": [15]},
        {"block_size": 16, "block_table": [[65_536]], "num_blocks": 2**24},
        "8/8 128 bfloat16",
    )
    record = judged("right_decode", text)
    assert record.verdict is Verdict.SKIPPED
    assert re.fullmatch(r"needs [\d.]+ GiB of memory, [\d.]+ GiB are free", record.message)
    assert record.memory is not None
    assert record.memory["need"] >= 2**40


# H3: tiles that do not divide a block --------------------------------------------------------------------------------


def reversed_blocks(block_size: int, keys: int, shape: str = "4/1 64 bfloat16") -> str:
    batch = {"query_lens": [1], "cached_lens": [keys - 1]}
    return scenario("tails", batch, {"block_size": block_size, "placement": "reversed"}, shape)


def test_h3_a_tile_of_128_drops_a_third_of_every_block_of_192() -> None:
    """tile-ai/TileOPs #1787."""
    record = judged("BlockTailDropped", reversed_blocks(192, 3072, "4/1 128 bfloat16"))
    assert record.verdict is Verdict.FOOTPRINT
    assert "misses keys 128–191, 320–383, 512–575 and 13 more ranges" in record.message
    assert faults_named(record) == ["block-tail-dropped"]


@pytest.mark.parametrize(
    ("block_size", "missed"),
    [(160, "misses keys 128–159, 288–319, 448–479"), (224, "misses keys 128–223, 352–447, 576–599")],
)
def test_h3_siblings(block_size: int, missed: str) -> None:
    record = judged("BlockTailDropped", reversed_blocks(block_size, 600, "2/2 64 float16"))
    assert record.verdict is Verdict.FOOTPRINT
    assert missed in record.message
    assert "block-tail-dropped" in faults_named(record)


def test_h3_a_block_smaller_than_the_tile_loses_every_key() -> None:
    record = judged("BlockTailDropped", reversed_blocks(96, 600), diagnose=False)
    assert record.verdict is Verdict.FOOTPRINT
    assert "its output is all zeros" in record.message


@pytest.mark.parametrize("block_size", [128, 256])
def test_h3_multiples_of_the_tile_are_right(block_size: int) -> None:
    assert judged("BlockTailDropped", reversed_blocks(block_size, 600), suite="run").verdict is Verdict.PASS


# H4: strides assumed -------------------------------------------------------------------------------------------------


def laid_out(layout: Any, block_size: int = 16, shape: str = "8/2 64 bfloat16") -> str:
    batch = {"query_lens": [1, 1], "cached_lens": [39, 69]}
    return scenario("strides", batch, {"block_size": block_size, "layout": layout}, shape)


STRIDED = {"k_stride": {"block": 4096, "token": 128}, "v_stride": {"block": 2560, "token": 128}}


def test_h4_a_stride_rebuilt_from_the_block_size_straddles_k_and_v() -> None:
    """ROCm/aiter #3498, flagos-ai/FlagGems #6375."""
    record = judged("BlockStrideAssumed", laid_out("interleaved-kv"))
    assert record.verdict.is_wrong
    assert faults_named(record) == ["strides-assumed"]


@pytest.mark.parametrize(
    ("layout", "block_size", "shape"),
    [
        ("layer-strided", 16, "8/2 64 bfloat16"),
        (STRIDED, 16, "8/2 64 bfloat16"),
        ("interleaved-kv", 32, "4/4 128 float16"),
        ("interleaved-kv", 24, "6/3 80 bfloat16"),
    ],
    ids=["layers", "K and V apart", "fp16, blocks of 32", "blocks of 24"],
)
def test_h4_siblings(layout: Any, block_size: int, shape: str) -> None:
    text = laid_out(layout, block_size, shape)
    assert judged("BlockStrideAssumed", text, suite="run", diagnose=False).verdict.is_wrong


@pytest.mark.parametrize("block_size", [16, 24])
def test_h4_is_right_while_the_caches_are_contiguous(block_size: int) -> None:
    assert judged("BlockStrideAssumed", laid_out("contiguous", block_size), suite="run").verdict is Verdict.PASS


def test_h4_a_kernel_that_reads_the_strides_is_right_in_every_layout() -> None:
    for layout in ("contiguous", "interleaved-kv", "layer-strided", STRIDED, {"order": "HND"}):
        assert judged("right_decode", laid_out(layout), suite="run").verdict is Verdict.PASS, layout
