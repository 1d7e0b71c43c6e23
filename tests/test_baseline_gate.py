"""The benchmark of the gate counts right: what it runs in which order, and when its promise is kept."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).parent.parent / "benchmarks" / "baseline_gate.py"


@pytest.fixture(scope="module")
def gate() -> Any:
    spec = importlib.util.spec_from_file_location("baseline_gate", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def run(gate: Any, *, slowed: bool, code: int) -> Any:
    change = {0: "unchanged", 4: "slower"}.get(code, "")
    return gate.Run(slowed, code, change, "", 100.0, 1.0, 0.99, 1.01, 8.0)


def test_slowed_runs_are_spread_among_the_others(gate: Any) -> None:
    order = gate.in_turn(20, 5)
    assert (len(order), sum(order)) == (25, 5)
    assert [order[start : start + 5].count(True) for start in range(0, 25, 5)] == [1] * 5
    assert gate.in_turn(3, 0) == [False] * 3


def test_a_false_alarm_breaks_the_promise_and_a_miss_only_on_a_gpu(gate: Any) -> None:
    good = [run(gate, slowed=False, code=0)] * 20 + [run(gate, slowed=True, code=4)] * 5
    assert gate.Summary.of(good).kept("cuda")
    missed = gate.Summary.of([*good, run(gate, slowed=True, code=0)])
    assert (missed.kept("cuda"), missed.kept("cpu")) == (False, True)
    assert not gate.Summary.of([*good, run(gate, slowed=False, code=4)]).kept("cpu")
    assert not gate.Summary.of([*good, run(gate, slowed=False, code=5)]).kept("cpu")


def test_the_summary_counts_each_kind(gate: Any) -> None:
    runs = [run(gate, slowed=False, code=c) for c in (0, 0, 4)] + [run(gate, slowed=True, code=c) for c in (4, 0)]
    said = "1 false alarms in 3 runs of identical code (0 ambiguous); a kernel slower by 5% found in 1 of 2 runs"
    assert gate.Summary.of(runs).line(1.05) == said
