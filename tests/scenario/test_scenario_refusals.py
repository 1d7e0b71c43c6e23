"""One test a refusal: the field, its exact place, what was found and what is needed."""

from __future__ import annotations

import json

import pytest

from pagedbench.errors import Problem, ScenarioError
from pagedbench.scenario import not_yet
from pagedbench.scenario.loader import loads
from pagedbench.scenario.model import Scenario
from tests.scenario.files import VALID, attention_text, scenario_text


def problems_of(text: str) -> tuple[Problem, ...]:
    with pytest.raises(ScenarioError) as refused:
        loads(text, "f.yaml")
    return refused.value.problems


def column_of(text: str, fragment: str) -> str:
    """`file:line:column` of a fragment that stands once in a text."""
    before = text[: text.index(fragment)]
    return f"f.yaml:{before.count(chr(10)) + 1}:{len(before) - (before.rfind(chr(10)) + 1) + 1}"


BATCH_REFUSALS = [
    ({}, "batch", "no lengths", "query_lens and cached_lens, or spec"),
    ({"query_lens": [1]}, "batch.cached_lens", "nothing", "as many lengths as the other list has"),
    ({"query_lens": [1], "cached_lens": [1, 2]}, "batch.cached_lens", "2 lengths", "1, as many as query_lens has"),
    ({"query_lens": [-1], "cached_lens": [0]}, "batch.query_lens[0]", "-1", "at least 0"),
    ({"query_lens": [1], "cached_lens": [2**31]}, "batch.cached_lens[0]", "2147483648", "at most 2,147,483,647"),
    ({"query_lens": [True], "cached_lens": [0]}, "batch.query_lens[0]", "true", "a whole number"),
    ({"query_lens": 1, "cached_lens": [0]}, "batch.query_lens", "1", "a list"),
    ({"spec": "2x"}, "batch.spec", "'2x'", "groups such as 2q2k_32q1s4k"),
    ({"spec": "q4s3"}, "batch.spec", "q4s3", "at least s4"),
    ({"spec": "1000000000q1"}, "batch.spec", "1,000,000,000 sequences", "at most 1,048,576"),
    ({"spec": "q1", "query_lens": [1]}, "batch.spec", "spec beside lists of lengths", "one of the two forms"),
    ({"spec": "9q64000k"}, "batch", "589,824,000 query tokens in all", "at most 67,108,864"),
    ({"query_lens": [1], "cached_lens": [2**30]}, "batch", "1,073,741,825 keys in all", "at most 134,217,728"),
    (
        {"query_lens": [1], "cached_lens": [0], "padding_rows": 2**30},
        "batch.padding_rows",
        "1,073,741,825 sequences",
        "at most 1,048,576",
    ),
]

CACHE_REFUSALS = [
    ({}, "cache.block_size", "nothing", "a value"),
    ({"block_size": 0}, "cache.block_size", "0", "at least 1"),
    ({"block_size": 16, "num_blocks": -1}, "cache.num_blocks", "-1", "at least 0"),
    ({"block_size": 16, "num_blocks": 2}, "cache.num_blocks", "2", "at least 3 blocks"),
    ({"block_size": 16, "num_blocks": 2**25}, "cache.num_blocks", "33554432", "at most 16,777,216"),
    ({"block_size": 16, "max_blocks_per_seq": 1}, "cache.max_blocks_per_seq", "1 columns", "at least 2"),
    ({"block_size": 16, "placement": "random"}, "cache.placement", "'random'", "one of shuffled, sequential"),
    ({"block_size": 16, "padding": "last"}, "cache.padding", "'last'", "a block id, −1, num_blocks or decoy"),
    ({"block_size": 16, "layout": "dense"}, "cache.layout", "'dense'", "one of contiguous, interleaved-kv"),
    ({"block_size": 16, "layout": {"order": "HDN"}}, "cache.layout.order", "'HDN'", "one of NHD, HND"),
    ({"block_size": 16, "block_table": [[0, 1]]}, "cache.block_table", "1 rows", "2 rows, one a sequence"),
    (
        {"block_size": 16, "block_table": [[0], [1, 2]], "placement": "reversed"},
        "cache.placement",
        "placement beside block_table",
        "one of the two forms",
    ),
    # 2 KV heads of 64 channels: a token takes 128 elements, 16 of them 2,048.
    (
        {"block_size": 16, "layout": {"k_stride": {"block": 2048, "token": 127}}},
        "cache.layout.k_stride.token",
        "127",
        "at least 128, or tokens overlap",
    ),
    (
        {"block_size": 16, "layout": {"v_stride": {"block": 2047, "token": 128}}},
        "cache.layout.v_stride.block",
        "2,047",
        "at least 2,048, or blocks overlap",
    ),
    (
        {"block_size": 16, "layout": {"order": "HND", "k_stride": {"block": 2048, "token": 63}}},
        "cache.layout.k_stride.token",
        "63",
        "at least 64, or tokens overlap",
    ),
    (
        {"block_size": 1, "num_blocks": 2**24, "placement": "high-ids", "max_blocks_per_seq": 2**26},
        "cache.max_blocks_per_seq",
        "67,108,864 columns for 2 sequences",
        "at most 67,108,864 entries in the table",
    ),
]

ATTENTION_REFUSALS = [
    ({"num_heads": 0}, "attention.num_heads", "0", "at least 1"),
    ({"num_heads": 5}, "attention.num_kv_heads", "2", "a divisor of the 5 query heads"),
    ({"head_dim": None}, "attention.head_dim", "nothing", "a number, or model"),
    ({"model": "llama-4-8b"}, "attention.model", "'llama-4-8b'", "a model of the table"),
    ({"tensor_parallel": 2}, "attention.tensor_parallel", "no model", "a model whose heads it divides"),
    ({"dtype": "float8_e4m3fn"}, "attention.dtype", "'float8_e4m3fn'", "one of float16, bfloat16, float32"),
    ({"k_scale": 0.5}, "attention.k_scale", "a scale for bfloat16", "kv_dtype: float8_e4m3fn, which has one"),
    ({"causal": 1}, "attention.causal", "1", "true or false"),
    ({"window": 0}, "attention.window", "0", "at least 1"),
    (
        {"window": 4, "causal": False},
        "attention.window",
        "a window of 4 with causal: false",
        "causal: true, or window_size: [left, right]",
    ),
    ({"window_size": [4]}, "attention.window_size", "1 entries", "at least 2"),
    ({"window_size": [4, -2]}, "attention.window_size[1]", "-2", "at least -1"),
    ({"window_size": [4, 1]}, "attention.window_size", "[4, 1] with causal: true", "0 or −1 on the right"),
    ({"softcap": 0}, "attention.softcap", "0", "more than 0"),
    ({"sinks": [1.0]}, "attention.sinks", "1 numbers", "4, one a query head"),
    ({"sinks": "big"}, "attention.sinks", "'big'", "a number, or one a head"),
    ({"softmax_scale": -1}, "attention.softmax_scale", "-1", "more than 0"),
    ({"num_splits": 0}, "attention.num_splits", "0", "a number from 1 to 4,096, or auto"),
    ({"num_splits": 5000}, "attention.num_splits", "5000", "a number from 1 to 4,096, or auto"),
    ({"num_splits": "most"}, "attention.num_splits", "'most'", "a number from 1 to 4,096, or auto"),
    ({"index_dtype": "int16"}, "attention.index_dtype", "'int16'", "int32, int64, or one for each of"),
]

OTHER_REFUSALS = [
    ("name", "two words", "name", "'two words'", "letters, digits, '.', '_' and '-'"),
    ("about", 3, "about", "3", "text"),
    ("about", "a\x1b[31mred", "about", r"'a\x1b[31mred'", "text without control characters"),
    ("expect", {"x": {"fail": "\x1b]0;owned\x07"}}, "expect.x.fail", r"'\x1b]0;owned\x07'", "a reason, without"),
    ("expect", {"x": {"fail": ""}}, "expect.x.fail", "''", "a reason"),
    ("batch", [1], "batch", "[1]", "a mapping"),
    ("inputs", {"seed": -1}, "inputs.seed", "-1", "at least 0"),
    (
        "inputs",
        {"q": {"distribution": "cauchy"}},
        "inputs.q.distribution",
        "'cauchy'",
        "one of normal, uniform, constant",
    ),
    # bfloat16 goes up to 3.39e38, and a normal number up to 6 deviations.
    (
        "inputs",
        {"k": {"scale": 1e38}},
        "inputs.k.scale",
        "normal numbers up to |offset| + 6 · |scale| = 6e+38",
        "less than 3.3895e+38, the largest bfloat16",
    ),
    (
        "inputs",
        {"q": {"distribution": "constant", "scale": 1, "offset": -4e38}},
        "inputs.q.offset",
        "constant numbers up to |offset| + |scale| = 4e+38",
        "less than 3.3895e+38, the largest bfloat16",
    ),
    ("inputs", {"poison": "zero"}, "inputs.poison", "'zero'", "one of none, nan, inf, large"),
    ("repeats", 0, "repeats", "0", "at least 1"),
    ("graph", {"capture_lens": [1]}, "graph.capture_lens", "1 lengths", "2, one a sequence"),
    # 20 + 1 keys in blocks of 16 have a table of four columns, spare ones included: 64 slots, one for the new token.
    ("graph", {"capture_lens": [1, 64]}, "graph.capture_lens[1]", "64", "at most 63: the table has 4 columns of 16"),
    (
        "override",
        {"block_table": [[1], [1, 2]]},
        "override.block_table",
        "rows of different lengths",
        "rows of one length",
    ),
    ("override", {"cache_seqlens": [1]}, "override.cache_seqlens", "1 numbers", "2, one a sequence"),
    ("override", {"total_seqlens": [1, 2, 3]}, "override.total_seqlens", "3 numbers", "2, one a sequence"),
    ("override", {"cu_seqlens_q": [0, 1]}, "override.cu_seqlens_q", "2 numbers", "3: 0, and one more for each of 2"),
    ("override", {"cu_seqlens_k": []}, "override.cu_seqlens_k", "0 numbers", "3: 0, and one more for each of 2"),
    ("override", {"write_slots": [3]}, "override.write_slots", "1 numbers", "2, one a new token"),
    ("override", {"read_slots": [1, 2]}, "override.read_slots", "2 numbers", "25, one a key"),
    ("override", {"block_table": [[1, 2]]}, "override.block_table", "1 rows", "2, one a sequence"),
    ("override", {"block_table": [[], []]}, "override.block_table", "0 columns", "at least 2: sequence 1 has 21 keys"),
    ("override", {"block_table": [[0], [1]]}, "override.block_table", "1 columns", "at least 2: sequence 1 has 21"),
    # Three blocks and the four that are spare: 112 slots.
    ("override", {"write_slots": [3, 10**5]}, "override.write_slots[1]", "100000", "a slot from 0 to 111, or −1 for"),
    ("override", {"read_slots": [-1] * 25}, "override.read_slots[0]", "-1", "a slot from 0 to 111"),
    (
        "override",
        {"cu_seqlens_q": [0, 2, 1], "oracle": "as-given"},
        "override.cu_seqlens_q[2]",
        "1",
        "at least 2, the one before it",
    ),
    ("override", {"cu_seqlens_k": [1, 2, 3], "oracle": "as-given"}, "override.cu_seqlens_k[0]", "1", "0, where the"),
    (
        "override",
        {"cache_seqlens": [3, -1], "oracle": "as-given"},
        "override.cache_seqlens[1]",
        "-1",
        "a length from 0",
    ),
    ("override", {"oracle": "wrong"}, "override.oracle", "'wrong'", "one of intended, as-given"),
    ("equals", {"variant": "other"}, "equals.variant", "'other'", "a variant of this file"),
    ("expect", {"x": {}}, "expect.x", "no outcome", "exactly one of skip, raises, fail, with the reason"),
    ("expect", {"x": {"skip": "a", "fail": "b"}}, "expect.x", "2 outcomes", "exactly one of skip, raises, fail"),
    ("matrix", 3, "matrix", "3", "a mapping of dotted paths to lists of values"),
    ("matrix", {"inputs.seed": 3}, "matrix.inputs.seed", "3", "a list of at least one value"),
    ("matrix", {"inputs.seed": [1, 1]}, "matrix.inputs.seed[1]", "1 a second time", "each value once"),
    ("matrix", {"name": ["a"]}, "matrix.name", "the path 'name'", "a field of the scenario"),
    ("matrix", {"name.x": ["a"]}, "matrix.name.x", "the path 'name.x'", "a field of the scenario"),
    ("matrix", {"batch.append.x": [1]}, "matrix.batch.append.x", "batch.append: true", "a mapping to set a field in"),
    (
        "matrix",
        {"attention.num_heads": [4, 8], "attention": [{"num_heads": 16, "num_kv_heads": 2, "head_dim": 64}]},
        "matrix.attention.num_heads",
        "attention.num_heads beside attention, which it is a part of: one value would be put over the other",
        "one of the two",
    ),
    (
        "matrix",
        {"cache.layout": ["contiguous"], "cache.layout.k_stride.block": [4096]},
        "matrix.cache.layout.k_stride.block",
        "cache.layout.k_stride.block beside cache.layout, which it is a part of: one value would be put over the other",
        "one of the two",
    ),
    ("matrix", {"inputs.seed": list(range(300))}, "matrix", "300 variants", "at most 256 of this document"),
]


def the_refusal(text: str, field: str) -> Problem:
    return next(problem for problem in problems_of(text) if problem.field == field)


@pytest.mark.parametrize(("fields", "field", "found", "needed"), BATCH_REFUSALS)
def test_batch(fields: dict[str, object], field: str, found: str, needed: str) -> None:
    problem = the_refusal(scenario_text(batch=fields), field)
    assert problem.found == found
    assert problem.needed == needed


@pytest.mark.parametrize(("fields", "field", "found", "needed"), CACHE_REFUSALS)
def test_cache(fields: dict[str, object], field: str, found: str, needed: str) -> None:
    problem = the_refusal(scenario_text(cache=fields), field)
    assert problem.found == found
    assert problem.needed.startswith(needed)


@pytest.mark.parametrize(("fields", "field", "found", "needed"), ATTENTION_REFUSALS)
def test_attention(fields: dict[str, object], field: str, found: str, needed: str) -> None:
    problem = the_refusal(attention_text(**fields), field)
    assert problem.found == found
    assert problem.needed.startswith(needed)


@pytest.mark.parametrize(("section", "value", "field", "found", "needed"), OTHER_REFUSALS)
def test_other_sections(section: str, value: object, field: str, found: str, needed: str) -> None:
    batch = {"query_lens": [1, 1], "cached_lens": [3, 20], "append": True}
    problem = the_refusal(scenario_text(**{"batch": batch, section: value}), field)
    assert problem.found == found
    assert problem.needed.startswith(needed)


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        (VALID.replace("[3, 20]", "[3, x]"), "x]"),
        (VALID.replace("block_size: 16", "block_size: 0"), "0}"),
        (VALID.replace("block_size: 16", "block_size: 16, blocks: 3"), "blocks"),
        (VALID.replace("cache: {block_size: 16}", "cache:\n  num_blocks: 9"), "cache:\n"),
        (VALID.replace("head_dim: 64", "head_dim: 64, sinks: [1, 2, 3]"), "[1, 2, 3]"),
        (VALID + "expect:\n  fa:\n    skip: 3\n", "3\n"),
        (VALID + "matrix:\n  attention.softcap:\n    - 30\n    - -1\n", "-1\n"),
        (VALID + "matrix:\n  cache: [{block_size: 16}]\n  cache.block_size: [16]\n", "cache.block_size: [16]"),
    ],
)
def test_the_place_is_that_of_the_value_or_of_the_key_that_is_unknown(text: str, fragment: str) -> None:
    (problem,) = problems_of(text)
    assert problem.where == column_of(text, fragment)


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("blocksize", "did you mean block_size?"),
        ("page_size", "did you mean block_size?"),
        ("head_dim", "head_dim belongs to attention"),
        ("append", "append belongs to batch"),
        ("zzz", None),
    ],
)
def test_an_unknown_key_has_its_nearest_known_one(key: str, hint: str | None) -> None:
    (problem,) = problems_of(scenario_text(cache={"block_size": 16, key: 1}))
    assert problem.found == "an unknown key"
    assert problem.hint == hint


ALIGNED = "causal is aligned to the bottom right: token i of q sees keys up to k − q + i; top-left is not offered"


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({"causal_alignment": "top-left"}, ALIGNED),
        ({"causal": "top-left"}, ALIGNED),
        ({"causal": "maybe"}, None),
        (
            {"dtype": "float8_e4m3fn"},
            "dtype is that of the output, too: write kv_dtype: float8_e4m3fn, and q_dtype where the queries are fp8",
        ),
        ({"dtype": "bf16"}, "did you mean bfloat16?"),
        ({"window_size": 4}, "window: 4 is the window of so many keys"),
        ({"window_size": -4}, None),
        ({"window": 0}, "leave it out for no window; 1 is the token's own key only"),
        ({"window": -1}, None),
    ],
)
def test_what_was_meant_is_said_where_another_field_says_it(fields: dict[str, object], hint: str | None) -> None:
    (problem,) = problems_of(attention_text(**fields))
    assert problem.hint == hint


def test_lengths_of_keys_are_those_in_the_cache() -> None:
    problem = the_refusal(scenario_text(batch={"query_lens": [1], "k_lens": [3]}), "batch.k_lens")
    assert problem.hint == "did you mean cached_lens?"


@pytest.mark.parametrize("name", ["k_stride", "v_stride"])
def test_a_stride_that_is_a_number_is_told_its_two_parts(name: str) -> None:
    (problem,) = problems_of(scenario_text(cache={"block_size": 16, "layout": {name: 2560}}))
    assert problem.field == f"cache.layout.{name}"
    assert (problem.found, problem.needed) == ("2560", "a mapping")
    assert problem.hint == "name both, in elements: {block: …, token: …}"


@pytest.mark.parametrize(("scale", "fits"), [(10_900, True), (10_920, False)])
def test_numbers_that_overflow_their_dtype_are_refused(scale: float, fits: bool) -> None:
    """fp16 goes up to 65,504: 6 · 10,900 = 65,400 and 6 · 10,920 = 65,520. A uniform number may be 6 times as large."""
    fp16 = attention_text(dtype="float16")
    assert loads(fp16 + f"inputs: {{v: {{distribution: uniform, scale: {6 * 10_900}}}}}\n")
    text = fp16 + f"inputs: {{v: {{scale: {scale}}}}}\n"
    if fits:
        assert loads(text)
        return
    (problem,) = problems_of(text)
    assert problem.where == column_of(text, f"{scale}}}")


def test_fp8_takes_the_nearest_number_that_it_has() -> None:
    assert loads(attention_text(kv_dtype="float8_e4m3fn", k_scale=1e-6) + "inputs: {v: {scale: 1000}}\n")


def test_a_word_for_a_truth_value_teaches() -> None:
    (problem,) = problems_of(VALID.replace("[3, 20]", "[3, 20], append: off"))
    assert problem.hint == "only YAML 1.1 takes 'off' for a truth value: write false"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (VALID.replace("[3, 20]", "[3, 20.0]"), "write 20"),
        (VALID.replace("[3, 20]", "[3, 1e30]"), None),
        (VALID.replace("[3, 20]", "[3, 1e15]"), None),
        (VALID.replace("[3, 20]", "[3, -1.0]"), None),
        (VALID.replace("[3, 20]", "[3, '99_999_999_999']"), None),
        (VALID.replace("block_size: 16", "block_size: 0.0"), None),
        (VALID.replace("block_size: 16", "block_size: 16, max_blocks_per_seq: 1e10"), None),
        (VALID + "inputs: {seed: 1e10}\n", "write 10000000000"),
        (VALID + "override: {max_seqlen_k: 1e18}\n", None),
    ],
)
def test_a_number_is_proposed_only_where_it_would_be_taken(text: str, hint: str | None) -> None:
    (problem,) = problems_of(text)
    assert problem.hint == hint


@pytest.mark.parametrize(
    "override",
    [
        {"cu_seqlens_q": [0, 2, 1]},
        {"cache_seqlens": [-7, 10**6]},
        {"block_table": [[10**6, -5], [7, 7]]},
        {"write_slots": [3, -1]},
        {"cu_seqlens_k": [0, 3, 4], "read_slots": [0, 1, 2, 3]},
        {"max_seqlen_k": -3},
    ],
)
def test_wrong_values_are_what_an_override_is_for(override: dict[str, object]) -> None:
    assert loads(scenario_text(override=override), "f.yaml")


def test_no_words_of_the_libraries_below_get_through() -> None:
    rows = [(BATCH_REFUSALS, "batch"), (CACHE_REFUSALS, "cache")]
    texts = [scenario_text(**{section: row[0]}) for table, section in rows for row in table]
    texts += [attention_text(**row[0]) for row in ATTENTION_REFUSALS]
    messages = "\n".join(str(problem) for text in texts for problem in problems_of(text))
    for word in ("pydantic", "Input should", "http", "validation", "NoneType", "literal"):
        assert word not in messages


def test_nothing_of_a_file_reaches_a_terminal_unescaped() -> None:
    hostile = "\x1b]0;title\x07\n\u202e"
    texts = [attention_text(model=hostile), scenario_text(name=hostile), scenario_text(batch={"spec": hostile})]
    texts += [scenario_text(expect={hostile: {"skip": "x"}}), scenario_text(equals={"variant": hostile})]
    for text in texts:
        assert all(str(problem).isprintable() for problem in problems_of(text))


def test_variants_do_not_repeat_what_is_wrong_with_their_document() -> None:
    text = scenario_text(cache={"block_size": -1}, matrix={"inputs.seed": [1, 2, 3]})
    (problem,) = problems_of(text)
    assert problem.field == "cache.block_size"


def test_two_scenarios_of_one_name_are_refused_with_both_places() -> None:
    (problem,) = problems_of(VALID + "---\n" + VALID)
    assert str(problem) == "f.yaml:6:7: name: found 'small' again (first in f.yaml:1:7), needed a name of its own"


NOT_YET_EXAMPLES: dict[str, dict[str, object]] = {
    "attention.q_dtype": {"attention": {"model": "llama-3.2-1b", "q_dtype": "float8_e4m3fn"}},
    "attention.kv_dtype": {"attention": {"model": "llama-3.2-1b", "kv_dtype": "float8_e4m3fn", "k_scale": 0.5}},
    "attention.alibi": {"attention": {"model": "llama-3.2-1b", "alibi": True}},
    "graph": {"graph": {"capture_lens": [60, 60]}},
    "steps": {"steps": 3},
}


@pytest.mark.parametrize("field", NOT_YET_EXAMPLES)
def test_what_no_kernel_can_do_yet_is_refused_and_never_ignored(field: str) -> None:
    text = scenario_text(**NOT_YET_EXAMPLES[field])
    if field not in not_yet.NOT_YET:
        (scenario,) = loads(text)
        assert scenario != loads(VALID)[0]
        return
    (problem,) = problems_of(text)
    assert problem.field == field
    assert "not yet" in str(problem)


def test_support_for_a_field_is_announced_by_removing_its_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    def wants_repeats(scenario: Scenario) -> str | None:
        return str(scenario.repeats) if scenario.repeats > 1 else None

    text = scenario_text(repeats=5)
    assert loads(text)[0].repeats == 5
    monkeypatch.setitem(not_yet.NOT_YET, "repeats", wants_repeats)
    (problem,) = problems_of(text)
    assert str(problem).startswith("f.yaml:5:10: repeats: found 5, needed a scenario without it")


def test_padding_rows_that_append_need_a_trash_block() -> None:
    batch = {"query_lens": [1], "cached_lens": [3], "padding_rows": 1}
    (problem,) = problems_of(scenario_text(batch=batch))
    assert problem.field == "cache.trash_block"
    assert problem.where == column_of(scenario_text(batch=batch), "cache: ")


def test_steps_need_an_append() -> None:
    text = scenario_text(batch={"query_lens": [1], "cached_lens": [3], "append": False}, steps=2)
    assert the_refusal(text, "steps").found == "2 steps with append: false"


def test_the_number_of_problems_told_is_bounded() -> None:
    assert len(problems_of(VALID.replace("[3, 20]", json.dumps(["x"] * 5000)))) == 50
