"""Variants: names, values, places, and how they are related."""

from __future__ import annotations

import pickle

from pagedbench.scenario.loader import loads
from tests.scenario.files import VALID, scenario_text


def names_of(text: str) -> list[str]:
    return [scenario.name for scenario in loads(text)]


def test_names_say_path_and_value_first_path_slowest() -> None:
    text = scenario_text(matrix={"cache.block_size": [16, 32], "attention.dtype": ["float16", "bfloat16"]})
    assert names_of(text) == [
        "small[cache.block_size=16,attention.dtype=float16]",
        "small[cache.block_size=16,attention.dtype=bfloat16]",
        "small[cache.block_size=32,attention.dtype=float16]",
        "small[cache.block_size=32,attention.dtype=bfloat16]",
    ]


def test_each_variant_has_its_values() -> None:
    first, second = loads(scenario_text(matrix={"cache.block_size": [16, 32]}))
    assert (first.cache.block_size, second.cache.block_size) == (16, 32)
    assert second.variant == {"cache.block_size": 32}
    assert first.batch == second.batch


def test_null_leaves_a_field_out() -> None:
    text = scenario_text(matrix={"attention.softcap": [None, 30]})
    assert names_of(text) == ["small[attention.softcap=null]", "small[attention.softcap=30]"]
    assert [scenario.attention.softcap for scenario in loads(text)] == [None, 30.0]


def test_lists_and_mappings_are_written_short_and_long_ones_numbered() -> None:
    long_list = list(range(40))
    text = scenario_text(matrix={"attention.window_size": [[5, 0]], "cache.layout": [{"order": "HND"}]})
    assert names_of(text) == ["small[attention.window_size=[5,0],cache.layout={order:HND}]"]
    text = scenario_text(batch={"query_lens": [1] * 40}, matrix={"batch.cached_lens": [long_list]})
    assert names_of(text) == ["small[batch.cached_lens=#0]"]


def test_a_section_may_come_from_the_matrix_alone() -> None:
    text = VALID.replace("cache: {block_size: 16}\n", "") + "matrix: {cache.block_size: [16]}\n"
    assert names_of(text) == ["small[cache.block_size=16]"]


def test_a_variants_value_stands_where_the_matrix_says_it() -> None:
    text = VALID + "matrix:\n  cache.block_size:\n    - 16\n    - 32\n"
    first, second = loads(text, "f.yaml")
    assert first.origin.where("cache.block_size") == "f.yaml:7:7"
    assert second.origin.where("cache.block_size") == "f.yaml:8:7"
    assert second.origin.where("batch.query_lens[1]") == "f.yaml:2:25"


def test_a_sweep_adds_to_the_matrix_and_replaces_a_path_of_it() -> None:
    text = scenario_text(matrix={"cache.block_size": [16, 32]})
    swept = loads(text, sweep={"cache.block_size": [64], "attention.num_splits": ["auto", 4]})
    assert [scenario.name for scenario in swept] == [
        "small[cache.block_size=64,attention.num_splits=auto]",
        "small[cache.block_size=64,attention.num_splits=4]",
    ]


def test_equals_takes_a_whole_name_or_what_stands_in_the_brackets() -> None:
    matrix = {"cache.padding": [-1, 0]}
    for written in ("small[cache.padding=-1]", "[cache.padding=-1]", "cache.padding=-1"):
        first, second = loads(scenario_text(matrix=matrix, equals={"variant": written, "within": "bitwise"}))
        assert first.equals is None, "the one that is named is not compared with itself"
        assert second.equals is not None
        assert second.equals.variant == first.name
        assert second.equals.within == "bitwise"


def test_scenarios_travel_to_other_processes() -> None:
    for scenario in loads(scenario_text(matrix={"cache.block_size": [16, 32]})):
        again = pickle.loads(pickle.dumps(scenario))
        assert again == scenario
        assert again.origin.where("cache.block_size") == scenario.origin.where("cache.block_size")
