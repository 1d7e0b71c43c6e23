"""Reports about time: a cliff that nobody saw, and clocks that read the host. H14 and H21, on a simulated device."""

from __future__ import annotations

import pytest

from pagedbench.report.crossover import cliffs
from pagedbench.results.comparison import ComparisonRecord, SideRecord
from pagedbench.timing.fake import FakeClock, FakeDevice, FakeStage
from pagedbench.timing.measure import Subject, measure
from pagedbench.timing.measurement import Measurement
from pagedbench.timing.options import TimingOptions
from pagedbench.timing.roofline import Peaks, Work
from pagedbench.words import Verdict

US = 1e3
PEAKS = Peaks("simulated", read=4e12, copy=4e12, flops={"bfloat16": 8e14}, l2_bytes=1 << 20)


def timed(device_us: float, host_us: float = 5, work: Work | None = None) -> Measurement:
    """What the tool reads of a kernel that takes so long on the device, behind a launch that takes so long."""
    device = FakeDevice()
    stage = FakeStage("attention", device, lambda: device_us * US, host_ns=host_us * US)
    subject = Subject(work=work, peaks=PEAKS, dtype="bfloat16")
    return measure([stage], device="fake", options=TimingOptions(), clock=FakeClock(device), subject=subject)


# H14: queries of a few tokens ----------------------------------------------------------------------------------------


def speculative(query_len: int, keys: int, factor: float) -> ComparisonRecord:
    """12 query heads on 2 KV heads of 256 in bf16; a step of more than one token takes `factor` times as long."""
    work = Work(bytes=2 * 2 * 256 * 2 * keys, flops=4 * 256 * 12 * keys * query_len)
    quickest = work.bytes / 4e12 * 1e6 + 5
    measurement = timed(quickest * (factor if query_len > 1 else 1), work=work)
    side = SideRecord("fake", "decode", Verdict.PASS, timing=measurement.to_dict())
    facts = {"query_len": query_len, "keys": keys}
    return ComparisonRecord(
        f"q{query_len}k{keys}", "cuda", facts, [side], work={"bytes": work.bytes, "flops": work.flops}
    )


@pytest.mark.parametrize(("keys", "factor"), [(4_096, 5.4), (32_768, 21), (200_000, 27)])
def test_h14_a_step_that_walks_the_keys_serially_is_called_a_cliff(keys: int, factor: float) -> None:
    """vllm-project/flash-attention #190, #193: KV is split for queries of one token only."""
    (cliff,) = cliffs([speculative(query_len, keys, factor) for query_len in (1, 2, 4, 8)])
    assert (cliff.record.facts["query_len"], cliff.neighbour.facts["query_len"]) == (2, 1)
    assert cliff.sentence().startswith("cliff: fake:decode at query len 2 takes ")


def test_h14_without_the_factor_there_is_none() -> None:
    assert cliffs([speculative(query_len, 32_768, 1.0) for query_len in (1, 2, 4, 8)]) == []


def test_h14_the_effective_bandwidth_shows_it_too() -> None:
    fast, slow = (speculative(q, 200_000, 27).sides[0].measurement for q in (1, 2))
    assert fast is not None
    assert slow is not None
    assert fast.roofline is not None
    assert slow.roofline is not None
    assert fast.roofline.gb_s == pytest.approx(27 * slow.roofline.gb_s)
    assert slow.roofline.share < 0.04 < 0.9 < fast.roofline.share


# H21: a synchronise in every iteration -------------------------------------------------------------------------------


@pytest.mark.parametrize(("device_us", "host_us"), [(4, 51), (9.8, 100), (1, 2)])
def test_h21_a_quick_kernel_behind_a_slow_launch_is_read_right_and_marked(device_us: float, host_us: float) -> None:
    """flashinfer-ai/flashinfer-bench #195: 4 µs reported as 51 µs."""
    found = timed(device_us, host_us)
    assert found.kernel is not None
    assert found.kernel.median == device_us * US
    assert found.call is not None
    assert found.call.median == host_us * US
    assert found.launch_bound


@pytest.mark.parametrize(("device_us", "host_us"), [(538, 51), (100, 99)])
def test_h21_a_long_kernel_is_not_marked(device_us: float, host_us: float) -> None:
    """TristanBilot/mlx-benchmark #21, pytorch/pytorch #177765 are the opposite: a clock that does not wait at all."""
    found = timed(device_us, host_us)
    assert found.kernel is not None
    assert found.kernel.median == device_us * US
    assert not found.launch_bound
