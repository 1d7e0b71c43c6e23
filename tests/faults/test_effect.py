"""When a fault is no fault: decided by hand here, by comparing programs there."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from pagedbench.faults.catalogue import find_fault
from pagedbench.faults.effect import Effect, effect
from pagedbench.layout.build import build_layout
from pagedbench.scenario.model import PoolLayout, Scenario
from pagedbench.words import AttnPath
from tests.faults.test_program import program
from tests.tensors.cells import docs_decode, scenario


def effect_of(name: str, wanted: Scenario, path: AttnPath = AttnPath.DECODE) -> Effect:
    right = program(wanted, path)
    return effect(right, find_fault(name).change(right), build_layout(wanted))


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("window-ignored", docs_decode()),
        ("window-one-wide", scenario(attention={"window_size": (99, 0)})),
        ("window-one-narrow", scenario((1,), (9,), attention={"window_size": (10, 0)})),
        ("causal-ignored", docs_decode()),
        ("causal-top-left", scenario((5, 3), (0, 0))),
        ("kv-head-modulo", scenario(heads=(4, 4))),
        ("kv-head-modulo", scenario(heads=(4, 1))),
        ("block-id-16-bits", docs_decode()),
        ("block-tail-dropped", docs_decode()),
        ("block-of-another-sequence", scenario((1,), (40,))),
        ("middle-dropped", docs_decode()),
        ("sink-ignored", docs_decode()),
        ("sink-scaled", scenario(attention={"sinks": (0.0, 0.0, 0.0, 0.0)})),
        ("softcap-before-scale", docs_decode()),
        ("softcap-after-mask", docs_decode()),
        ("sink-of-kv-head", scenario(attention={"sinks": (2.0, 2.0, 2.0, 2.0)})),
        ("k-scale-ignored", docs_decode()),
        ("v-scale-ignored", docs_decode()),
        ("v-scale-of-k", docs_decode()),
        ("v-from-the-k-pool", scenario(head_dim_v=24)),
        ("append-skipped", scenario(append=False)),
        ("longest-length", scenario((1, 1), (7, 7))),
        ("tail-leaks", scenario((1,), (63,))),
        ("k-with-strides-of-v", docs_decode()),
        ("order-assumed", docs_decode()),
        ("int32-overflow", docs_decode()),
        ("empty-rows-untouched", docs_decode()),
        ("lse-finite-for-empty-rows", docs_decode()),
        ("empty-query-reshaped", docs_decode()),
        ("split-lost", scenario((1,), (20,))),
    ],
)
def test_it_cannot_show_here(name: str, wanted: Scenario) -> None:
    uniform = set(wanted.batch.query_lens) == {1}
    assert effect_of(name, wanted, AttnPath.DECODE if uniform else AttnPath.PAGED_VARLEN).none


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("last-key-missed", docs_decode()),
        ("window-one-narrow", scenario((1,), (10,), attention={"window_size": (10, 0)})),
        ("causal-top-left", docs_decode()),
        ("kv-head-modulo", docs_decode()),
        ("v-from-the-k-pool", docs_decode()),
        ("v-channel-wrong", docs_decode()),
        ("softcap-after-mask", scenario(attention={"softcap": 10.0})),
        ("block-tail-dropped", scenario(cache={"block_size": 24})),
        ("tail-leaks", docs_decode()),
        ("order-assumed", scenario(cache={"layout": PoolLayout(order="HND")})),
        ("strides-assumed", scenario(cache={"layout": PoolLayout(form="interleaved-kv")})),
        ("append-past-the-pool", docs_decode()),
    ],
)
def test_it_shows_in_what_is_read_or_written(name: str, wanted: Scenario) -> None:
    assert effect_of(name, wanted).indices


@pytest.mark.parametrize("name", ["scale-1-percent", "channels-dropped", "all-zeros"])
def test_it_shows_in_numbers_only(name: str) -> None:
    found = effect_of(name, docs_decode())
    assert (found.indices, found.numbers) == (False, True)


def test_sinks_by_kv_head_are_the_first_ones() -> None:
    """Four query heads on two KV heads take sinks 0, 0, 1 and 1."""
    changed = find_fault("sink-of-kv-head").change(program(scenario(attention={"sinks": (5.0, 6.0, 7.0, 8.0)})))
    assert changed.sinks is not None
    assert changed.sinks.tolist() == [5.0, 5.0, 6.0, 6.0]


def test_an_address_of_more_than_31_bits_overflows() -> None:
    """A pool of 2³¹ elements does not fit here; a program with such strides does. With 2²⁹ a block, id 4 is too far."""
    right = program(docs_decode())
    far = dataclasses.replace(right, k_strides=(2**29, 32, 16), v_strides=(2**29, 32, 16))
    wrapped = find_fault("int32-overflow").change(far)
    assert wrapped.crash is not None  # block 5 and 6 of the third sequence are beyond 2³¹: negative in 32 bits
    nearer = far.replace(k_slots=far.k_slots % 128, v_slots=far.v_slots % 128)
    assert torch.equal(find_fault("int32-overflow").change(nearer).k_slots, nearer.k_slots)
