from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from pagedbench.layout.build import build_layout
from pagedbench.scenario.model import Distribution, Inputs, Scenario
from pagedbench.tensors import inputs as module
from pagedbench.tensors.inputs import LogicalInputs, draw, new_tokens, random_inputs
from tests.tensors.cells import docs_decode, scenario


def made(wanted: Scenario) -> LogicalInputs:
    return random_inputs(wanted, build_layout(wanted), "cpu")


def test_shapes_and_dtypes_are_those_of_the_scenario() -> None:
    inputs = made(scenario((10, 3, 1), (0, 1, 7), heads=(6, 2), head_dim=8, head_dim_v=24, dtype="float16"))
    assert inputs.q.shape == (14, 6, 8)
    assert inputs.k.shape == (22, 2, 8)
    assert inputs.v.shape == (22, 2, 24)
    assert {inputs.q.dtype, inputs.k.dtype, inputs.v.dtype} == {torch.float16}


def test_a_seed_gives_the_same_numbers_each_time_and_another_seed_others() -> None:
    first, again = made(docs_decode()), made(docs_decode())
    other = made(replace(docs_decode(), inputs=Inputs(seed=1)))
    for name in ("q", "k", "v"):
        assert torch.equal(getattr(first, name), getattr(again, name))
        assert not torch.equal(getattr(first, name), getattr(other, name))


def test_keys_do_not_change_when_queries_do() -> None:
    one, three = made(scenario((1,), (40,), append=False)), made(scenario((3,), (40,), append=False))
    assert torch.equal(one.k, three.k)
    assert torch.equal(one.v, three.v)


def test_distributions_have_their_moments() -> None:
    shape = (64, 8, 32)
    normal = draw("q", Distribution("normal", 2.0, 1.0), shape, torch.float32, 0, "cpu")
    uniform = draw("q", Distribution("uniform", 3.0, -1.0), shape, torch.float32, 0, "cpu")
    constant = draw("q", Distribution("constant", 0.5, 1.0), shape, torch.float32, 0, "cpu")
    assert normal.mean() == pytest.approx(1.0, abs=0.1)
    assert normal.std() == pytest.approx(2.0, abs=0.1)
    assert (uniform.min(), uniform.max()) == (pytest.approx(-4.0, abs=0.01), pytest.approx(2.0, abs=0.01))
    assert (constant == 1.5).all()


def test_identical_rows_are_all_the_first_one() -> None:
    inputs = made(replace(scenario((10, 3, 1), (0, 1, 7)), inputs=Inputs(identical_rows=True)))
    assert (inputs.q == inputs.q[:1]).all()
    assert not (inputs.k == inputs.k[:1]).all()


def test_keys_in_one_slot_have_one_value() -> None:
    wanted = scenario((1, 1, 1), (70, 80, 90), cache={"placement": "shared-prefix"})
    layout = build_layout(wanted)
    inputs = random_inputs(wanted, layout, "cpu")
    slots, first = np.unique(layout.read_slots, return_index=True)
    assert len(slots) < layout.total_k, "the scenario shares blocks"
    for slot, index in zip(slots, first, strict=True):
        same = torch.from_numpy(np.flatnonzero(layout.read_slots == slot))
        assert (inputs.k[same] == inputs.k[index]).all()
        assert (inputs.v[same] == inputs.v[index]).all()


def test_new_tokens_are_the_last_keys_of_each_sequence() -> None:
    wanted = scenario((2, 0, 1), (3, 4, 0))
    layout = build_layout(wanted)
    inputs = random_inputs(wanted, layout, "cpu")
    # Keys: sequence 0 has 0..4, sequence 1 has 5..8, sequence 2 has 9.
    k_new, v_new = new_tokens(inputs, layout)
    assert torch.equal(k_new, inputs.k[[3, 4, 9]])
    assert torch.equal(v_new, inputs.v[[3, 4, 9]])


def test_quantised_inputs_hold_the_value_over_its_scale() -> None:
    how = Distribution("constant", 3.0)
    drawn = draw("k", how, (4,), torch.float8_e4m3fn, 0, "cpu", 0.5)
    assert (drawn.float() == 6.0).all()
    # A scale is fp8's alone: other dtypes hold the value itself.
    assert (draw("k", how, (4,), torch.bfloat16, 0, "cpu", 0.5) == 3.0).all()


def test_numbers_do_not_repeat_across_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK", 16)
    drawn = draw("k", Distribution(), (64,), torch.float32, 0, "cpu")
    assert len(drawn.unique()) == 64


@pytest.mark.gpu
def test_small_inputs_are_the_same_on_a_gpu() -> None:
    wanted = docs_decode()
    layout = build_layout(wanted)
    for name in ("q", "k", "v"):
        on_gpu = getattr(random_inputs(wanted, layout, "cuda"), name)
        assert torch.equal(on_gpu.cpu(), getattr(random_inputs(wanted, layout, "cpu"), name))
