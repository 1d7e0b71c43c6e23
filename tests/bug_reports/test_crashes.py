"""Reports of crashes and illegal accesses, and of scenarios that no kernel should be asked. H5 to H9."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pagedbench.errors import ScenarioError
from pagedbench.runner.outcome import final_exit_code
from pagedbench.scenario.loader import loads
from pagedbench.words import ExitCode, Verdict

from .judging import Ended, faults_named, judged, run_command, scenario


def decode(name: str, keys: list[int], cache: dict[str, Any], shape: Any = "4/2 64 bfloat16", **more: Any) -> str:
    """One query token a sequence, which is the last of so many keys."""
    batch = {"query_lens": [1] * len(keys), "cached_lens": [key - 1 for key in keys]}
    return scenario(name, batch, cache, shape, **more)


# H5: a tile past the end of the table's row --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "block_size"),
    [([257], 64), ([17], 16), ([5, 17, 40], 16), ([100, 7, 129], 128)],
    ids=["257 keys, blocks of 64", "17 keys, blocks of 16", "three sequences", "blocks of 128"],
)
def test_h5_a_tight_table_ends_in_a_guard_that_no_kernel_can_follow(keys: list[int], block_size: int) -> None:
    """vllm-project/flash-attention #42, flashinfer-ai/flashinfer #4365: column `ceil(keys / block size)` is read."""
    text = decode("tight", keys, {"block_size": block_size, "max_blocks_per_seq": "tight"})
    record = judged("TilePastTheTable", text, suite="run", diagnose=len(keys) == 1)
    assert record.verdict is Verdict.ERROR
    assert "IndexError: index 2147450879 is out of bounds" in record.message
    assert record.error is not None
    assert "kernels.py" in record.error
    if len(keys) == 1:
        assert "tile-past-the-table" in faults_named(record)


def test_h5_spare_columns_hide_it() -> None:
    text = decode("wide", [257], {"block_size": 64, "max_blocks_per_seq": 8, "padding": "decoy"})
    assert judged("TilePastTheTable", text, suite="run").verdict is Verdict.PASS


def test_h5_a_right_kernel_takes_tight_tables() -> None:
    text = decode("tight", [257, 17], {"block_size": 64, "max_blocks_per_seq": "tight"})
    assert judged("right_decode", text, suite="run").verdict is Verdict.PASS


# H6, H7, H15: what is refused before anything is launched ------------------------------------------------------------

TWO_COLUMNS = {"block_size": 256, "block_table": [[0, 1]], "num_blocks": 8}
DOCUMENTED = {"block_size": 32, "num_blocks": 8, "block_table": [[2, -1, -1, -1], [0, 1, -1, -1], [3, 5, 6, -1]]}
UNMAPPED = {**DOCUMENTED, "block_table": [[2, -1, -1, -1], [0, -1, -1, -1], [3, 5, 6, -1]]}
REFUSED = {
    "h6-append": decode("h6-append", [513], TWO_COLUMNS),
    "h6-cached": decode("h6-cached", [601], TWO_COLUMNS),
    "h7-unmapped": decode("h7-unmapped", [31, 33, 71], UNMAPPED),
    "h15-full": decode(
        "h15-full", [17], {"block_size": 16, "block_table": [[0]], "num_blocks": 1}, "32/32 128 float16"
    ),
}


@pytest.fixture(scope="module")
def refusal(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """All of them in one file, behind a right one: nothing may run."""
    right = decode("right", [31], {"block_size": 32})
    return run_command(tmp_path_factory.mktemp("refused"), "---\n".join([right, *REFUSED.values()]), "check")


def test_h6_an_invalid_scenario_is_exit_code_2_and_no_kernels_failure(refusal: Ended) -> None:
    """Dao-AILab/flash-attention #2711, #2709."""
    assert refusal.code == ExitCode.USAGE
    assert refusal.out == ""
    assert refusal.records == []


@pytest.mark.parametrize(
    ("what", "found", "needed"),
    [
        ("h6: an append", "2 columns", "at least 3: sequence 0 has 513 keys in blocks of 256"),
        ("h6: cached keys", "2 columns", "at least 3: sequence 0 has 601 keys in blocks of 256"),
        ("h15: a full cache", "1 columns", "at least 2: sequence 0 has 17 keys in blocks of 16"),
    ],
)
def test_h6_sequence_need_and_capacity_are_named(refusal: Ended, what: str, found: str, needed: str) -> None:
    """H15 is Dao-AILab/flash-attention #638: capacity equal to the current length, and one more token appended."""
    assert f"found {found}, needed {needed}" in " ".join(refusal.err.split())


def test_h7_an_unmapped_entry_that_is_needed_is_refused_with_row_column_and_place(refusal: Ended) -> None:
    """gittensor-ai-lab/sparkinfer #152: row 1 of the table, column 1."""
    assert "cache.block_table[1][1]: found -1" in " ".join(refusal.err.split())
    lines = [line for line in refusal.err.splitlines() if "scenarios.yaml:" in line]
    assert len(lines) >= len(REFUSED)


@pytest.mark.parametrize("appended", [1, 2, 17])
def test_h6_siblings_several_new_tokens(appended: int) -> None:
    batch = {"query_lens": [1, appended], "cached_lens": [3, 32]}
    cache = {"block_size": 16, "max_blocks_per_seq": 2}
    with pytest.raises(ScenarioError) as refused:
        loads(scenario("narrow", batch, cache, "4/2 64 bfloat16"))
    needed = -(-(32 + appended) // 16)
    assert f"at least {needed}: sequence 1 has {32 + appended} keys" in str(refused.value)


# H7: table entries of −1 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("padding", [-1, "num_blocks"])
def test_h7_following_an_entry_that_names_no_block_is_an_error(padding: int | str) -> None:
    """gittensor-ai-lab/sparkinfer #152, vllm-project/vllm #50852: the documentation's own table of transformers."""
    text = decode("unmapped", [31, 33, 71], {**DOCUMENTED, "padding": padding})
    record = judged("UnmappedEntriesFollowed", text, suite="run")
    assert record.verdict is Verdict.ERROR
    assert "out of bounds" in record.message
    if padding == -1:
        assert faults_named(record) == ["unmapped-entries-followed"]


@pytest.mark.parametrize("padding", [0, "decoy"])
def test_h7_entries_that_name_a_block_hide_it(padding: int | str) -> None:
    text = decode("mapped", [31, 33, 71], {**DOCUMENTED, "padding": padding})
    assert judged("UnmappedEntriesFollowed", text, suite="run").verdict is Verdict.PASS


@pytest.mark.parametrize("padding", [0, "num_blocks", "decoy"])
def test_h7_a_right_kernel_gives_the_same_bits_for_each_legal_padding(padding: int | str) -> None:
    minus_one = decode("minus-one", [31, 33, 71], DOCUMENTED)
    other = decode("other", [31, 33, 71], {**DOCUMENTED, "padding": padding})
    equals = "equals: {variant: minus-one, within: bitwise}\n"
    record = judged("right_decode", f"{minus_one}---\n{other}{equals}", suite="run")
    assert record.verdict is Verdict.PASS
    assert any("minus-one" in check["message"] for check in record.checks)


# H8: queries of no token ---------------------------------------------------------------------------------------------

ONE_OF_THREE = scenario(
    "gaps",
    {"query_lens": [1, 0, 1], "cached_lens": [3, 0, 5], "append": False},
    {"block_size": 16},
    {"num_heads": 9, "num_kv_heads": 3, "head_dim": 64, "softmax_scale": 1.0},
)
LAST_OF_FOUR = scenario(
    "last", {"query_lens": [0, 0, 0, 1], "cached_lens": [0, 0, 0, 0]}, {"block_size": 16}, "21/7 120 bfloat16"
)
TWO_OF_THREE = scenario(
    "two", {"query_lens": [1, 1, 0], "cached_lens": [20, 33, 40]}, {"block_size": 4}, "4/4 32 float16"
)


@pytest.mark.parametrize("text", [ONE_OF_THREE, LAST_OF_FOUR, TWO_OF_THREE], ids=["report", "fewer tokens", "sibling"])
def test_h8_the_kernels_own_words_are_kept(text: str) -> None:
    """Dao-AILab/flash-attention #1537, #1619: `q.reshape(batch, 1, ...)` where the longest query has one token."""
    record = judged("ReshapedByBatch", text, "paged-varlen", diagnose=text is ONE_OF_THREE)
    assert record.verdict is Verdict.ERROR
    assert record.message.startswith("RuntimeError: shape '[")
    assert "is invalid for input of size" in record.message
    if text is ONE_OF_THREE:
        assert faults_named(record) == ["empty-query-reshaped"]


@pytest.mark.parametrize("path", ["varlen", "paged-varlen"])
def test_h8_queries_of_no_token_are_legal(path: str) -> None:
    for text in (ONE_OF_THREE, LAST_OF_FOUR, TWO_OF_THREE):
        assert judged("torch", text, path, suite="run").verdict is Verdict.PASS


# H9: block sizes that a library does not take ------------------------------------------------------------------------

SIZES = [1, 3, 16, 19, 32, 64, 128, 192, 256]


def sizes(*block_sizes: int) -> str:
    return decode("sizes", [31, 300], {"block_size": 16}, matrix={"cache.block_size": list(block_sizes)})


def test_h9_a_declared_limit_is_a_skip_with_its_reason_and_no_pass(tmp_path: Path) -> None:
    """Dao-AILab/flash-attention #1579, #1627, ROCm/rocm-libraries #12342."""
    ended = run_command(tmp_path, sizes(*SIZES), "check", kernel="Only256Declared")
    verdicts = [record.verdict for record in ended.records]
    assert verdicts == [Verdict.SKIPPED] * 8 + [Verdict.PASS]
    assert ended.records[4].message == "block size 32 is not supported (needs a multiple of 256)"
    assert "9 cells: 1 PASS, 8 SKIPPED" in ended.out
    assert ended.code == ExitCode.OK


def test_h9_when_everything_was_skipped_the_gate_is_not_green() -> None:
    skipped = [judged("Only256Declared", decode("skipped", [31], {"block_size": size})) for size in (16, 32)]
    assert final_exit_code(skipped, undecided=False, slower=False) is ExitCode.NOTHING_CHECKED


def test_h9_an_exception_is_not_taken_for_a_skip() -> None:
    record = judged("Only256", decode("undeclared", [31, 300], {"block_size": 32}))
    assert record.verdict is Verdict.ERROR
    assert record.message.startswith("RuntimeError: Paged KV cache block size must be divisible by 256 (kernels.py:")


@pytest.mark.parametrize("block_size", SIZES)
def test_h9_the_tools_own_backend_takes_any(block_size: int) -> None:
    text = decode("any", [31, 300], {"block_size": block_size}, "2/1 16 bfloat16")
    assert judged("torch", text, suite="run").verdict is Verdict.PASS
