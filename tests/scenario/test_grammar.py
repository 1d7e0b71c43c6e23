"""The batch grammar: counts by hand, and every spec reads back."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedbench.scenario.grammar import GrammarError, Group, format_spec, parse_spec, sequences
from pagedbench.scenario.loader import loads
from tests.scenario.files import scenario_text


@pytest.mark.parametrize(
    ("spec", "groups"),
    [
        ("q1", [Group(1, 1, 1)]),
        ("8q1s2048", [Group(8, 1, 2048)]),
        ("2q2k_32q1s4k", [Group(2, 2048, 2048), Group(32, 1, 4096)]),
        ("q1ks3k", [Group(1, 1024, 3072)]),
        ("0q1", [Group(0, 1, 1)]),
        ("1q0s7", [Group(1, 0, 7)]),
    ],
)
def test_groups_are_count_query_length_and_keys(spec: str, groups: list[Group]) -> None:
    assert parse_spec(spec) == tuple(groups)


@pytest.mark.parametrize("spec", ["", "_", "2q", "q", "s4", "2x4", "q1s", "q1_", "q1 s4", "q-1", "q1K", "q1.5", "q①"])
def test_anything_else_is_refused(spec: str) -> None:
    with pytest.raises(GrammarError):
        parse_spec(spec)


def test_a_refusal_names_the_part() -> None:
    with pytest.raises(GrammarError, match="'2x4' in '8q1s2k_2x4'"):
        parse_spec("8q1s2k_2x4")


@given(
    st.lists(
        st.builds(Group, st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**9)), min_size=1, max_size=5
    )
)
def test_every_batch_can_be_written_and_read_back(groups: list[Group]) -> None:
    assert parse_spec(format_spec(tuple(groups))) == tuple(groups)
    assert sequences(tuple(groups)) == sum(group.count for group in groups)


@given(st.text(alphabet="0123456789qsk_ x", max_size=30))
def test_no_text_gives_anything_but_groups_or_a_grammar_error(text: str) -> None:
    with suppress(GrammarError):
        assert parse_spec(text)


def test_keys_count_the_new_tokens_where_they_join_the_cache() -> None:
    (scenario,) = loads(scenario_text(batch={"spec": "2q4s10_q1s3"}))
    assert scenario.batch.query_lens == (4, 4, 1)
    assert scenario.batch.cached_lens == (6, 6, 2)


def test_keys_are_the_cached_ones_where_nothing_is_appended() -> None:
    (scenario,) = loads(scenario_text(batch={"spec": "2q4s10_3q5s2", "append": False}))
    assert scenario.batch.query_lens == (4, 4, 5, 5, 5)
    assert scenario.batch.cached_lens == (10, 10, 2, 2, 2)
