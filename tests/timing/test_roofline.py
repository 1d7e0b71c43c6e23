"""The place of a time under the limits, counted by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from pagedbench.timing.fake import FakeClock, FakeDevice
from pagedbench.timing.roofline import (
    Peaks,
    Work,
    fastest,
    highest,
    impossible,
    judge,
    measure_peaks,
    remeasure_peaks,
    settle,
)
from pagedbench.timing.throttle import ChipState, NoGovernor

PEAKS = Peaks("card", read=4e12, copy=3.9e12, flops={"bfloat16": 800e12}, l2_bytes=60_000_000)


def test_a_memory_bound_call():
    # 2 GB at 4 TB/s are 500 us, 4 GFLOP at 800 TFLOP/s are 5 us; in 625 us that is 80 % of the memory limit.
    found = judge(Work(2_000_000_000, 4_000_000_000), 625_000, PEAKS, "bfloat16")
    assert (found.bound, found.share) == ("memory", pytest.approx(0.8))
    assert found.gb_s == pytest.approx(3200)
    assert found.tflop_s == pytest.approx(6.4)


def test_a_compute_bound_call():
    found = judge(Work(1_000_000, 800_000_000_000), 2_000_000, PEAKS, "bfloat16")
    assert (found.bound, found.share) == ("compute", pytest.approx(0.5))
    assert found.tflop_s == pytest.approx(400)


def test_no_place_without_a_time_or_a_peak():
    assert judge(Work(1, 1), 0, PEAKS, "bfloat16") is None
    assert judge(Work(1, 1), 5, PEAKS, "float8_e4m3fn") is None


def test_an_impossible_time_is_explained():
    assert impossible(Work(400_000_000, 1), 97_200, PEAKS) is None  # 2.9 % over the peak
    said = impossible(Work(400_000_000, 1), 50_000, PEAKS)
    assert said.startswith("400,000,000 bytes in 50.0 us is 8,000 GB/s, over the 4,000 GB/s")


def test_peaks_of_this_machine_are_plausible_and_measured_once():
    found = measure_peaks("cpu", "float32")
    assert 1e8 < found.read < 1e13
    assert 1e8 < found.flops["float32"] < 1e15
    assert measure_peaks("cpu", "float32") is found


def test_a_dtype_without_a_product_is_left_out():
    assert measure_peaks("cpu", "no_such_dtype").flops == {}


def test_peaks_measured_again_are_never_lower_and_are_remembered():
    first = measure_peaks("cpu", "float32")
    again = remeasure_peaks("cpu", "float32")
    assert again.read >= first.read
    assert again.copy >= first.copy
    assert again.flops["float32"] >= first.flops["float32"]
    assert measure_peaks("cpu", "float32") is again


def test_the_higher_of_each_rate_counts():
    other = Peaks("card", read=3e12, copy=5e12, flops={"float16": 700e12}, l2_bytes=60_000_000)
    found = highest(PEAKS, other)
    assert (found.read, found.copy) == (4e12, 5e12)
    assert found.flops == {"bfloat16": 800e12, "float16": 700e12}


@pytest.mark.parametrize(
    ("ns", "true_peak", "measured_again", "valid"),
    [
        (99_000, 4.0e12, 0, True),  # 4,040 GB/s, 101 % of the peak: shown as such, nobody doubts it
        (91_000, 4.4e12, 1, True),  # 4,396 GB/s on a card first measured in a bad moment
        (91_000, 4.1e12, 1, False),  # 7 % over what it reaches at best
        (50_000, 4.0e12, 1, False),
    ],
)
def test_a_time_that_beats_the_peak_is_doubted_only_after_the_peak_was_measured_again(
    ns: float, true_peak: float, measured_again: int, valid: bool
):
    asked = []

    def again() -> Peaks:
        asked.append(1)
        return Peaks("card", read=true_peak, copy=3.9e12, flops=PEAKS.flops, l2_bytes=PEAKS.l2_bytes)

    peaks, reason = settle(Work(400_000_000, 1), ns, PEAKS, again)
    assert (len(asked), reason is None) == (measured_again, valid)
    assert peaks.read == (true_peak if measured_again else PEAKS.read)


class Scripted:
    """Batches of run times in turn, the last one for ever, and for each whether the chip was throttled meanwhile."""

    def __init__(self, clock: FakeClock, *batches: tuple[Sequence[float], bool]) -> None:
        self.clock, self.batches, self.drawn = clock, list(batches), 0

    @property
    def _now(self) -> tuple[Sequence[float], bool]:
        return self.batches[min(self.drawn, len(self.batches) - 1)]

    def state(self) -> ChipState:
        return ChipState(("power cap",) if self._now[1] else ())

    def draw(self) -> Sequence[float]:
        times = self._now[0]
        self.clock.rest(1e6)
        self.drawn += 1
        return times


def best_of(*batches: tuple[Sequence[float], bool], governed: bool = True) -> tuple[float, float]:
    """The time found, and the ms that it took."""
    clock = FakeClock(FakeDevice())
    script = Scripted(clock, *batches)
    draw: Callable[[], Sequence[float]] = script.draw
    found = fastest(draw, host=clock, governor=script if governed else NoGovernor(), most_ns=60e6)
    return found, clock.now() / 1e6


def test_the_best_run_counts_until_nothing_better_comes():
    # Better in each of four batches, then three without: seven in all.
    assert best_of(([9, 8], False), ([7], False), ([6], False), ([5, 9], False)) == (5, 7)


def test_a_rate_that_keeps_getting_better_is_given_up_at_the_limit():
    assert best_of(*(([1000.0 - 2 * i], False) for i in range(200)))[1] == 60


def test_throttled_runs_do_not_count():
    assert best_of(([7], True), ([7], True), ([5], False), ([4], False))[0] == 4


def test_a_chip_that_is_throttled_throughout_gives_what_it_gives():
    found, ms = best_of(([7, 6.5], True))
    assert found == 6.5
    assert ms <= 60 + 6


def test_a_chip_whose_state_nobody_knows_is_measured_all_the_same():
    assert best_of(([7], False), ([6], False), governed=False)[0] == 6
