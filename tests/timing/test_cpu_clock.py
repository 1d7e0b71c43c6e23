"""The host clock and its care for threads: what holds on any machine, however busy."""

from __future__ import annotations

import os
import sys
import time
from types import SimpleNamespace

import pytest

from pagedbench.errors import UsageError
from pagedbench.timing.clock import CpuClock, make_clock
from pagedbench.timing.host import quiet_host
from pagedbench.timing.measure import measure
from pagedbench.timing.options import TimingOptions, parse_precision, parse_quantities

NAP = SimpleNamespace(name="attention", run=lambda: time.sleep(0.002))
QUICK = TimingOptions(max_seconds=0.05, warmup_seconds=0.0)


def test_on_a_cpu_kernel_and_call_are_the_same_samples():
    found = measure([NAP], device="cpu", options=QUICK)
    assert found.kernel.samples == found.call.samples
    assert found.kernel.median >= 2e6
    assert found.graph is None
    assert not found.launch_bound
    assert found.cache == "warm"


def test_planning_on_a_cpu_is_measured_apart():
    found = measure([NAP], device="cpu", options=QUICK)
    assert found.plan is None
    assert found.total.samples == found.kernel.samples


def test_stages_add_up():
    (call,) = CpuClock().kernel_times([[NAP, NAP]], "warm")
    assert call.span >= 4e6


def test_the_clock_of_a_device_is_chosen_by_its_name():
    assert isinstance(make_clock("cpu"), CpuClock)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pinning is Linux's")
def test_threads_are_where_they_were_after_timing():
    before = os.sched_getaffinity(0)
    with quiet_host() as care:
        assert care.threads >= 1
        assert "pinned" in care.pinning
    assert os.sched_getaffinity(0) == before


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pinning is Linux's")
def test_threads_come_back_when_the_kernel_raises():
    before = os.sched_getaffinity(0)

    def fail() -> None:
        raise RuntimeError("kernel failed")

    with pytest.raises(RuntimeError, match="kernel failed"):
        measure([SimpleNamespace(name="attention", run=fail)], device="cpu", options=QUICK)
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(("text", "value"), [("1%", 0.01), ("0.5 %", 0.005), ("0.02", 0.02)])
def test_precision_is_read_as_people_write_it(text, value):
    assert parse_precision(text) == pytest.approx(value)


def test_quantities_are_named_in_a_list_and_the_kernel_is_always_among_them():
    assert parse_quantities("graph, call") == ("kernel", "graph", "call")
    with pytest.raises(UsageError, match="no quantity is named 'wall'"):
        parse_quantities("wall")
