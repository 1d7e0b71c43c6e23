"""The place of a time under the limits, counted by hand."""

from __future__ import annotations

import pytest

from pagedbench.timing.roofline import Peaks, Work, impossible, judge, measure_peaks

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
