"""What is refused before anything is allocated: the field, what was found, and what was needed."""

from __future__ import annotations

from typing import Any

import pytest

from pagedbench.errors import Problem, ScenarioError
from pagedbench.layout.build import build_layout
from pagedbench.scenario.model import Origin, Scenario
from tests.layout.scenarios import docs_decode, scenario


def problem_of(batch: Scenario) -> Problem:
    with pytest.raises(ScenarioError) as error:
        build_layout(batch)
    return error.value.problems[0]


def test_a_minus_one_where_a_key_is_written_names_row_and_column() -> None:
    table = ((2, -1, -1, -1), (0, -1, -1, -1), (3, 5, 6, -1))
    problem = problem_of(docs_decode(block_table=table))
    assert (problem.field, problem.found) == ("cache.block_table[1][1]", "-1")
    assert problem.needed == "a block from 0 to 7: sequence 1 writes key 32 in it"


def test_an_id_outside_the_pool() -> None:
    table = ((2, -1, -1, -1), (0, 8, -1, -1), (3, 5, 6, -1))
    assert problem_of(docs_decode(block_table=table)).field == "cache.block_table[1][1]"


def test_a_minus_one_where_a_cached_key_is_seen() -> None:
    problem = problem_of(docs_decode(block_table=((2, -1, -1, -1), (0, 1, -1, -1), (3, -1, 6, -1))))
    assert problem.needed == "a block from 0 to 7: sequence 2 has keys 32 to 63 in it"


def test_a_table_too_narrow_names_the_sequence_and_its_need() -> None:
    """512 + 1 keys in blocks of 256 need a third column."""
    problem = problem_of(scenario((1,), (512,), block_size=256, max_blocks_per_seq=2))
    assert problem.field == "cache.max_blocks_per_seq"
    assert "at least 3" in problem.needed
    assert "sequence 0 has 513 keys" in problem.needed


def test_a_written_table_too_narrow() -> None:
    assert problem_of(docs_decode(max_blocks_per_seq=None, block_table=((2,), (0,), (3,)))).field == "cache.block_table"


def test_a_row_wider_than_the_table() -> None:
    assert problem_of(docs_decode(max_blocks_per_seq=3)).field == "cache.block_table[0]"


def test_as_many_rows_as_sequences() -> None:
    problem = problem_of(docs_decode(block_table=((2, -1, -1, -1),)))
    assert (problem.found, problem.needed) == ("1 rows", "3 rows, one a sequence")


def test_a_slot_that_two_sequences_would_write() -> None:
    problem = problem_of(scenario((1, 1), (1, 1), block_table=((0,), (0,))))
    assert problem.field.startswith("cache.block_table[")
    assert "writes slot 1" in problem.needed


def test_a_slot_that_one_sequence_writes_and_another_sees() -> None:
    """Sequence 0 writes key 1 of block 0; sequence 1 sees keys 0 to 2 there, and writes key 3."""
    problem = problem_of(scenario((1, 1), (1, 3), block_table=((0,), (0,))))
    assert problem.field == "cache.block_table[0][0]"
    assert "sequence 1 sees as key 1" in problem.needed


def test_a_sequence_that_writes_into_its_own_past() -> None:
    assert "sequence 0 sees" in problem_of(scenario((1,), (4,), block_table=((0, 0),))).needed


def test_sharing_what_is_only_read_is_fine() -> None:
    layout = build_layout(scenario((1, 1), (4, 4), block_table=((0, 1), (0, 2))))
    assert layout.write_slots.tolist() == [4, 8]


def test_a_pool_too_small_says_how_many_blocks_it_takes() -> None:
    problem = problem_of(scenario((1, 1), (4, 7), num_blocks=3, trash_block=True))
    assert (problem.field, problem.found) == ("cache.num_blocks", "3")
    assert "at least 5" in problem.needed


def test_no_block_left_for_a_decoy() -> None:
    problem = problem_of(scenario((1,), (4,), num_blocks=2, block_table=((0, 1),), padding="decoy"))
    assert problem.field == "cache.num_blocks"


def test_padding_rows_that_append_need_a_trash_block() -> None:
    problem = problem_of(scenario((1, 1), (3, 0), padding_rows=1))
    assert problem.field == "cache.trash_block"
    assert problem.hint is not None


def test_padding_rows_own_no_block() -> None:
    batch = scenario((1, 1), (3, 0), padding_rows=1, trash_block=True, block_table=((0,), (0,)))
    assert problem_of(batch).field == "cache.block_table[1]"


def test_a_shared_prefix_needs_something_to_share() -> None:
    assert problem_of(scenario((1, 1), (9, 3), placement="shared-prefix")).field == "cache.placement"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"block_size": 0}, "cache.block_size"),
        ({"padding_rows": 3, "trash_block": True}, "batch.padding_rows"),
        ({"padding": 2**31}, "cache.padding"),
        ({"num_blocks": 2**31}, "cache.num_blocks"),
    ],
)
def test_numbers_out_of_range(fields: dict[str, Any], field: str) -> None:
    assert problem_of(scenario((1, 1), (3, 3), **fields)).field == field


def test_lengths_that_disagree() -> None:
    assert problem_of(scenario((1, 1), (3,))).field == "batch.cached_lens"


def test_negative_lengths() -> None:
    assert problem_of(scenario((1, -1), (3, 3))).field == "batch.query_lens[1]"


@pytest.mark.parametrize("lengths", [(10**30,), (2**27, 1)])
def test_more_tokens_than_indices_are_made_for(lengths: tuple[int, ...]) -> None:
    assert problem_of(scenario((0,) * len(lengths), lengths)).field == "batch.cached_lens"


def test_a_table_that_would_fill_the_memory() -> None:
    problem = problem_of(scenario((0,) * 60_000, (1_000_000, *(0,) * 59_999), block_size=1))
    assert problem.field == "cache.max_blocks_per_seq"


@pytest.mark.parametrize("entry", [10**30, -(2**40)])
def test_entries_fit_int32(entry: int) -> None:
    assert problem_of(scenario((1,), (3,), block_table=((0, entry),))).field == "cache.block_table[0][1]"


def test_every_bad_entry_is_named_with_its_place_in_the_file() -> None:
    table = ((2, -1, -1, -1), (-1, -1, -1, -1), (3, 5, 6, -1))
    origin = Origin("b.yaml", {"cache.block_table[1][0]": (9, 20), "cache.block_table[1]": (9, 19)})
    batch = docs_decode(block_table=table)
    with pytest.raises(ScenarioError) as error:
        build_layout(Scenario(**{**batch.__dict__, "origin": origin}))
    assert [p.where for p in error.value.problems] == ["b.yaml:9:20", "b.yaml:9:19"]
