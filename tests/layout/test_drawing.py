"""The guide's drawings: its own two examples as it prints them, and what must hold for any batch."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedbench.layout.build import build_layout
from pagedbench.layout.drawing import grid, strips, writes
from pagedbench.layout.drawing.arrays import as_dict
from pagedbench.layout.drawing.page import draw
from pagedbench.layout.drawing.words import ordinal, short_list
from pagedbench.scenario.model import Override, Scenario
from tests.layout.scenarios import docs_decode, docs_varlen, scenario, scenarios

NAMES = strips.Names("Q request index", "cu_seqlens_q", "query tokens")


def page(batch: Scenario, width: int = 100) -> list[str]:
    return [line.plain.rstrip() for line in draw(batch, build_layout(batch), width)]


def strip_of(lengths: list[int], width: int = 100) -> tuple[str, str]:
    cumulative = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    tokens, ruler, *_ = (line.plain[2 + strips.LABEL_WIDTH :] for line in strips.strip(cumulative, NAMES, width))
    return tokens, ruler


class TestTheGuidesVarlenExample:
    def test_arrays_with_the_guides_names_beside_ours(self) -> None:
        text = "\n".join(page(docs_varlen(append=False)))
        assert re.search(r"cu_seqlens_q += \[0, 10, 13, 14\] .* cu_seq_lens_q", text)
        assert re.search(r"cu_seqlens_k += \[0, 0, 1, 8\] .* cu_seq_lens_k", text)
        assert re.search(r"max_seqlen_q += 10 .* max_length_q", text)
        assert re.search(r"max_seqlen_k += 7 .* max_length_k", text)

    def test_input_shapes(self) -> None:
        text = "\n".join(page(docs_varlen(append=False)))
        assert "[1, 10+3+1, num_heads, head_dim] = [1, 14, 8, 64]" in text
        assert "[1, 0+1+7, num_kv_heads, head_dim] = [1, 8, 2, 64]" in text

    def test_query_strip(self) -> None:
        tokens, ruler = strip_of([10, 3, 1])
        assert tokens.split() == ["r0"] * 10 + ["r1"] * 3 + ["r2"]
        assert ruler == "0_____________________________10_______13_14"

    def test_key_strip_marks_the_sequence_without_keys_as_the_guide_does(self) -> None:
        """The guide writes `0,0`, and that r0 has no K tokens."""
        tokens, ruler = strip_of([0, 1, 7])
        assert tokens.split() == ["r1"] + ["r2"] * 7
        assert ruler.replace("_", " ").split() == ["0,0", "1", "8"]
        assert any("(r0 has no keys)" in line for line in page(docs_varlen(append=False)))

    def test_says_that_decode_cannot_take_it_and_that_rows_are_blind(self) -> None:
        text = "\n".join(page(docs_varlen(append=False)))
        assert "query lengths differ (10, 3, 1)" in text
        assert "12 of 14 query tokens see no key" in text


class TestTheGuidesDecodeExample:
    def test_table_and_lengths(self) -> None:
        text = "\n".join(page(docs_decode()))
        assert re.search(r"cache_seqlens += \[30, 32, 70\]", text)
        assert re.sub(r"\s", "", "[[2,-1,-1,-1],[0,1,-1,-1],[3,5,6,-1]]") in re.sub(r"\s", "", text)

    def test_sentences(self) -> None:
        """The guide: «32 + 1 > 32, so a second block is needed», the others fit their first and their third block."""
        lines = [line.plain.strip() for line in writes.sentences(build_layout(docs_decode()), 100)]
        assert lines == [
            "sequence 0: 30 + 1 = 31 ≤ 32, so the new token fits the block that it has",
            "sequence 1: 32 + 1 > 32, so a second block is needed (block 1)",
            "sequence 2: 70 + 1 = 71 ≤ 96, so the new token fits its third block",
        ]

    def test_where_the_new_tokens_go(self) -> None:
        rows = [line.plain.split() for line in writes.table(build_layout(docs_decode()))][1:]
        assert rows == [
            ["0", "0", "30", "0", "2", "30", "94"],
            ["1", "0", "32", "1", "1", "0", "32"],
            ["2", "0", "70", "2", "6", "6", "198"],
        ]

    def test_what_each_block_holds(self) -> None:
        rows = [re.split(r"  +", line.plain.strip()) for line in grid.grid(build_layout(docs_decode()), 100)]
        assert rows[1] == ["sequence 0", "2 ██████▒· 30+1", "-1", "-1", "-1"]
        assert rows[2] == ["sequence 1", "0 ████████ 32", "1 ▒······· +1", "-1", "-1"]
        assert rows[3] == ["sequence 2", "3 ████████ 32", "5 ████████ 32", "6 ██▒····· 6+1", "-1"]


@settings(max_examples=60, deadline=None)
@given(scenarios(), st.integers(72, 100))
def test_no_line_is_wider_than_asked(batch: Scenario, width: int) -> None:
    assert max(map(len, page(batch, width))) <= width


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=8))
def test_the_ruler_stands_under_the_first_token_of_each_sequence(lengths: list[int]) -> None:
    tokens, ruler = strip_of(lengths, 400)
    cumulative = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    for sequence, length in enumerate(lengths):
        if length:
            column = re.search(rf"r{sequence}\b", tokens).start()  # type: ignore[union-attr]
            mark = re.match(r"\d+", ruler[column:])
            assert mark is not None
            assert int(mark.group()) == cumulative[sequence]


class TestLargeBatches:
    @pytest.fixture
    def lines(self) -> list[str]:
        return page(scenario((1,) * 65_536, tuple(i % 97 for i in range(65_536)), block_size=16))

    def test_stay_on_a_screen_or_two(self, lines: list[str]) -> None:
        assert len(lines) < 80
        assert max(map(len, lines)) <= 100

    def test_show_both_ends_and_say_what_is_left_out(self, lines: list[str]) -> None:
        text = "\n".join(lines)
        assert "sequence 0 " in text
        assert "sequence 65535 " in text
        assert re.search(r"… [\d,]+ more sequences …", text)

    def test_count_the_openers_among_those_left_out(self) -> None:
        """Blocks of 4 and cached lengths 0 to 29: 0, 4, ..., 28 open a block; 0 and 4 of them are shown."""
        lines = writes.sentences(build_layout(scenario((1,) * 30, tuple(range(30)))), 100)
        assert "21 more sequences, 6 of them open a block" in lines[-2].plain

    def test_a_long_sequence_keeps_its_first_and_last_block(self) -> None:
        batch = scenario((1,), (1_000_000,), block_size=16, placement="sequential", max_blocks_per_seq="tight")
        row = grid.grid(build_layout(batch), 100)[0].plain
        assert "column 0: 0 ████████ 16" in row
        assert "column 62500: 62500 ▒······· +1" in row
        assert "62,499 more" in row

    def test_a_shape_has_a_comma_between_its_dimensions_only(self) -> None:
        batch = scenario((1,), (1_000_000,), block_size=16, max_blocks_per_seq="tight")
        assert any("(1, 62501) int32, into a pool of" in line for line in page(batch))


class TestGridDetails:
    def test_keys_below_the_window_are_shown_apart(self) -> None:
        batch = scenario((1,), (12,), window_size=(3, 0), placement="sequential", max_blocks_per_seq="tight")
        assert grid.grid(build_layout(batch), 100)[1].plain.split()[2:] == [
            *("0", "░░░░░░░░", "4"),
            *("1", "░░░░░░░░", "4"),
            *("2", "░░██████", "4"),
            *("3", "▒▒······", "+1"),
        ]

    def test_the_trash_block_is_called_so(self) -> None:
        batch = scenario((1, 1), (4, 0), padding_rows=1, trash_block=True)
        assert "trash" in grid.grid(build_layout(batch), 100)[2].plain

    @given(st.tuples(*[st.integers(0, 300)] * 4).filter(lambda parts: sum(parts) > 0))
    def test_a_bar_is_always_as_long_and_shows_whatever_is_there(self, parts: tuple[int, int, int, int]) -> None:
        bar = grid.Holding(*parts).bar()
        assert len(bar) == grid.BAR
        signs = [sign for sign, tokens in zip("░█▒·", parts, strict=True) if tokens]
        assert list(dict.fromkeys(bar)) == signs


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"steps": 6}, "6 steps are decoded one after the other; drawn is the first"),
        ({"graph_capture_lens": (9, 1, 5)}, "captured in a CUDA graph with [9, 1, 5] cached keys; drawn is the replay"),
        ({"override": Override({"max_seqlen_k": 3})}, "the kernel is handed another max_seqlen_k than drawn here"),
    ],
)
def test_what_a_run_does_beyond_the_page_is_said_on_it(asked: dict[str, object], sentence: str) -> None:
    assert sentence in "\n".join(page(replace(docs_decode(), **asked)))  # type: ignore[arg-type]
    assert sentence not in "\n".join(page(docs_decode()))


def test_json_has_every_array_in_full() -> None:
    batch = scenario((1,) * 500, (40,) * 500)
    layout = build_layout(batch)
    data = as_dict(batch, layout)
    assert len(data["read_slots"]) == 500 * 41
    assert data["block_table"] == layout.block_table.tolist()
    assert data["shapes"]["q"] == [1, 500, 8, 64]


def test_words() -> None:
    assert [ordinal(n) for n in (1, 2, 10, 11, 12, 21, 102, 113)] == [
        *("first", "second", "tenth", "11th", "12th", "21st", "102nd", "113th")
    ]
    assert short_list([1, 2, 3], 9) == "[1, 2, 3]"
    assert short_list([1, 2, 3, 4], 9) == "[1, …, 4]"
