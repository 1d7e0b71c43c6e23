"""A part that hides inside a stage is shown apart: on simulated kernels whose cost with and without it is known."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pagedbench.timing.fake import FakeClock, FakeDevice, FakeStage
from pagedbench.timing.interleave import Side, interleave
from pagedbench.timing.measure import Subject, measure
from pagedbench.timing.measurement import Measurement
from pagedbench.timing.options import TimingOptions
from pagedbench.timing.parts import Part, affordable_pairs

US = 1e3


def call(device: FakeDevice, us: float, spread: float = 0.0, seed: int = 0) -> list[FakeStage]:
    rng = np.random.default_rng(seed)
    return [FakeStage("attention", device, lambda: us * US * rng.lognormal(0, spread))]


def measured(whole: float, without: float, spread: float = 0.0) -> Measurement:
    device = FakeDevice()
    part = Part("append", "attention", call(device, without, spread, seed=1))
    return measure(call(device, whole, spread), device="fake", clock=FakeClock(device), subject=Subject(part=part))


def test_a_kernel_that_appends_for_2_of_its_10_us_has_an_append_of_a_fifth():
    found = measured(10, 8)
    assert [(s.name, s.median, pytest.approx(s.share)) for s in found.stages] == [
        ("append", 2 * US, 0.2),
        ("attention", 8 * US, 0.8),
    ]
    assert found.kernel.median == 10 * US


def test_what_the_difference_is_made_of_is_in_the_record():
    stages = json.loads(json.dumps(measured(10, 8).to_dict()))["stages"]
    assert all(stage["method"].startswith("call less the same call without it") for stage in stages)


def test_noise_around_nothing_is_no_negative_time():
    append, attention = measured(100, 101, spread=0.02).stages
    assert append.median == 0
    assert attention.share == pytest.approx(1)


def test_a_difference_that_noise_drowns_is_not_given_as_a_time():
    """On a busy machine each call takes anything from a third to three times its time: half of it says nothing."""
    found = measured(10, 8, spread=1.0)
    assert [s.name for s in found.stages] == ["attention"]
    assert any(note.startswith("append not timed apart: ") and "too wide" in note for note in found.notes)


def test_other_stages_keep_their_times():
    device = FakeDevice()
    write = FakeStage("write", device, lambda: 5 * US)
    part = Part("append", "attention", [write, *call(device, 8)])
    found = measure([write, *call(device, 10)], device="fake", clock=FakeClock(device), subject=Subject(part=part))
    assert [(s.name, s.median) for s in found.stages] == [("write", 5 * US), ("append", 2 * US), ("attention", 8 * US)]


def test_a_call_that_cannot_do_without_the_part_keeps_its_one_stage_and_a_note_says_why():
    device = FakeDevice()

    def fails() -> float:
        raise TypeError("k_new is None")

    part = Part("append", "attention", [FakeStage("attention", device, fails)])
    found = measure(call(device, 10), device="fake", clock=FakeClock(device), subject=Subject(part=part))
    assert [s.name for s in found.stages] == ["attention"]
    assert "append not timed apart: the call without it raised TypeError: k_new is None" in found.notes
    assert found.kernel.median == 10 * US


def test_sides_of_a_comparison_show_theirs():
    device = FakeDevice()
    part = Part("append", "attention", call(device, 8))
    sides = [Side("appends", call(device, 10), Subject(part=part)), Side("does not", call(device, 8))]
    found = interleave(sides, device="fake", clock=FakeClock(device), options=TimingOptions())
    assert [[s.name for s in side.stages] for side in found.sides] == [["append", "attention"], ["attention"]]
    assert found.sides[0].stages[0].median == 2 * US


@pytest.mark.parametrize(("seconds", "call_ns", "pairs"), [(1, 10e3, 30), (1, 20e6, 6), (0.5, 30e6, 5), (0.1, 1e9, 0)])
def test_slow_calls_are_paired_less_often(seconds, call_ns, pairs):
    """A quarter of the time limit: 0.25 s hold 6 pairs of 40 ms. Five pairs of 2 s do not fit 0.1 s: none at all."""
    assert affordable_pairs(seconds, call_ns) == pairs
