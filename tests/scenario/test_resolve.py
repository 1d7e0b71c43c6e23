"""What fields mean: short forms, defaults, and one value for one meaning (DESIGN, sections 2 and 3)."""

from __future__ import annotations

import pytest

from pagedbench.scenario.loader import loads
from pagedbench.scenario.model import Attention, Distribution, PoolLayout, Scenario
from tests.scenario.files import VALID, attention_text, scenario_text


def load_one(text: str) -> Scenario:
    (scenario,) = loads(text)
    return scenario


def attention_of(**fields: object) -> Attention:
    return load_one(attention_text(**fields)).attention


def test_defaults() -> None:
    scenario = load_one(VALID)
    assert scenario.batch.append
    assert scenario.cache.placement == "shuffled"
    assert scenario.cache.padding == -1
    assert scenario.attention.causal
    assert scenario.attention.dtype == scenario.attention.q_dtype == scenario.attention.kv_dtype == "bfloat16"
    assert scenario.attention.head_dim_v == 64
    assert scenario.attention.softmax_scale == 0.125
    assert scenario.attention.window_size == (-1, -1)
    assert (scenario.steps, scenario.repeats, scenario.graph_capture_lens) == (1, 1, None)
    assert scenario.inputs.poison == "nan"
    assert scenario.expect == ()
    assert scenario.origin.where("cache.block_size") == "<string>:3:21"


def test_padding_rows_are_appended_with_one_token_and_no_keys() -> None:
    batch = {"query_lens": [1, 1], "cached_lens": [3, 20], "padding_rows": 2}
    scenario = load_one(scenario_text(batch=batch, cache={"block_size": 16, "trash_block": True}))
    assert scenario.batch.query_lens == (1, 1, 1, 1)
    assert scenario.batch.cached_lens == (3, 20, 0, 0)
    assert scenario.batch.padding_rows == 2


def test_a_batch_of_no_sequences_is_legal() -> None:
    scenario = load_one(scenario_text(batch={"query_lens": [], "cached_lens": []}))
    assert scenario.batch.size == 0


@pytest.mark.parametrize(
    ("fields", "window_size"),
    [
        ({"window": 1}, (0, 0)),
        ({"window": 16}, (15, 0)),
        ({"window_size": [15, 0]}, (15, 0)),
        ({"window_size": [15, -1]}, (15, 0)),
        ({"window_size": [-1, 0]}, (-1, -1)),
        ({"window_size": [-1, -1]}, (-1, -1)),
        ({"window_size": [5, 3], "causal": False}, (5, 3)),
        ({"window_size": [-1, 0], "causal": False}, (-1, 0)),
        ({"window": None}, (-1, -1)),
    ],
)
def test_window_forms_have_one_meaning(fields: dict[str, object], window_size: tuple[int, int]) -> None:
    assert attention_of(**fields).window_size == window_size


def test_sinks_are_one_a_head() -> None:
    assert attention_of(sinks=2).sinks == (2.0, 2.0, 2.0, 2.0)
    assert attention_of(sinks=[0.0, 1.0, 2.0, 3.0]).sinks == (0.0, 1.0, 2.0, 3.0)
    assert attention_of(sinks=None).sinks is None


def test_splits_are_the_librarys_choice_unless_given() -> None:
    assert attention_of().num_splits == 0
    assert attention_of(num_splits="auto").num_splits == 0
    assert attention_of(num_splits=4).num_splits == 4


def test_index_dtype_keeps_only_what_is_not_int32() -> None:
    assert attention_of(index_dtype="int32").index_dtype == {}
    assert attention_of(index_dtype={"block_table": "int64", "cu_seqlens_q": "int32"}).index_dtype == {
        "block_table": "int64"
    }
    assert set(attention_of(index_dtype="int64").index_dtype) == {
        "cu_seqlens_q",
        "cu_seqlens_k",
        "cache_seqlens",
        "total_seqlens",
        "block_table",
    }


@pytest.mark.parametrize(
    ("layout", "resolved"),
    [
        ("contiguous", PoolLayout()),
        ("interleaved-kv", PoolLayout(form="interleaved-kv")),
        ({"order": "HND"}, PoolLayout(order="HND")),
        ({"order": "HND", "form": "layer-strided"}, PoolLayout("HND", "layer-strided")),
        # 2 KV heads of 64 channels: a token has 128 elements, a block of 16 has 2,048.
        ({"k_stride": {"block": 2048, "token": 128}}, PoolLayout("NHD", "strided", (2048, 128), None)),
        ({"order": "HND", "v_stride": {"block": 2048, "token": 64}}, PoolLayout("HND", "strided", None, (2048, 64))),
    ],
)
def test_layout_forms(layout: object, resolved: PoolLayout) -> None:
    assert load_one(scenario_text(cache={"block_size": 16, "layout": layout})).cache.layout == resolved


def test_inputs_apart() -> None:
    inputs = {"seed": 7, "q": {"scale": 8}, "v": {"distribution": "uniform", "offset": 0.5}, "poison": "large"}
    resolved = load_one(scenario_text(inputs=inputs)).inputs
    assert resolved.seed == 7
    assert resolved.q == Distribution("normal", 8.0, 0.0)
    assert resolved.k == Distribution()
    assert resolved.v == Distribution("uniform", 1.0, 0.5)
    assert resolved.poison == "large"


def test_override_keeps_arrays_and_numbers_as_given() -> None:
    override = {"cu_seqlens_q": [0, 5, 14], "max_seqlen_k": 3, "block_table": [[9, 9], [-1, 2]], "oracle": "as-given"}
    resolved = load_one(scenario_text(override=override)).override
    assert resolved.values == {"cu_seqlens_q": (0, 5, 14), "max_seqlen_k": 3, "block_table": ((9, 9), (-1, 2))}
    assert resolved.oracle == "as-given"


def test_expectations_name_backend_or_path() -> None:
    expect = {"flash-attn": {"skip": "block size"}, "mine.py:f:decode": {"fail": "known"}, "x:varlen": {"raises": "so"}}
    resolved = load_one(scenario_text(expect=expect)).expect
    assert [(e.target, e.outcome, e.because) for e in resolved] == [
        ("flash-attn", "skip", "block size"),
        ("mine.py:f:decode", "fail", "known"),
        ("x:varlen", "raises", "so"),
    ]
