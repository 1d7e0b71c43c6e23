"""Sides timed in turn on a simulated device: verdicts for known differences, and none for none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pagedbench.timing.fake import FakeClock, FakeDevice, FakeStage
from pagedbench.timing.interleave import Side, calls_at_a_time, interleave
from pagedbench.timing.measure import Subject
from pagedbench.timing.options import TimingOptions
from pagedbench.timing.roofline import Peaks, Work

US = 1e3


def compare(
    *draws: Callable[[FakeDevice], float],
    subjects: dict[int, Subject] | None = None,
    seed: int = 0,
    max_seconds: float = 1.0,
):
    device, known = FakeDevice(), subjects or {}

    def side(index: int, draw: Callable[[FakeDevice], float]) -> Side:
        stage = FakeStage("attention", device, lambda: draw(device))
        return Side(f"side {index}", [stage], known.get(index, Subject()))

    sides = [side(index, draw) for index, draw in enumerate(draws)]
    options = TimingOptions(seed=seed, max_seconds=max_seconds)
    return interleave(sides, device="fake", clock=FakeClock(device), options=options)


def noisy(median: float, seed: int, spread: float = 0.03) -> Callable[[FakeDevice], float]:
    rng = np.random.default_rng(seed)
    return lambda device: median * US * rng.lognormal(0, spread)


def test_a_slower_side_is_called_slower_with_its_ratio():
    found = compare(noisy(300, 1), noisy(100, 2)).pairs[0].comparison
    assert found.verdict == "slower"
    assert found.low < 3 < found.high
    assert found.high / found.low < 1.05


def test_identical_sides_are_not_told_apart():
    verdicts = [compare(noisy(100, 2 * i), noisy(100, 2 * i + 1)).pairs[0].comparison.verdict for i in range(20)]
    assert sum(v != "no difference shown" for v in verdicts) <= 1


def test_a_device_that_slows_down_meanwhile_favours_no_side():
    """Every kernel takes longer than the one before: measured one after the other, B would lose."""

    def drifting(seed: int) -> Callable[[FakeDevice], float]:
        noise = noisy(100, seed, 0.005)
        return lambda device: noise(device) * (1 + len(device.launches) / 500)

    assert compare(drifting(1), drifting(2)).pairs[0].comparison.verdict == "no difference shown"


def test_a_side_that_is_always_second_is_not_favoured_by_what_the_first_leaves_behind():
    """A kernel that follows one of the other side is 4 % faster: in a fixed order only B would profit."""
    device = FakeDevice()
    last: list[str] = [""]

    def stage(name: str) -> FakeStage:
        def draw() -> float:
            profits, last[0] = last[0] not in ("", name), name
            return 100 * US * (0.96 if profits else 1.0)

        return FakeStage("attention", device, draw)

    found = interleave([Side("a", [stage("a")]), Side("b", [stage("b")])], device="fake", clock=FakeClock(device))
    assert found.pairs[0].comparison.verdict == "no difference shown"


def test_three_sides_give_three_pairs():
    found = compare(noisy(100, 1), noisy(200, 2), noisy(400, 3))
    assert [(p.a, p.b, p.comparison.verdict) for p in found.pairs] == [
        (0, 1, "faster"),
        (0, 2, "faster"),
        (1, 2, "faster"),
    ]
    assert [round(m.kernel.median / (100 * US)) for m in found.sides] == [1, 2, 4]


def test_long_calls_are_compared_although_a_short_time_limit_holds_too_few():
    """A pair takes 8.4 ms: the time asked for holds 2 of them, and 15 are taken."""
    found = compare(noisy(6400, 1), noisy(2000, 2), max_seconds=0.01).pairs[0].comparison
    assert (found.pairs, found.verdict) == (15, "slower")
    assert found.low < 3.2 < found.high


def test_calls_of_seconds_keep_to_the_time_limit_and_are_too_few_to_tell():
    found = compare(noisy(2e6, 1), noisy(1e6, 2), max_seconds=0.01).pairs[0].comparison
    assert found.pairs < 11
    assert found.verdict == "too few samples"


def test_a_side_that_is_wrong_after_timing_is_marked_and_in_no_pair():
    wrong = {1: Subject(verify=lambda: "row 3 is wrong")}
    found = compare(noisy(100, 1), noisy(10, 2), noisy(200, 3), subjects=wrong)
    assert found.sides[1].invalid == "wrong after timing: row 3 is wrong"
    assert [(p.a, p.b) for p in found.pairs] == [(0, 2)]


def test_sides_without_device_work_are_no_different():
    assert compare(lambda d: 0.0, lambda d: 0.0).pairs[0].comparison.verdict == "no difference shown"


def test_long_calls_are_started_less_often_to_time_the_host():
    """8 turns of rounds of 10 ms: a quarter of 0.1 s holds not one call a turn, one of 4 s holds 12, of which 10 do."""
    assert calls_at_a_time(0.1, 10e6) == 1
    assert calls_at_a_time(4.0, 10e6) == 10
    assert calls_at_a_time(1.0, 10e6) == 3


def test_sides_that_beat_a_peak_measured_too_low_are_compared():
    peaks = Peaks("fake", read=4.1e12, copy=4e12, flops={"bfloat16": 8e14}, l2_bytes=60_000_000)
    better = replace(peaks, read=4.45e12)
    subject = Subject(work=Work(440_000_000, 1), peaks=peaks, peaks_again=lambda: better)
    found = compare(noisy(100, 1), noisy(100, 2), subjects={0: subject, 1: subject})  # 4,400 GB/s
    assert [side.invalid for side in found.sides] == [None, None]
    assert len(found.pairs) == 1
    assert {side.roofline.peak_gb_s for side in found.sides} == {4450}
