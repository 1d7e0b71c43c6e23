"""Index arrays read as what they are not: counted by hand."""

from __future__ import annotations

import pytest
import torch

from pagedbench.faults.catalogue import find_fault
from pagedbench.faults.misread import as_int32
from pagedbench.faults.program import AttentionProgram
from pagedbench.faults.reading import split_of
from pagedbench.scenario.model import Scenario
from pagedbench.words import AttnPath
from tests.faults.test_program import program
from tests.tensors.cells import docs_decode, scenario


def changed(name: str, wanted: Scenario, path: AttnPath = AttnPath.DECODE) -> AttentionProgram:
    return find_fault(name).change(program(wanted, path))


def in_int64(*arrays: str) -> dict[str, object]:
    return {"index_dtype": dict.fromkeys(arrays, "int64")}


def test_every_second_word_of_small_int64_numbers_is_zero_and_of_negative_ones_minus_one() -> None:
    assert as_int32(torch.tensor([7, 8, 9])).tolist() == [7, 0, 8]
    assert as_int32(torch.tensor([[7, -1], [2**32 + 5, 1]])).tolist() == [[7, 0], [-1, -1]]


def test_query_starts_misread_leave_one_sequence_with_the_rows_of_another() -> None:
    """Queries of 2, 1 and 3 start at 0, 2, 3, 6; read as int32 at 0, 0, 2, 0: rows 0 and 1 are sequence 1's."""
    wanted = scenario((2, 1, 3), (5, 9, 20), attention=in_int64("cu_seqlens_q"))
    found = changed("cu-seqlens-q-misread", wanted, AttnPath.PAGED_VARLEN)
    assert found.facts.row_sequence.tolist() == [1, 1, -1, -1, -1, -1]
    assert found.last.tolist() == [9, 10, 0, 0, 0, 0]


def test_lengths_misread_leave_every_second_sequence_without_keys() -> None:
    """31, 33 and 71 keys are read as 31, 0 and 33."""
    found = changed("total-seqlens-misread", scenario(attention=in_int64("total_seqlens")))
    assert (found.last - found.first).tolist() == [31, 0, 33]


def test_cached_lengths_misread_move_the_append_and_not_what_is_read() -> None:
    """30, 32 and 70 are read as 30, 0 and 32: the second sequence's token goes to its first slot."""
    right = program(docs_decode())
    found = changed("cache-seqlens-misread", scenario(cache=_docs(), attention=in_int64("cache_seqlens")))
    assert found.writes is not None
    assert found.writes.k_slots.tolist() == [94, 0, 160]
    assert torch.equal(found.last, right.last)


def _docs() -> dict[str, object]:
    made = docs_decode().cache
    return {"max_blocks_per_seq": made.max_blocks_per_seq, "num_blocks": 8, "block_table": made.block_table}


@pytest.mark.parametrize("name", ["cu-seqlens-q-misread", "total-seqlens-misread", "cache-seqlens-misread"])
def test_int32_arrays_are_read_as_what_they_are(name: str) -> None:
    right = program(docs_decode())
    assert find_fault(name).change(right) is right


def test_a_table_row_as_long_as_the_longest_sequence_needs_begins_too_early() -> None:
    """Three of four columns are needed. Of 2 −1 −1 −1, 0 1 −1 −1, 3 5 6 −1 the second row is −1 0 1, the third −1 −1 3;
    where an entry names no block, block 0 is read."""
    found = changed("table-row-stride", docs_decode())
    assert (found.k_slots[1, :33:32] // 32).tolist() == [0, 0]
    assert (found.k_slots[2, :71:32] // 32).tolist() == [0, 0, 3]


@pytest.mark.parametrize(
    ("name", "queries", "keys", "seen"),
    [
        ("stops-at-empty-keys", (1, 1, 1, 1), (4, 0, 5, 6), [4, 0, 0, 0]),
        ("stops-at-empty-keys", (1, 1), (4, 5), [4, 5]),
        ("stops-at-empty-query", (1, 0, 1, 1), (4, 3, 5, 6), [4, 0, 0]),
        ("stops-at-empty-query", (1, 1), (4, 0), [4, 0]),
    ],
)
def test_nothing_is_seen_behind_the_first_empty_sequence(
    name: str, queries: tuple[int, ...], keys: tuple[int, ...], seen: list[int]
) -> None:
    found = changed(name, scenario(queries, keys, append=False), AttnPath.PAGED_VARLEN)
    assert (found.last - found.first).tolist() == seen


@pytest.mark.parametrize(
    ("splits", "starts"),
    [(0, [0, 32, 64]), (1, [0, 32, 64]), (2, [0, 64]), (3, [0, 32, 64]), (8, [0, 9, 18, 27, 36, 45, 54, 63])],
)
def test_splits_are_the_calls_own_where_it_asks_for_some(splits: int, starts: list[int]) -> None:
    """71 keys in three blocks of 32: four splits, or as many as asked for, are of one block at least; eight cannot be,
    and are of nine keys."""
    wanted = scenario((1,), (71,), append=False, attention={"num_splits": splits})
    split = split_of(program(wanted))[0, :71]
    assert [int((split < number).sum()) for number in split.unique().tolist()] == starts


@pytest.mark.parametrize(
    ("name", "slots"),
    [
        ("block-id-16-bits", [63 * 3, 33001 * 3]),
        ("block-id-15-bits", [63 * 3, 233 * 3]),
        ("slot-16-bits", [189, 33467]),
    ],
)
def test_ids_and_slots_are_cut_to_as_many_bits(name: str, slots: list[int]) -> None:
    """Blocks of 3 tokens, 65,599 = 65,536 + 63 and 33,001 = 32,768 + 233; slot 99,003 is 65,536 + 33,467."""
    cache = {"block_size": 3, "num_blocks": 65600, "block_table": ((65599, 33001),)}
    wanted = scenario((1,), (4,), append=False, heads=(1, 1), head_dim=1, cache=cache)
    assert changed(name, wanted).k_slots[0, [0, 3]].tolist() == slots
