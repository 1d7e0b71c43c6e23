"""Images of many variants at once: the memory of each must be that of a call made by itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pagedbench.checks.reorder import chosen, copies
from pagedbench.layout.build import build_layout
from pagedbench.layout.variants import moved, with_padding
from pagedbench.scenario.model import Scenario
from pagedbench.tensors.compose import Variant, compose, is_plain
from pagedbench.tensors.fill import Fill
from pagedbench.tensors.inputs import random_inputs
from pagedbench.tensors.prepare import prepare
from pagedbench.words import AttnPath
from tests.tensors.cells import POOL_LAYOUTS, docs_decode, scenario

NAN = Fill.poison("nan")
PLAIN = {
    "docs": docs_decode(),
    "several query tokens": scenario((3, 1, 2), (5, 0, 40)),
    "nothing appended": scenario((3, 1, 2), (5, 9, 40), append=False),
    "fp8": scenario((1, 1, 1), (5, 9, 40), kv_dtype="float8_e4m3fn"),
    "unequal head dims": scenario((1, 1, 1), (5, 9, 40), head_dim=24, head_dim_v=16),
    "fp32": scenario((1, 1, 1), (5, 9, 40), dtype="float32"),
}


@pytest.mark.parametrize("name", PLAIN)
def test_each_has_the_memory_of_a_call_made_by_itself(name: str) -> None:
    wanted = PLAIN[name]
    layout = build_layout(wanted)
    inputs = random_inputs(wanted, layout, "cpu")
    assert is_plain(wanted, layout, inputs, NAN, "cpu")
    all_tokens, all_keys = np.arange(layout.total_q), np.arange(layout.total_k)
    batches = [chosen(layout, inputs, order) for order in ([1], [2, 1, 0])] + [copies(layout, inputs, 2, 3)]
    tables = [moved(layout, seed=1), with_padding(layout, "decoy")]
    variants = [Variant(table, all_tokens, all_keys) for table in tables]
    variants += [Variant(batch.layout, batch.tokens, batch.keys) for batch in batches]
    images = compose(wanted, inputs, variants, "cpu")
    for variant, image, numbers in zip(variants, images, [inputs, inputs, *(b.inputs for b in batches)], strict=True):
        fresh = prepare(wanted, variant.layout, numbers, AttnPath.VARLEN, "cpu", fill=NAN)
        composed = prepare(wanted, variant.layout, numbers, AttnPath.VARLEN, "cpu", fill=NAN, image=image)
        assert composed.arena.equals(fresh.arena)


def plain(wanted: Scenario, fill: Fill = NAN) -> bool:
    layout = build_layout(wanted)
    return is_plain(wanted, layout, random_inputs(wanted, layout, "cpu"), fill, "cpu")


@pytest.mark.parametrize("name", [name for name in POOL_LAYOUTS if name != "contiguous NHD"])
def test_another_order_or_gaps_in_the_pool_are_not_plain(name: str) -> None:
    wanted = docs_decode(layout=POOL_LAYOUTS[name])
    assert not plain(wanted)


@pytest.mark.parametrize("poison", ["large", "none", "inf"])
def test_what_is_not_the_guard_pattern_is_not_plain(poison: str) -> None:
    assert not plain(docs_decode(), Fill.poison(poison))  # type: ignore[arg-type]


def test_hidden_keys_are_not_plain() -> None:
    wanted = docs_decode()
    windowed = replace(wanted, attention=replace(wanted.attention, window_size=(7, 0)))
    assert not plain(windowed)
