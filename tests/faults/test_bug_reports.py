"""Faults that really happened, from public reports: each as a small scenario, the fault planted, and what must be said.

Sizes are the reports' own or the smallest at which the same condition holds. Reports about timing (short queries that
lose their splits, a synchronise in every iteration) are in tests/timing, one about a crash that takes later cases
with it in tests/runner/test_isolation.py.
"""

from __future__ import annotations

from typing import Any

import pytest

import pagedbench.checks.base as check_base
from pagedbench.backends.base import Backend
from pagedbench.errors import ScenarioError
from pagedbench.faults.catalogue import find_fault
from pagedbench.faults.kernel import FaultyBackend
from pagedbench.oracle.reference import NoReference
from pagedbench.results.record import CellRecord
from pagedbench.runner.cell import judge
from pagedbench.runner.protocol import Job
from pagedbench.scenario.loader import loads
from pagedbench.tensors.call import CallSpec
from pagedbench.words import ExitCode, Verdict, exit_code


def record(text: str, backend: Backend, path: str = "decode", suite: str = "quick") -> CellRecord:
    (scenario,) = loads("name: report\n" + text)
    return judge(Job(scenario, backend.name, path, "cpu", suite), lambda event, **values: None, backend).record


def planted(text: str, fault: str, path: str = "decode", suite: str = "quick") -> CellRecord:
    clean = record(text, FaultyBackend(), path, suite)
    assert clean.verdict is Verdict.PASS, f"the right kernel is accused: {clean.message}"
    return record(text, FaultyBackend(find_fault(fault)), path, suite)


def said(found: CellRecord) -> str:
    return " ".join(finding["message"] for check in found.checks for finding in check["findings"])


def diagnosed(found: CellRecord) -> list[str | None]:
    return [diagnosis["fault"] for diagnosis in found.diagnosis]


def attention(heads: int, kv_heads: int, head_dim: int, **more: Any) -> str:
    fields = {"num_heads": heads, "num_kv_heads": kv_heads, "head_dim": head_dim, **more}
    return "attention: {" + ", ".join(f"{name}: {value}" for name, value in fields.items()) + "}\n"


def batch(query_lens: list[int], cached_lens: list[int], append: bool = False) -> str:
    return f"batch: {{query_lens: {query_lens}, cached_lens: {cached_lens}, append: {str(append).lower()}}}\n"


def test_paged_varlen_is_wrong_once_kv_is_split() -> None:
    """pytorch/pytorch #194167: the combine step writes every sequence to row 0."""
    text = (
        batch([1, 1], [1024, 1024])
        + "cache: {block_size: 256, block_table: [[0, 1, 2, 3], [4, 5, 6, 7]], num_blocks: 8}\n"
        + attention(4, 4, 64, causal="false", num_splits=2)
    )
    found = planted(text, "combine-to-row-0", "paged-varlen")
    assert found.verdict is Verdict.NOT_WRITTEN
    assert "sequence 1" in found.message


def test_physical_block_id_cut_to_16_bits() -> None:
    """ROCm/aiter #3062, with blocks of one narrow token so that 65,537 of them are small."""
    text = (
        batch([1], [2]) + "cache: {block_size: 1, block_table: [[65536, 5]], num_blocks: 65537}\n" + attention(1, 1, 16)
    )
    found = planted(text, "block-id-16-bits")
    assert found.verdict.is_wrong
    assert "instead of block 65536" in said(found)


def test_block_size_that_is_no_multiple_of_the_tile_drops_tails() -> None:
    """tile-ai/TileOPs #1787: of 192 tokens a block 128 are read."""
    text = batch([1], [3072]) + "cache: {block_size: 192, placement: reversed}\n" + attention(2, 1, 32)
    found = planted(text, "block-tail-dropped")
    assert found.verdict is Verdict.FOOTPRINT
    assert "misses keys 128–191, 320–383" in said(found)
    assert diagnosed(found)[0] == "block-tail-dropped"


def test_block_stride_rebuilt_from_the_block_size() -> None:
    """ROCm/aiter #3498: K and V are halves of one tensor."""
    text = batch([1, 1], [40, 70]) + "cache: {block_size: 16, layout: interleaved-kv}\n" + attention(8, 2, 64)
    assert diagnosed(planted(text, "strides-assumed"))[0] == "strides-assumed"


def test_last_tile_reads_past_the_block_tables_row() -> None:
    """vllm-project/flash-attention #42: a table exactly as wide as needed."""
    text = batch([1], [17]) + "cache: {block_size: 16, max_blocks_per_seq: tight}\n" + attention(4, 2, 32)
    found = planted(text, "tile-past-the-table")
    assert found.verdict is Verdict.ERROR
    assert "past the end of the block table" in found.message
    assert exit_code([found.verdict]) is ExitCode.UNDECIDED


@pytest.mark.parametrize("cached", [512, 600])
def test_lengths_beyond_the_tables_capacity_are_refused(cached: int) -> None:
    """Dao-AILab/flash-attention #2711: nothing runs; sequence, need and capacity are named."""
    text = batch([1], [cached], append=True) + "cache: {block_size: 256, max_blocks_per_seq: 2}\n" + attention(4, 4, 64)
    with pytest.raises(ScenarioError) as refused:
        loads("name: report\n" + text)
    assert "3" in str(refused.value)
    assert "2" in str(refused.value)


DOCS = "batch: {query_lens: [1, 1, 1], cached_lens: [30, 32, 70]}\n"
DOCS_TABLE = "block_table: [[2, -1, -1, -1], [0, 1, -1, -1], [3, 5, 6, -1]], num_blocks: 8"


def test_unmapped_entries_become_addresses() -> None:
    """gittensor-ai-lab/sparkinfer #152."""
    text = DOCS + f"cache: {{block_size: 32, {DOCS_TABLE}}}\n" + attention(4, 2, 32)
    found = planted(text, "unmapped-entries-followed")
    assert found.verdict is Verdict.ERROR
    assert diagnosed(found)[0] == "unmapped-entries-followed"


def test_an_unmapped_entry_that_is_needed_is_refused_with_row_and_column() -> None:
    bad = DOCS_TABLE.replace("[3, 5, 6, -1]", "[3, -1, 6, -1]")
    with pytest.raises(ScenarioError) as refused:
        loads("name: report\n" + DOCS + f"cache: {{block_size: 32, {bad}}}\n" + attention(4, 2, 32))
    assert "block_table[2][1]" in str(refused.value)


@pytest.mark.parametrize(("queries", "keys"), [([1, 0, 1], [3, 0, 5]), ([0, 0, 0, 1], [0, 0, 0, 1])])
def test_longest_query_of_1_with_empty_ones(queries: list[int], keys: list[int]) -> None:
    """Dao-AILab/flash-attention #1537 and #1619."""
    text = batch(queries, keys) + "cache: {block_size: 16}\n" + attention(9, 3, 64, softmax_scale=1.0)
    found = planted(text, "empty-query-reshaped", "paged-varlen")
    assert found.verdict is Verdict.ERROR
    assert "is invalid for" in found.message


@pytest.mark.parametrize("size", [1, 3, 16, 19, 32, 64, 128, 192, 256])
def test_block_sizes_that_a_backend_does_not_have_are_skips_and_never_passes(size: int) -> None:
    """Dao-AILab/flash-attention #1579: a library that needs multiples of 256."""

    class Multiples(FaultyBackend):
        def unsupported(self, spec: CallSpec) -> str | None:
            short = spec.block_size % 256
            return f"block size {spec.block_size} is not supported (needs a multiple of 256)" if short else None

    found = record(DOCS + f"cache: {{block_size: {size}}}\n" + attention(4, 2, 32), Multiples(), suite="run")
    assert found.verdict is (Verdict.PASS if size == 256 else Verdict.SKIPPED)
    if size != 256:
        assert f"block size {size}" in found.message
        assert exit_code([found.verdict]) is ExitCode.NOTHING_CHECKED


@pytest.mark.parametrize(("keys", "size"), [([13], 4), ([1, 3], 4), ([32, 64, 96, 48], 128)])
def test_nan_in_unfilled_slots_poisons_the_output(keys: list[int], size: int) -> None:
    """flashinfer-ai/flashinfer #941; Dao-AILab/flash-attention #1745, #2374."""
    text = batch([1] * len(keys), keys) + f"cache: {{block_size: {size}}}\n" + attention(2, 2, 32)
    found = planted(text, "tail-leaks")
    assert found.verdict in (Verdict.NON_FINITE, Verdict.LEAK)
    assert "NaN in V of the rest of a partly used block shows in the output" in said(found)
    assert diagnosed(found)[0] == "tail-leaks"


@pytest.mark.parametrize(("queries", "keys"), [([5, 1], [2, 9]), ([4, 2], [0, 2])])
def test_rows_without_a_key_return_a_finite_lse(queries: list[int], keys: list[int]) -> None:
    """flashinfer-ai/flashinfer #4452."""
    text = batch(queries, keys) + "cache: {block_size: 16}\n" + attention(8, 2, 32)
    found = planted(text, "lse-finite-for-empty-rows", "paged-varlen")
    assert found.verdict is Verdict.MISMATCH
    assert "needed -inf" in found.message


@pytest.mark.parametrize(
    ("fault", "verdict"),
    [("empty-rows-divide-by-zero", Verdict.NON_FINITE), ("empty-rows-untouched", Verdict.NOT_WRITTEN)],
)
def test_decode_rows_of_length_0_are_zero_and_neither_nan_nor_stale(fault: str, verdict: Verdict) -> None:
    """vllm-project/vllm #57094, #37442: three outcomes told apart."""
    text = batch([1, 1, 1, 1], [37, 5, 90, 0]) + "cache: {block_size: 16}\n" + attention(4, 2, 32)
    found = planted(text, fault)
    assert found.verdict is verdict
    assert "sequence 3" in found.message
    assert fault in diagnosed(found)


def test_a_sequences_result_depends_on_its_batch_mates() -> None:
    """Dao-AILab/flash-attention #1897."""
    text = batch([1] * 3, [300, 40, 100]) + "cache: {block_size: 16}\n" + attention(4, 4, 64)
    found = planted(text, "splits-by-batch", suite="full")
    assert found.verdict is Verdict.UNSTABLE
    assert "alone" in found.message
    assert "depends on its batch mates" in found.diagnosis[0]["sentence"]


def test_an_append_into_a_full_cache_is_refused() -> None:
    """Dao-AILab/flash-attention #638."""
    text = batch([1], [64], append=True) + "cache: {block_size: 64, num_blocks: 1, block_table: [[0]]}\n"
    with pytest.raises(ScenarioError):
        loads("name: report\n" + text + attention(4, 4, 64))


def test_a_write_past_the_pool_is_found_in_the_guard_band() -> None:
    text = batch([1], [63], append=True) + "cache: {block_size: 64, num_blocks: 1, block_table: [[0]]}\n"
    found = planted(text + attention(4, 4, 64), "append-past-the-pool")
    assert found.verdict is Verdict.CORRUPTED


@pytest.mark.parametrize(("queries", "keys", "shows"), [(2, 5, True), (5, 2, True), (3, 3, False)])
def test_two_alignments_of_causal(queries: int, keys: int, shows: bool) -> None:
    """pytorch/pytorch #108108: the same for equal lengths, and named as what it is for others."""
    text = batch([queries], [keys]) + "cache: {block_size: 4}\n" + attention(4, 2, 32)
    found = planted(text, "causal-top-left", "paged-varlen")
    assert found.verdict.is_wrong is shows
    if shows:
        assert "top-left" in found.diagnosis[0]["sentence"]


@pytest.mark.parametrize("fault", ["window-one-wide", "window-one-narrow"])
@pytest.mark.parametrize(("queries", "keys"), [(16, 16), (1, 5), (1, 6)])
def test_sliding_window_off_by_one(fault: str, queries: int, keys: int) -> None:
    """huggingface/transformers #39408, vllm-project/vllm #3385; window of 4."""
    text = batch([queries], [keys]) + "cache: {block_size: 4}\n" + attention(4, 2, 32, window=4)
    found = planted(text, fault, "paged-varlen")
    assert found.verdict.is_wrong
    assert fault in diagnosed(found)


def test_int64_index_tensors_read_as_int32() -> None:
    """flashinfer-ai/flashinfer #725."""
    text = (
        batch([1, 1], [3, 3])
        + "cache: {block_size: 2, block_table: [[4, 2], [3, 1]], num_blocks: 5}\n"
        + attention(32, 8, 32, index_dtype="{block_table: int64}")
    )
    found = planted(text, "index-words-misread")
    assert found.verdict.is_wrong
    assert diagnosed(found)[0] == "index-words-misread"


def test_no_reference_is_never_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """vllm-project/vllm #1223: a reference that runs out of memory judges nothing."""

    def out_of_memory(*arguments: object, **named: object) -> None:
        raise NoReference("the reference needs 430 GiB")

    monkeypatch.setattr(check_base, "reference", out_of_memory)
    found = record(DOCS + "cache: {block_size: 32}\n" + attention(4, 2, 32), FaultyBackend(), suite="run")
    assert found.verdict is Verdict.NO_REFERENCE
    assert exit_code([found.verdict]) is ExitCode.UNDECIDED


def test_the_mean_of_v_does_not_pass_even_where_all_of_v_has_one_sign() -> None:
    """Xilinx/mlir-air #1427: V in [0.5, 1]; and the scenario is said to be blind."""
    text = (
        batch([1, 1], [40, 70])
        + "cache: {block_size: 16}\n"
        + attention(4, 2, 32)
        + "inputs: {v: {distribution: uniform, scale: 0.25, offset: 0.75}}\n"
    )
    for fault in ("mean-of-v", "all-zeros"):
        assert planted(text, fault).verdict.is_wrong
    assert "one sign" in " ".join(planted(text, "mean-of-v").all_warnings)
