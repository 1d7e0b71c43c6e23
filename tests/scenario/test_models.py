"""The model table and tensor parallelism, against published configurations."""

from __future__ import annotations

import pytest

from pagedbench.errors import ScenarioError
from pagedbench.scenario.loader import loads
from pagedbench.scenario.model import Attention
from pagedbench.scenario.models import MODELS
from pagedbench.scenario.resolve_attention import standard_alibi_slopes
from tests.scenario.files import scenario_text


def attention_of(**fields: object) -> Attention:
    (scenario,) = loads(scenario_text(attention=fields))
    return scenario.attention


@pytest.mark.parametrize("name", MODELS)
def test_every_model_can_be_asked_for(name: str) -> None:
    attention = attention_of(model=name)
    assert attention.model == name
    assert attention.num_heads % attention.num_kv_heads == 0


def test_a_model_fills_heads_and_head_dim() -> None:
    attention = attention_of(model="llama-3.1-8b")
    assert (attention.num_heads, attention.num_kv_heads, attention.head_dim) == (32, 8, 128)


def test_a_field_beside_the_model_wins() -> None:
    attention = attention_of(model="llama-3.1-8b", num_kv_heads=4, head_dim=64)
    assert (attention.num_heads, attention.num_kv_heads, attention.head_dim) == (32, 4, 64)


@pytest.mark.parametrize(
    ("model", "ranks", "heads"),
    [
        ("llama-3.1-8b", 2, (16, 4)),
        ("llama-3.1-70b", 8, (8, 1)),
        ("llama-3.1-405b", 16, (8, 1)),  # 8 KV heads on 16 ranks: each has a copy of one
        ("qwen2.5-7b", 4, (7, 1)),
    ],
)
def test_tensor_parallel_divides_heads_and_replicates_kv_heads(model: str, ranks: int, heads: tuple[int, int]) -> None:
    attention = attention_of(model=model, tensor_parallel=ranks)
    assert (attention.num_heads, attention.num_kv_heads) == heads


@pytest.mark.parametrize(("model", "ranks"), [("falcon-7b", 2), ("llama-3.1-8b", 3), ("phi-4", 4)])
def test_heads_that_do_not_divide_are_refused(model: str, ranks: int) -> None:
    with pytest.raises(ScenarioError, match=f"attention.tensor_parallel: found {ranks}, needed a divisor"):
        attention_of(model=model, tensor_parallel=ranks)


def test_what_all_layers_of_a_model_share_comes_with_it() -> None:
    assert attention_of(model="mistral-7b-v0.1").window_size == (4095, 0)
    assert attention_of(model="gemma-2-9b").softcap == 50.0
    assert attention_of(model="gemma-2-27b").softmax_scale == pytest.approx(1 / 12)  # query_pre_attn_scalar 144
    assert attention_of(model="gpt-oss-20b").sinks == (0.0,) * 64
    assert attention_of(model="gpt-oss-20b").window_size == (-1, -1), "only every other layer has the window"


def test_null_takes_a_models_window_or_softcap_away() -> None:
    assert attention_of(model="mistral-7b-v0.1", window=None).window_size == (-1, -1)
    assert attention_of(model="gemma-2-9b", softcap=None).softcap is None
    assert attention_of(model="gpt-oss-20b", sinks=None).sinks is None


def test_standard_alibi_slopes_are_those_of_the_paper() -> None:
    assert standard_alibi_slopes(8) == tuple(2.0**-i for i in range(1, 9))
    # 12 heads: the 8 of the row above, then every other one of the row for 16.
    assert standard_alibi_slopes(12)[8:] == pytest.approx([2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5])
