"""The floor: what accuracy cannot see, it must say it cannot."""

from __future__ import annotations

import pytest

from pagedbench.checks.accuracy import Accuracy
from pagedbench.checks.floor import floor
from pagedbench.faults.fault import Fault
from pagedbench.faults.kernel import FaultyBackend
from pagedbench.faults.program import AttentionProgram
from pagedbench.scenario.model import Scenario
from pagedbench.words import Verdict
from tests.checks.kernels import context
from tests.tensors.cells import docs_decode, scenario


def losing(keys: int) -> FaultyBackend:
    def change(program: AttentionProgram) -> AttentionProgram:
        gone = program.position >= (program.facts.total - keys)[:, None]
        return program.replace(weight=program.weight.masked_fill(gone, 0.0))

    return FaultyBackend(Fault("losing", "the last keys are lost", "W", change))


def verdict(wanted: Scenario, keys: int) -> Verdict:
    return Accuracy().run(context(wanted, losing(keys))).verdict


def test_in_the_guides_batch_a_single_key_is_seen() -> None:
    found = floor(context(docs_decode(), FaultyBackend()))
    assert (found.keys_lost, found.keys) == (1, 71)
    assert "1 of 71 keys" in found.sentence


def test_what_is_well_above_the_floor_is_caught_and_what_is_well_below_is_not() -> None:
    wanted = scenario((1,), (20_000,), heads=(1, 1))
    found = floor(context(wanted, FaultyBackend())).keys_lost
    assert found is not None
    assert verdict(wanted, 2 * found) is Verdict.MISMATCH
    if found > 4:
        assert verdict(wanted, found // 4) is Verdict.PASS


def test_the_budget_of_a_row_with_one_key_is_two_ulps() -> None:
    """Its output is its V. The budget allows twice half an ulp for the rounding of P and as much for the output's."""
    found = floor(context(scenario((1,), (0,)), FaultyBackend()))
    assert found.ulps == pytest.approx(2.0, rel=0.01)
