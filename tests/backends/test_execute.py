from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

import pytest
import torch

from pagedbench.backends.base import Output, Traits
from pagedbench.backends.execute import execute, execute_again, stages, tool_writes
from pagedbench.backends.indices import host_arrays
from pagedbench.backends.torch_backend import TorchBackend
from pagedbench.backends.torch_schedule import Schedule
from pagedbench.layout.build import build_layout
from pagedbench.tensors.call import Call
from pagedbench.tensors.inputs import random_inputs
from pagedbench.tensors.prepare import prepare
from pagedbench.words import AttnPath
from tests.checks.kernels import Plain
from tests.tensors.cells import docs_decode, scenario


def call_for(path: AttnPath, *, append: bool = True) -> Call:
    wanted = docs_decode() if append else scenario(append=False)
    layout = build_layout(wanted)
    return prepare(wanted, layout, random_inputs(wanted, layout, "cpu"), path, "cpu").call


APPENDS, DOES_NOT = Traits(appends=True), Traits(appends=False)


@pytest.mark.parametrize(
    ("path", "append", "traits", "names"),
    [
        (AttnPath.VARLEN, True, APPENDS, ["write", "gather", "attention"]),
        (AttnPath.VARLEN, False, APPENDS, ["gather", "attention"]),
        (AttnPath.DECODE, True, APPENDS, ["attention"]),
        (AttnPath.DECODE, True, DOES_NOT, ["write", "attention"]),
        (AttnPath.DECODE, False, DOES_NOT, ["attention"]),
        (AttnPath.PAGED_VARLEN, True, DOES_NOT, ["write", "attention"]),
    ],
)
def test_stages_are_what_the_tool_does_and_what_the_backend_does(
    path: AttnPath, append: bool, traits: Traits, names: list[str]
) -> None:
    backend, call = Plain(traits=traits), call_for(path, append=append)
    assert [stage.name for stage in stages(backend, call, None)] == names
    assert tool_writes(backend, call) is ("write" in names)


def test_varlen_gathers_every_key_the_new_ones_too() -> None:
    call = call_for(AttnPath.VARLEN)
    execute(Plain(), call)
    assert call.k is not None
    assert call.k.shape == (31 + 33 + 71, 2, 16)
    assert torch.equal(call.k[[30, 63, 134]], call.k_new)  # type: ignore[arg-type]
    assert call.k.isfinite().all()


def test_stages_can_be_run_again_and_change_nothing_then() -> None:
    call = call_for(AttnPath.VARLEN)
    steps = stages(Plain(), call, None)
    outputs = []
    for _ in range(2):
        for stage in steps:
            result = stage.run()
        assert result is not None
        outputs.append(result.out.clone())
    assert torch.equal(*outputs)


def test_a_backend_that_returns_nothing_is_told_so() -> None:
    class Silent(Plain):
        def decode(self, call: Call, plan: object) -> Output:
            return None  # type: ignore[return-value]

    with pytest.raises(TypeError, match="plain returned no Output from its decode function"):
        execute(Silent(), call_for(AttnPath.DECODE))


def test_calls_made_again_share_one_plan() -> None:
    plans = []

    class Planned(Plain):
        def plan(self, call: Call) -> None:
            plans.append(call)

    call = call_for(AttnPath.DECODE)
    outputs = [output.out.clone() for output in execute_again(Planned(), call, 3)]
    assert len(outputs) == 3
    assert torch.equal(outputs[0], outputs[2])
    assert len(plans) == 1


def test_calls_of_equal_lengths_share_a_plan_of_torch_and_others_have_their_own() -> None:
    torch_backend, plans = TorchBackend(), dict[Hashable, object]()
    same, again, other = (call_for(AttnPath.DECODE) for _ in range(3))
    other.host = replace(host_arrays(other), cache_seqlens=host_arrays(other).cache_seqlens + 1)
    first = execute(torch_backend, same, plans).out.clone()
    assert torch.equal(execute(torch_backend, again, plans).out, first)
    assert len(plans) == 1
    assert torch_backend.plan_key(other) not in plans
    assert torch_backend.plan_key(call_for(AttnPath.PAGED_VARLEN)) in plans
    assert torch_backend.plan_key(call_for(AttnPath.VARLEN)) not in plans


def test_a_subclass_that_plans_by_itself_shares_none() -> None:
    class Planner(TorchBackend):
        def plan(self, call: Call) -> Schedule:
            return super().plan(call)

    assert Planner().plan_key(call_for(AttnPath.DECODE)) is None
