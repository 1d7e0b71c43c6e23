"""Known kernels in, right quantities out: on a simulated device, where host and device time run apart."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

from pagedbench.errors import UsageError
from pagedbench.timing.fake import FakeClock, FakeDevice, FakeStage
from pagedbench.timing.measure import Subject, measure
from pagedbench.timing.measurement import Measurement
from pagedbench.timing.options import TimingOptions
from pagedbench.timing.roofline import Peaks, Work
from pagedbench.timing.throttle import ChipState

US = 1e3


def constant(ns: float):
    return lambda: ns


def timed(stages, device, *, clock=None, **known) -> Measurement:
    options = known.pop("options", TimingOptions())
    governor = known.pop("governor", None)
    clock = clock or FakeClock(device)
    return measure(stages, device="fake", options=options, clock=clock, governor=governor, subject=Subject(**known))


def test_a_quick_kernel_behind_a_slow_launch_is_told_from_it():
    """The host takes 50 us to start a kernel of 4: whoever times the loop reads 50."""
    device = FakeDevice()
    found = timed([FakeStage("attention", device, constant(4 * US), host_ns=50 * US)], device)
    assert found.kernel.median == 4 * US
    assert found.graph.median == 4 * US
    assert found.call.median == 50 * US
    assert found.total.median == 54 * US
    assert found.launch_bound


def test_a_long_kernel_is_not_launch_bound():
    device = FakeDevice()
    found = timed([FakeStage("attention", device, constant(400 * US), host_ns=50 * US)], device)
    assert not found.launch_bound


def test_the_median_of_a_skewed_distribution_lies_in_its_interval():
    rng, device = np.random.default_rng(0), FakeDevice()
    found = timed([FakeStage("attention", device, lambda: 100 * US * rng.lognormal(0, 0.05))], device)
    assert found.kernel.low <= 100 * US <= found.kernel.high
    assert found.kernel.stop == "precise enough"
    assert found.kernel.half_width <= 0.01


def test_sampling_stops_at_the_limit_when_the_median_stays_unsure_and_warns():
    rng, device = np.random.default_rng(0), FakeDevice()
    options = TimingOptions(max_samples=40)
    found = timed([FakeStage("attention", device, lambda: 100 * US * rng.lognormal(0, 1))], device, options=options)
    assert (found.kernel.stop, len(found.kernel.samples)) == ("sample limit", 40)
    assert any("the median is only known to" in warning for warning in found.warnings)


def test_one_sample_is_said_to_have_no_spread():
    device, options = FakeDevice(), TimingOptions(max_samples=1, min_samples=1)
    found = timed([FakeStage("attention", device, constant(100 * US))], device, options=options)
    assert len(found.kernel.samples) == 1
    assert any("one sample says nothing of its spread" in warning for warning in found.warnings)


def test_a_cell_whose_times_never_settle_ends_within_its_limits():
    """0.1 s of warm-up, 0.5 s of kernel time, an eighth of a second for each other quantity, a batch of overshoot."""
    device, rng = FakeDevice(), np.random.default_rng(5)

    class Restless(FakeStage):
        @property
        def run(self):
            def call():
                device.host += rng.uniform(5, 500) * US
                device.launch(rng.uniform(5, 500) * US)

            return call

    def plan():
        device.host += rng.uniform(5, 500) * US

    options = TimingOptions(max_seconds=0.5, max_samples=100_000, precision=1e-4, quantities=("kernel", "call"))
    found = timed([Restless("attention", device, constant(0))], device, options=options, plan=plan)
    assert {name: q.stop for name, q in found.quantities.items()} == dict.fromkeys(
        ("kernel", "call", "plan"), "time limit"
    )
    assert device.host < 1.0e9


def test_stages_are_apart_with_their_shares():
    device = FakeDevice()
    stages = [
        FakeStage("write", device, constant(10 * US)),
        FakeStage("gather", device, constant(60 * US)),
        FakeStage("attention", device, constant(30 * US)),
    ]
    found = timed(stages, device)
    assert [(s.name, s.median, s.share) for s in found.stages] == [
        ("write", 10 * US, pytest.approx(0.1)),
        ("gather", 60 * US, pytest.approx(0.6)),
        ("attention", 30 * US, pytest.approx(0.3)),
    ]
    assert found.kernel.median == 100 * US


def test_the_cache_is_cold_unless_warm_is_asked_for():
    device = FakeDevice()
    stages = [FakeStage("attention", device, constant(10 * US), cold_ns=3 * US)]
    assert timed(stages, device).kernel.median == 13 * US
    warm = timed(stages, device, options=TimingOptions(cache="warm"))
    assert (warm.kernel.median, warm.cache) == (10 * US, "warm")


def test_planning_is_apart_from_the_call():
    device = FakeDevice()

    def plan() -> None:
        device.host += 270 * US

    found = timed([FakeStage("attention", device, constant(10 * US), host_ns=20 * US)], device, plan=plan)
    assert found.plan.median == 270 * US
    assert found.call.median == 20 * US
    assert found.total.median == 300 * US


def test_calls_that_the_device_waits_for_are_dropped():
    """Held back for 2 ms only, while queueing 16 calls takes 3.2: later calls start as they are launched."""
    device = FakeDevice()
    stages = [FakeStage("attention", device, constant(2 * US), host_ns=200 * US, kernels=2)]
    found = timed(stages, device, clock=FakeClock(device, hold_ns=2e6), options=TimingOptions(max_seconds=0.05))
    assert found.kernel.median == 4 * US
    assert found.kernel.dropped["interrupted by launch gaps"] > 0


def test_a_graph_that_cannot_be_captured_is_left_out_and_said():
    device = FakeDevice()
    found = timed([FakeStage("attention", device, constant(US))], device, clock=FakeClock(device, graphs=False))
    assert found.graph is None
    assert any("cannot be captured" in note for note in found.notes)


def test_throttled_samples_are_dropped_from_device_times():
    device = FakeDevice()

    class Governor:
        calls = 0

        def state(self) -> ChipState:
            self.calls += 1
            return ChipState(("power cap",) if self.calls <= 2 else (), 1500 if self.calls <= 2 else 1980)

    found = timed([FakeStage("attention", device, constant(10 * US))], device, governor=Governor())
    assert found.kernel.dropped == {"throttled (power cap)": 16}
    assert found.placed == "SM clock 1500 to 1980 MHz"
    assert found.sm_mhz == 1980


def test_outliers_are_warned_about_with_a_hint():
    device, turn = FakeDevice(), itertools.count()
    stage = FakeStage("attention", device, lambda: 100 * US if next(turn) % 10 else 900 * US)
    assert any("outliers; something else may be using the machine" in w for w in timed([stage], device).warnings)


def test_calls_that_start_different_numbers_of_kernels_are_noted():
    device, turn = FakeDevice(), itertools.count()

    class Odd(FakeStage):
        @property
        def run(self):
            return lambda: [device.launch(10.0) for _ in range(1 + (next(turn) % 3 == 0))]

    found = timed([Odd("attention", device, constant(0))], device)
    assert any(note.startswith("the calls did not all start the same number of kernels") for note in found.notes)


class TestValidity:
    PEAKS = Peaks("fake", read=4e12, copy=4e12, flops={"bfloat16": 8e14}, l2_bytes=60_000_000)

    def test_wrong_results_after_timing_make_the_times_invalid(self):
        device = FakeDevice()
        calls = []

        def verify() -> str:
            calls.append(device.launches[-1])
            return "sequence 2 is wrong"

        found = timed([FakeStage("attention", device, constant(US))], device, verify=verify)
        assert found.invalid == "wrong after timing: sequence 2 is wrong"
        assert calls == [device.launches[-1]]  # looked at once, after the last call

    @pytest.mark.parametrize(("us", "valid"), [(100.0, True), (98.0, True), (96.0, False)])
    def test_a_cold_time_that_beats_the_measured_peak_by_more_than_three_percent_is_invalid(self, us, valid):
        device = FakeDevice()
        work = Work(bytes=400_000_000, flops=1)  # 100 us at 4 TB/s
        found = timed([FakeStage("attention", device, constant(us * US))], device, work=work, peaks=self.PEAKS)
        assert (found.invalid is None) == valid

    @pytest.mark.parametrize(("us", "valid"), [(91.0, True), (80.0, False)])
    def test_the_peak_is_measured_again_before_a_time_is_called_impossible(self, us, valid):
        device = FakeDevice()
        better = replace(self.PEAKS, read=4.4e12)
        found = timed(
            [FakeStage("attention", device, constant(us * US))],
            device,
            work=Work(bytes=400_000_000, flops=1),
            peaks=self.PEAKS,
            peaks_again=lambda: better,
        )
        assert (found.invalid is None) == valid
        assert found.roofline.peak_gb_s == 4400
        assert found.roofline.share == pytest.approx(400_000_000 / (us * US) / 4400)

    def test_a_working_set_that_the_cache_holds_may_be_faster(self):
        device = FakeDevice()
        work = Work(bytes=40_000_000, flops=1)
        found = timed([FakeStage("attention", device, constant(US))], device, work=work, peaks=self.PEAKS)
        assert found.invalid is None

    def test_a_warm_time_may_be_faster(self):
        device = FakeDevice()
        found = timed(
            [FakeStage("attention", device, constant(US))],
            device,
            work=Work(bytes=400_000_000, flops=1),
            peaks=self.PEAKS,
            options=TimingOptions(cache="warm"),
        )
        assert found.invalid is None


def test_a_measurement_survives_json():
    device = FakeDevice()
    found = timed(
        [FakeStage("attention", device, constant(100 * US))],
        device,
        work=Work(4_000_000, 10_000_000),
        peaks=TestValidity.PEAKS,
    )
    assert Measurement.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    assert found.roofline.gb_s == pytest.approx(40)
    assert found.kernel.samples == (100 * US,) * len(found.kernel.samples)


@pytest.mark.parametrize(
    "wrong", [{"precision": 0}, {"confidence": 1.0}, {"min_samples": 9, "max_samples": 8}, {"quantities": ("wall",)}]
)
def test_options_that_make_no_sense_are_refused(wrong):
    with pytest.raises(UsageError):
        TimingOptions(**wrong)
