"""What stands where nobody looks, beside what the backend declares of NaN there."""

from __future__ import annotations

import pytest
import torch

from pagedbench.backends.base import Traits
from pagedbench.checks.accuracy import Accuracy
from pagedbench.checks.leaks import Leaks
from pagedbench.checks.poison import declared_leaks, poison_for
from pagedbench.checks.registry import CHECKS
from pagedbench.faults.catalogue import find_fault
from pagedbench.faults.kernel import FaultyBackend
from pagedbench.layout.regions import Region
from pagedbench.scenario.model import Poison
from pagedbench.words import Verdict
from tests.checks.kernels import context
from tests.tensors.cells import docs_decode


def leaking_tail(**traits: object) -> FaultyBackend:
    """Multiplies NaN behind the last key by a weight of zero."""
    made = FaultyBackend(find_fault("tail-leaks"))
    made.traits = Traits(out=True, **traits)  # type: ignore[arg-type]
    return made


def test_a_region_may_be_named_for_both_or_for_one() -> None:
    traits = Traits(nan_regions={"tail.v": "may-leak", "hidden": "may-leak", "free": "clean"})
    assert declared_leaks(traits) == {(Region.TAIL, "V"), (Region.HIDDEN, "K"), (Region.HIDDEN, "V")}


@pytest.mark.parametrize("kind", ["nan", "inf"])
def test_where_a_leak_is_declared_an_ordinary_call_is_finite(kind: Poison) -> None:
    fill = poison_for(Traits(nan_regions={"tail.v": "may-leak"}), kind)
    assert fill.v[Region.TAIL] == "large"
    others = {**fill.k, **fill.v, Region.TAIL: fill.k[Region.TAIL]}
    assert all(value == "large" for region, value in others.items() if region is Region.HIDDEN)
    assert all(value != "large" for region, value in others.items() if region is not Region.HIDDEN)


@pytest.mark.parametrize("kind", ["none", "large"])
def test_finite_poison_is_the_same_for_all(kind: Poison) -> None:
    declared = poison_for(Traits(nan_regions={"tail.v": "may-leak", "hidden": "may-leak"}), kind)
    assert declared.k == declared.v == poison_for(Traits(), kind).k


def test_a_declared_leak_leaves_the_other_checks_to_judge_numbers() -> None:
    cell = context(docs_decode(), leaking_tail(nan_regions={"tail.v": "may-leak"}))
    assert Accuracy().run(cell).verdict is Verdict.PASS
    for name in ("cache-update", "unwritten"):
        assert CHECKS[name].run(cell).verdict is Verdict.PASS
    leaks = Leaks().run(cell)
    assert leaks.verdict is Verdict.PASS
    assert leaks.warnings == ("NaN in V of the rest of a partly used block leaks, as the backend declares",)


def test_one_that_is_not_declared_shows_in_the_numbers() -> None:
    assert Accuracy().run(context(docs_decode(), leaking_tail())).verdict is Verdict.NON_FINITE


def test_a_path_with_other_leaks_does_not_begin_with_this_ones_memory() -> None:
    this = context(docs_decode(), leaking_tail(nan_regions={"tail.v": "may-leak"}))
    other = context(docs_decode(), leaking_tail())
    assert this.prepare().pool.v.isfinite().sum() > other.prepare().pool.v.isfinite().sum()
    other = context(docs_decode(), leaking_tail())
    other.__dict__["_image"] = this._image
    fresh = context(docs_decode(), leaking_tail()).prepare().pool.v
    assert torch.equal(other.prepare().pool.v.isnan(), fresh.isnan())
