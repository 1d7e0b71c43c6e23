"""What jobs on one scenario share: made once, never handed on past a wrong kernel, and let go with the scenario."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pagedbench.backends.registry import find_backend
from pagedbench.runner import cell
from pagedbench.runner.cell import judge
from pagedbench.runner.common import Common
from pagedbench.runner.protocol import Job
from pagedbench.scenario.loader import loads
from pagedbench.scenario.model import Scenario
from pagedbench.words import AttnPath, Verdict

from .conftest import KERNELS, SCENARIO


@pytest.fixture(autouse=True)
def unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is the tests' own: its address space must not be limited."""
    monkeypatch.setattr(cell, "limit_address_space", lambda need, threads: need)


def scenario(name: str = "small") -> Scenario:
    return loads(SCENARIO.format(name=name))[0]


def judged(common: Common, backend: str = "torch", path: str = "decode", name: str = "small") -> Verdict:
    job = Job(scenario(name), backend, path, "cpu", "run", diagnose=False)
    return judge(job, lambda event, **values: None, common=common).record.verdict


def inputs_of(common: Common, name: str = "small") -> object:
    context = common.context(scenario(name), find_backend("torch"), AttnPath.DECODE, "cpu")
    return context.__dict__.get("inputs")


def test_the_second_path_of_a_scenario_takes_the_inputs_and_the_reference_of_the_first():
    common = Common()
    assert judged(common, path="varlen") is Verdict.PASS
    kept = inputs_of(common)
    assert kept is not None
    assert judged(common, path="decode") is Verdict.PASS
    assert inputs_of(common) is kept


def test_another_scenario_starts_afresh():
    common = Common()
    judged(common)
    assert inputs_of(common, "other") is None
    assert common.held_bytes("cpu") == 0


def test_nothing_that_a_wrong_kernel_may_have_touched_is_handed_on():
    common = Common()
    judged(common)
    assert judged(common, f"{KERNELS}:wrong_decode") is Verdict.MISMATCH
    assert inputs_of(common) is None


def test_a_second_cell_is_not_told_that_the_memory_of_the_kept_inputs_is_taken():
    """bf16 queries, keys and values of the scenario's own shapes, counted by hand from its layout."""
    common = Common()
    judged(common)
    one, layout = common.known(scenario())
    a = one.attention
    values = layout.total_q * a.num_heads * a.head_dim
    values += layout.total_k * a.num_kv_heads * (a.head_dim + a.head_dim_v)
    assert common.held_bytes("cpu") == 2 * values
    assert common.held_bytes("cuda") == 0


def test_jobs_on_equal_scenarios_share_one_scenario_and_layout():
    """Each job comes with a copy of its own."""
    common = Common()
    one, layout = common.known(scenario())
    again, same = common.known(scenario())
    assert again is one
    assert same is layout
    other, _ = common.known(replace(scenario(), name="other"))
    assert other is not one


def test_paths_of_a_backend_share_its_plans_and_another_backend_has_its_own():
    common, torch_backend = Common(), find_backend("torch")
    judged(common, path="decode")
    plans = common.context(scenario(), torch_backend, AttnPath.PAGED_VARLEN, "cpu").plans
    assert plans
    judged(common, path="paged-varlen")
    assert common.context(scenario(), torch_backend, AttnPath.DECODE, "cpu").plans is plans
    assert not common.context(scenario(), find_backend(f"{KERNELS}:good_decode"), AttnPath.DECODE, "cpu").plans


def test_plans_are_let_go_after_a_wrong_kernel():
    common = Common()
    judged(common)
    common.forget_values()
    assert not common.context(scenario(), find_backend("torch"), AttnPath.DECODE, "cpu").plans
