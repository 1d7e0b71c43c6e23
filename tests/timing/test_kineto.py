"""From a trace to the times of calls: traces written by hand, times counted by hand."""

from __future__ import annotations

import pytest

from pagedbench.timing.clock import CannotMeasure
from pagedbench.timing.kineto import IGNORED, Event, call_times, range_name


def mark(call: int, stage: int, start: int, end: int) -> Event:
    return Event(range_name(call, stage), False, start, end - start, 7)


def launch(at: int, correlation: int, name: str = "cudaLaunchKernel") -> Event:
    return Event(name, False, at, 2, correlation)


def kernel(start: int, end: int, correlation: int, name: str = "attention_kernel") -> Event:
    return Event(name, True, start, end - start, correlation)


def test_a_call_spans_from_its_first_kernel_to_its_last_and_stages_are_apart():
    trace = [
        mark(0, 0, 10, 20), launch(12, 1), kernel(1000, 1100, 1, "write"),
        mark(0, 1, 20, 40), launch(22, 2), launch(30, 3), kernel(1105, 1205, 2), kernel(1210, 1250, 3),
    ]  # fmt: skip
    (call,) = call_times(trace, [["write", "attention"]])
    assert call.span == 250
    assert call.busy == 100 + 100 + 40
    assert call.stages == {"write": 100, "attention": 145}
    assert (call.launched, call.kernels) == (True, 3)


def test_overlapping_kernels_are_busy_for_longer_than_they_span():
    trace = [mark(0, 0, 0, 9), launch(1, 1), launch(4, 2), kernel(100, 200, 1), kernel(150, 250, 2)]
    (call,) = call_times(trace, [["attention"]])
    assert (call.span, call.busy) == (150, 200)


def test_kernels_between_calls_belong_to_none():
    trace = [
        Event(IGNORED, False, 0, 5, 1), launch(1, 1), kernel(50, 90, 1, "flush"),
        mark(0, 0, 10, 20), launch(11, 2), kernel(100, 110, 2),
    ]  # fmt: skip
    (call,) = call_times(trace, [["attention"]])
    assert (call.span, call.kernels) == (10, 1)


def test_a_call_that_the_device_had_to_wait_for_is_marked():
    waiting = [mark(0, 0, 0, 300), launch(1, 1), launch(250, 2), kernel(100, 110, 1), kernel(260, 270, 2)]
    assert call_times(waiting, [["attention"]])[0].launched is False


def test_one_kernel_has_no_gap_inside_it():
    assert call_times([mark(0, 0, 0, 9), launch(5, 1), kernel(6, 8, 1)], [["attention"]])[0].launched is True


def test_operators_with_the_number_of_a_launch_do_not_confuse_it():
    operator = Event("aten::add", False, 500, 3, 1)  # operators have correlation ids of their own
    trace = [mark(0, 0, 0, 9), launch(5, 1), operator, kernel(20, 30, 1)]
    assert call_times(trace, [["attention"]])[0].span == 10


def test_driver_launches_and_copies_count():
    trace = [
        mark(0, 0, 0, 9), launch(2, 1, "cuLaunchKernelEx"), launch(5, 2, "cudaMemcpyAsync"),
        kernel(20, 30, 1), kernel(30, 45, 2, "Memcpy DtoD"),
    ]  # fmt: skip
    assert call_times(trace, [["attention"]])[0].span == 25


def test_ranges_repeated_on_the_device_are_no_kernels():
    shadow = Event(range_name(0, 0), True, 15, 500, 7)
    trace = [mark(0, 0, 0, 9), launch(5, 1), kernel(20, 30, 1), shadow]
    assert call_times(trace, [["attention"]])[0].span == 10


def test_a_call_without_device_work_took_no_time():
    (call,) = call_times([mark(0, 0, 0, 9)], [["attention"]])
    assert (call.span, call.kernels) == (0, 0)


def test_a_kernel_that_cannot_be_traced_is_an_error_not_a_shorter_time():
    with pytest.raises(CannotMeasure, match="does not say which call started the kernel 'stray'"):
        call_times([mark(0, 0, 0, 9), launch(5, 1), kernel(20, 30, 1), kernel(40, 50, 99, "stray")], [["attention"]])
