"""The limits of a device, measured on it, and how near a time comes to them.

Peaks are read in the same process as the times they judge: reading, copying and a matrix product. No datasheets.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

import torch

from pagedbench.timing.sampling import HostTime
from pagedbench.timing.throttle import Governor, make_governor

BEATS_PEAK = 1.03
"""A cold time that beats the measured peak by more than this is a wrong time."""

MOST_NS = 60e6
"""The most time for one rate; with the warm-up, three rates take less than 0.3 s."""
_READ_BYTES = 4 << 30  # far more than any L2, and long enough (1 ms) for a launch not to matter
_ROW_BYTES = 1 << 16
_AT_ONCE = 3
_PATIENCE = 3  # batches in a row without a better time
_BETTER = 0.001
_WARM_NS = 30e6
_REST_NS = 5e6


@dataclass(frozen=True)
class Work:
    """What a call must do at least, whoever does it: bytes that must move, floating-point operations."""

    bytes: int
    flops: int


@dataclass(frozen=True)
class Peaks:
    """What a device reaches: bytes a second (read alone; copy counts read and written), FLOP a second by dtype."""

    device: str
    read: float
    copy: float
    flops: dict[str, float] = field(default_factory=dict)
    l2_bytes: int = 0

    @property
    def bandwidth(self) -> float:
        """The faster of reading and copying: attention mostly reads."""
        return max(self.read, self.copy)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Roofline:
    """A time against the limits: GB/s and TFLOP/s (decimal) achieved, the limit that binds, the share of it reached."""

    gb_s: float
    tflop_s: float
    bound: Literal["memory", "compute"]
    share: float


def judge(work: Work, ns: float, peaks: Peaks, dtype: str) -> Roofline | None:
    """How near `ns` comes to the limit that binds for `work`; None for no time or an unknown dtype's peak."""
    peak_flops = peaks.flops.get(dtype)
    if ns <= 0 or peak_flops is None:
        return None
    memory_ns = work.bytes / peaks.bandwidth * 1e9
    compute_ns = work.flops / peak_flops * 1e9
    bound: Literal["memory", "compute"] = "memory" if memory_ns >= compute_ns else "compute"
    return Roofline(work.bytes / ns, work.flops / ns / 1e3, bound, max(memory_ns, compute_ns) / ns)


def impossible(work: Work, ns: float, peaks: Peaks) -> str | None:
    """Why a cold time cannot be true: its bytes, more than the L2 holds, moved faster than the device can."""
    if work.bytes <= peaks.l2_bytes or peaks.l2_bytes == 0 or ns <= 0:
        return None
    reached = work.bytes / ns * 1e9
    if reached <= BEATS_PEAK * peaks.bandwidth:
        return None
    return (
        f"{work.bytes:,} bytes in {ns / 1e3:.1f} us is {reached / 1e9:,.0f} GB/s, over the "
        f"{peaks.bandwidth / 1e9:,.0f} GB/s this device was measured to reach: not everything was read"
    )


def settle(
    work: Work | None, ns: float, peaks: Peaks | None, again: Callable[[], Peaks] | None
) -> tuple[Peaks | None, str | None]:
    """The peaks to judge a cold time by, and why it cannot be true by them, or None.

    A time that beats the peaks may also mean that these were measured in a bad moment (a power cap, low clocks): they
    are measured `again` before anybody is accused.
    """
    if work is None or peaks is None:
        return peaks, None
    reason = impossible(work, ns, peaks)
    if reason is None or again is None:
        return peaks, reason
    peaks = again()
    return peaks, impossible(work, ns, peaks)


_measured: dict[tuple[str, str], Peaks] = {}


def measure_peaks(device: str, dtype: str) -> Peaks:
    """A device's limits, measured once a process (at most 0.3 s on a GPU). `dtype` is that of the matrix product.

    A product that the device cannot do in `dtype` (fp8 through plain torch, for one) is left out.
    """
    known = _measured.get((device, dtype))
    return known if known is not None else _remember(device, dtype, _measure(device, dtype))


def remeasure_peaks(device: str, dtype: str) -> Peaks:
    """Measure once more, and from now on take the higher of each two: a limit is what was reached at best."""
    return _remember(device, dtype, highest(measure_peaks(device, dtype), _measure(device, dtype)))


def _remember(device: str, dtype: str, peaks: Peaks) -> Peaks:
    _measured[device, dtype] = peaks
    return peaks


def highest(a: Peaks, b: Peaks) -> Peaks:
    """The higher of each rate."""
    flops = {dtype: max(a.flops.get(dtype, 0.0), b.flops.get(dtype, 0.0)) for dtype in {**a.flops, **b.flops}}
    return replace(a, read=max(a.read, b.read), copy=max(a.copy, b.copy), flops=flops)


def _measure(device: str, dtype: str) -> Peaks:
    cuda = device.startswith("cuda")
    meter = (_CudaMeter if cuda else _HostMeter)(device)
    read, copy = _memory_rates(meter, _buffer(device, _READ_BYTES if cuda else 64 << 20))
    flops = _product_rate(meter, dtype, 8192 if cuda else 768)
    l2 = int(torch.cuda.get_device_properties(device).L2_cache_size) if cuda else 0
    return Peaks(_name(device), read, copy, {} if flops is None else {dtype: flops}, l2)


def _buffer(device: str, most: int) -> torch.Tensor:
    """`most` bytes of fp32 ones, or half of what is free where a large pool leaves less."""
    if device.startswith("cuda"):
        free, _ = torch.cuda.mem_get_info(device)
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        most = min(most, max((free + kept) // 2, 64 << 20))
    return _ones(device, most // _ROW_BYTES * _ROW_BYTES)


def _ones(device: str, size: int) -> torch.Tensor:
    """fp32 ones of `size` bytes; half as many where what is free is not free in one piece."""
    try:
        return torch.ones(size // 4, dtype=torch.float32, device=device)
    except torch.OutOfMemoryError:
        if size <= 64 << 20:
            raise
        return _ones(device, size // 2)


def _memory_rates(meter: _Meter, buffer: torch.Tensor) -> tuple[float, float]:
    """Bytes a second of reading all of `buffer`, by the fastest of three readers, and of copying one half to the
    other."""
    rows = buffer.view(-1, _ROW_BYTES // 4)
    total, sums, ones = buffer.new_empty(()), buffer.new_empty(len(rows)), buffer.new_ones(rows.shape[1])
    readers: tuple[Callable[[], object], ...] = (
        lambda: torch.sum(buffer, dim=0, out=total),
        lambda: torch.sum(rows, dim=1, out=sums),
        lambda: torch.mv(rows, ones, out=sums),
    )
    half = buffer.numel() // 2
    source, target = buffer[:half], buffer[half : 2 * half]
    meter.warm_up(readers[0])
    size = buffer.element_size()
    return (
        buffer.numel() * size / meter.best(readers),
        2 * half * size / meter.best((lambda: target.copy_(source),)),
    )


def _product_rate(meter: _Meter, dtype: str, n: int) -> float | None:
    try:
        left = torch.randn(n, n, device=meter.device).to(getattr(torch, dtype))
        right = torch.randn(n, n, device=meter.device).to(getattr(torch, dtype))
        return 2 * n**3 / meter.best((lambda: torch.mm(left, right),))
    except (RuntimeError, AttributeError, TypeError):
        return None


def fastest(
    draw: Callable[[], Sequence[float]], *, host: HostTime, governor: Governor, most_ns: float = MOST_NS
) -> float:
    """The shortest time that `draw` gives, in its unit: until some batches brought nothing better, or `most_ns`.

    Batches during which the chip was throttled do not count, and it is given a rest; they are used where there are no
    others.
    """
    best = spare = math.inf
    start, unchanged = host.now(), 0
    while unchanged < _PATIENCE and host.now() - start < most_ns:
        before = governor.state()
        found = min(draw())
        after = governor.state()
        if any(state is not None and state.reasons for state in (before, after)):
            spare = min(spare, found)
            host.rest(_REST_NS)
            continue
        unchanged = 0 if found < (1 - _BETTER) * best else unchanged + 1
        best = min(best, found)
    return best if math.isfinite(best) else spare


class _Meter:
    """Times runs on a device, in seconds; the time of day is the host's."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.governor = make_governor(device)

    def now(self) -> int:
        """Host time in ns."""
        return time.perf_counter_ns()

    def rest(self, ns: float) -> None:
        """Do nothing for so long."""
        time.sleep(ns / 1e9)

    def times(self, runs: Sequence[Callable[[], object]]) -> list[float]:
        """Seconds of each of `runs`, one after the other."""
        raise NotImplementedError

    def best(self, runs: Sequence[Callable[[], object]]) -> float:
        """Seconds of the fastest of `runs`, which do the same in different ways."""
        batch = [run for run in runs for _ in range(_AT_ONCE)]
        self.times(runs)  # libraries load their kernels at a first call
        return fastest(lambda: self.times(batch), host=self, governor=self.governor)

    def warm_up(self, run: Callable[[], object]) -> None:
        """Run for a while: the clocks of a chip that was idle climb first."""
        start = self.now()
        while self.now() - start < _WARM_NS:
            self.times([run] * _AT_ONCE)


class _HostMeter(_Meter):
    def times(self, runs: Sequence[Callable[[], object]]) -> list[float]:
        seconds = []
        for run in runs:
            start = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - start)
        return seconds


class _CudaMeter(_Meter):
    """By events, the runs queued one behind the other: the device does not wait for a launch inside one."""

    def times(self, runs: Sequence[Callable[[], object]]) -> list[float]:
        marks = [
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(len(runs) + 1)
        ]
        runs[0]()  # what the others queue behind
        marks[0].record()
        for run, mark in zip(runs, marks[1:], strict=True):
            run()
            mark.record()
        torch.cuda.synchronize(self.device)
        return [float(a.elapsed_time(b)) / 1e3 for a, b in pairwise(marks)]


def _name(device: str) -> str:
    if device.startswith("cuda"):
        return str(torch.cuda.get_device_name(device))
    import platform

    return platform.processor() or platform.machine() or "cpu"
