"""The layout of a batch: the guide's arrays digit for digit, hand counts, and a slow one from the definitions."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings

from pagedbench.layout.build import build_layout
from pagedbench.scenario.model import Scenario
from tests.layout.by_hand import keys_after, keys_by_definition, slot_by_definition
from tests.layout.scenarios import PLACEMENTS, docs_decode, docs_varlen, scenario, scenarios


class TestTheGuide:
    def test_decode_example(self) -> None:
        layout = build_layout(docs_decode())
        assert layout.cache_seqlens.tolist() == [30, 32, 70]
        assert layout.block_table.tolist() == [[2, -1, -1, -1], [0, 1, -1, -1], [3, 5, 6, -1]]
        assert layout.block_table.dtype == layout.cache_seqlens.dtype == np.int32

    def test_decode_example_writes_where_the_guide_says(self) -> None:
        """30 + 1 fits block 2; 32 + 1 opens block 1; 70 + 1 fits the third block, 6, at 70 - 64."""
        layout = build_layout(docs_decode())
        assert layout.write_slots.tolist() == [2 * 32 + 30, 1 * 32 + 0, 6 * 32 + 6]

    def test_varlen_example(self) -> None:
        layout = build_layout(docs_varlen(append=False))
        assert layout.cu_seqlens_q.tolist() == [0, 10, 13, 14]
        assert layout.cu_seqlens_k.tolist() == [0, 0, 1, 8]
        assert (layout.max_seqlen_q, layout.max_seqlen_k) == (10, 7)
        assert (layout.total_q, layout.total_k) == (14, 8)
        assert layout.cu_seqlens_q.dtype == layout.cu_seqlens_k.dtype == np.int32
        assert layout.write_slots.tolist() == []

    def test_varlen_example_as_an_engine_runs_it(self) -> None:
        layout = build_layout(docs_varlen(append=True))
        assert layout.cu_seqlens_k.tolist() == [0, 10, 14, 22]
        assert layout.total_seqlens.tolist() == [10, 4, 8]

    def test_varlen_example_sees_twelve_blind_rows(self) -> None:
        """Queries 10 and 3 over 0 and 1 keys: the last token of sequence 1 sees a key, so does sequence 2's."""
        layout = build_layout(docs_varlen(append=False))
        seen = (layout.visible_to - layout.visible_from).tolist()
        assert seen == [0] * 10 + [0, 0, 1] + [7]


class TestVisibility:
    def see(self, q: int, k: int, **fields: object) -> list[tuple[int, int]]:
        layout = build_layout(scenario((q,), (k,), append=False, **fields))  # type: ignore[arg-type]
        return list(zip(layout.visible_from.tolist(), layout.visible_to.tolist(), strict=True))

    def test_causal_is_aligned_bottom_right(self) -> None:
        assert self.see(2, 5) == [(0, 4), (0, 5)]
        assert self.see(3, 3) == [(0, 1), (0, 2), (0, 3)]

    def test_more_queries_than_keys_leaves_the_first_ones_blind(self) -> None:
        assert self.see(5, 2) == [(0, 0), (0, 0), (0, 0), (0, 1), (0, 2)]

    def test_a_window_of_four_keys_is_three_to_the_left(self) -> None:
        assert self.see(3, 6, window_size=(3, 0)) == [(0, 4), (1, 5), (2, 6)]

    def test_without_causality_all_keys_are_seen(self) -> None:
        assert self.see(3, 2, causal=False) == [(0, 2)] * 3

    def test_a_window_may_look_right_without_causality(self) -> None:
        assert self.see(2, 6, causal=False, window_size=(1, 1)) == [(3, 6), (4, 6)]

    def test_a_window_that_looks_right_reaches_keys_from_before_the_first(self) -> None:
        """Token 0 of 4 over 2 keys stands at -2: two to the right is key 0."""
        assert self.see(4, 2, causal=False, window_size=(0, 2)) == [(0, 1), (0, 2), (0, 2), (1, 2)]


@settings(max_examples=200, deadline=None)
@given(scenarios())
def test_agrees_with_the_definitions_pair_by_pair(batch: Scenario) -> None:
    layout = build_layout(batch)
    expected = keys_by_definition(batch)
    size, table = batch.cache.block_size, layout.block_table.tolist()
    starts = layout.cu_seqlens_q.tolist()
    needed = {(s, key // size) for (s, _), keys in expected.seen.items() for key in keys}
    needed |= {(s, key // size) for s, keys in expected.written.items() for key in keys}

    for (sequence, token), keys in expected.seen.items():
        row = starts[sequence] + token
        assert list(range(layout.visible_from[row], layout.visible_to[row])) == keys
    assert set(zip(*(i.tolist() for i in np.nonzero(layout.needed_blocks)), strict=True)) == needed
    assert layout.read_slots.tolist() == [
        slot_by_definition(table, s, key, size) for s, k in enumerate(keys_after(batch)) for key in range(k)
    ]
    assert layout.write_slots.tolist() == [
        slot_by_definition(table, s, key, size) for s, keys in expected.written.items() for key in keys
    ]


@settings(max_examples=100, deadline=None)
@given(scenarios())
def test_every_key_has_a_slot_of_its_own_in_the_pool(batch: Scenario) -> None:
    layout = build_layout(batch)
    slots = layout.read_slots.tolist()
    assert len(set(slots)) == len(slots)
    assert all(0 <= slot < layout.num_blocks * layout.block_size for slot in slots)
    assert set(layout.write_slots.tolist()) <= set(slots)


@settings(max_examples=50, deadline=None)
@given(scenarios())
def test_equal_scenarios_give_equal_layouts(batch: Scenario) -> None:
    assert build_layout(batch).block_table.tolist() == build_layout(batch).block_table.tolist()


class TestPlacement:
    def table(self, name: str, **cache: object) -> list[list[int]]:
        fields = {"block_size": 4, "placement": name, "max_blocks_per_seq": "tight", **cache}
        return build_layout(scenario((1, 1), (9, 4), **fields)).block_table.tolist()

    def test_sequential_fills_sequence_after_sequence(self) -> None:
        assert self.table("sequential") == [[0, 1, 2], [3, 4, -1]]

    def test_reversed_descends(self) -> None:
        assert self.table("reversed") == [[4, 3, 2], [1, 0, -1]]

    def test_interleaved_takes_turns(self) -> None:
        assert self.table("interleaved") == [[0, 2, 4], [1, 3, -1]]

    def test_high_ids_are_past_what_16_bits_hold_signed_and_unsigned(self) -> None:
        assert self.table("high-ids") == [[65536, 32768, 65537], [32769, 65538, -1]]

    def test_high_ids_of_a_given_pool_are_its_last(self) -> None:
        assert self.table("high-ids", num_blocks=100) == [[95, 96, 97], [98, 99, -1]]

    def test_fragmented_ascends_with_holes(self) -> None:
        layout = build_layout(scenario((1,), (399,), placement="fragmented", max_blocks_per_seq="tight"))
        steps = np.diff(layout.block_table[0])
        assert (steps >= 1).all()
        assert (steps > 1).any()

    def test_shuffled_depends_on_the_seed(self) -> None:
        tables = [build_layout(scenario((1,), (99,), seed=s)).block_table.tolist() for s in (0, 1)]
        assert tables[0] != tables[1]

    def test_shared_prefix_shares_the_common_whole_blocks_and_nothing_that_is_written(self) -> None:
        """9, 4 and 3 cached keys in blocks of 4: one whole block is common to the first two, the third has none."""
        layout = build_layout(scenario((1, 1, 1), (9, 4, 3), placement="shared-prefix", max_blocks_per_seq="tight"))
        first, second, third = layout.block_table.tolist()
        assert first[0] == second[0]
        private = [*first[1:], second[1], third[0]]
        assert len({first[0], *private}) == 1 + len(private)


class TestTableAndPool:
    def test_tight_has_no_spare_column(self) -> None:
        layout = build_layout(scenario((1, 1), (4, 7), max_blocks_per_seq="tight"))
        assert layout.max_blocks_per_seq == 2

    def test_default_has_spare_columns(self) -> None:
        assert build_layout(scenario((1, 1), (4, 7))).max_blocks_per_seq > 2

    def test_default_pool_has_blocks_that_nobody_names(self) -> None:
        layout = build_layout(scenario((1, 1), (4, 7)))
        assert layout.num_blocks > len(np.unique(layout.block_table[layout.block_table >= 0]))

    def test_an_empty_batch_may_have_an_empty_pool(self) -> None:
        layout = build_layout(scenario((), (), num_blocks=0))
        assert (layout.batch, layout.num_blocks, layout.total_q, layout.total_k) == (0, 0, 0, 0)
        assert layout.uniform_query_len is None

    @pytest.mark.parametrize(("padding", "stands"), [(-1, -1), (0, 0), ("num_blocks", 8), (6, 6), (99, 99)])
    def test_padding_stands_in_every_entry_not_allocated(self, padding: object, stands: int) -> None:
        table = build_layout(docs_decode(padding=padding)).block_table
        assert table[0].tolist() == [2, stands, stands, stands]

    def test_a_decoy_is_a_block_that_no_sequence_has(self) -> None:
        layout = build_layout(docs_decode(padding="decoy"))
        decoy = layout.block_table[0, 1]
        assert 0 <= decoy < layout.num_blocks
        assert decoy not in layout.block_table[layout.needed_blocks]

    def test_entries_below_every_window_may_be_rubbish(self) -> None:
        """One query token that sees 4 of 13 keys, 9 to 12: blocks 0 and 1 of 4 are not needed."""
        table = ((-1, 777777, 2, 0),)
        layout = build_layout(scenario((1,), (12,), window_size=(3, 0), block_table=table))
        assert layout.needed_blocks.tolist() == [[False, False, True, True]]
        assert layout.read_slots.tolist() == [-1] * 8 + [8, 9, 10, 11] + [0]
        assert layout.num_blocks < 777777

    def test_tight_cuts_a_written_table(self) -> None:
        assert build_layout(docs_decode(max_blocks_per_seq="tight")).block_table.shape == (3, 3)


class TestPaddingRows:
    def test_write_into_the_trash_block_and_name_nothing_else(self) -> None:
        layout = build_layout(scenario((1, 1, 1), (5, 0, 0), padding_rows=2, trash_block=True))
        assert layout.dead.tolist() == [False, True, True]
        assert (layout.block_table[1:] == layout.trash_block).all()
        assert layout.trash_block not in layout.block_table[0]
        assert layout.trash_block is not None
        assert layout.write_slots[1:].tolist() == [layout.trash_block * 4] * 2

    def test_a_written_table_may_leave_them_out(self) -> None:
        layout = build_layout(scenario((1, 1), (5, 0), padding_rows=1, trash_block=True, block_table=((3, 1),)))
        assert layout.block_table.tolist() == [[3, 1], [layout.trash_block] * 2]


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_65536_sequences(placement: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Big enough that a loop over sequences would show; the time is printed (`-s`), never judged."""
    lengths = tuple(i * 7919 % 130 for i in range(65_536))
    batch = scenario((1,) * len(lengths), lengths, block_size=16, placement=placement)
    start = time.perf_counter()
    layout = build_layout(batch)
    with capsys.disabled():
        print(f" [{placement}: {time.perf_counter() - start:.2f} s]", end="")
    assert layout.total_k == sum(lengths) + 65_536
    slots = np.sort(layout.read_slots)
    assert (np.diff(slots) > 0).all()
    last = layout.block_table[-1, lengths[-1] // 16] * 16 + lengths[-1] % 16
    assert layout.write_slots[-1] == last
