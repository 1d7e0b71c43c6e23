"""The limits of a device, measured on it, and how near a time comes to them.

Peaks are read in the same process as the times they judge: reading, copying and a matrix product. No datasheets.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any, Literal

import torch

BEATS_PEAK = 1.03
"""A cold time that beats the measured peak by more than this is a wrong time."""


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


@lru_cache(maxsize=8)
def measure_peaks(device: str, dtype: str) -> Peaks:
    """Measure a device's limits, once a process (0.1 to 0.5 s). `dtype` is that of the matrix product.

    A product that the device cannot do in `dtype` (fp8 through plain torch, for one) is left out.
    """
    cuda = device.startswith("cuda")
    read, copy = _memory_rates(device, _copy_bytes(device) if cuda else (64 << 20))
    flops = _product_rate(device, dtype, 8192 if cuda else 768)
    l2 = int(torch.cuda.get_device_properties(device).L2_cache_size) if cuda else 0
    return Peaks(_name(device), read, copy, {} if flops is None else {dtype: flops}, l2)


def _copy_bytes(device: str) -> int:
    """2 GiB, or a quarter of what is free where a large pool leaves less: far more than any L2 holds in both cases."""
    free, _ = torch.cuda.mem_get_info(device)
    return min(2 << 30, max(free // 4, 64 << 20) // 4096 * 4096)


def _memory_rates(device: str, size: int) -> tuple[float, float]:
    """Bytes a second of reading and of copying `size` bytes."""
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    total = torch.empty((), dtype=torch.float32, device=device)
    read = size / _best(lambda: torch.sum(source, dim=0, out=total), device)
    return read, 2 * size / _best(lambda: target.copy_(source), device)


def _product_rate(device: str, dtype: str, n: int) -> float | None:
    try:
        left = torch.randn(n, n, device=device).to(getattr(torch, dtype))
        right = torch.randn(n, n, device=device).to(getattr(torch, dtype))
        return 2 * n**3 / _best(lambda: torch.mm(left, right), device)
    except (RuntimeError, AttributeError, TypeError):
        return None


def _best(run: Callable[[], object], device: str, repeats: int = 10) -> float:
    """The shortest of some runs, in seconds, after two that do not count: a limit is what can be reached."""
    seconds = []
    for attempt in range(repeats + 2):
        taken = _cuda_seconds(run) if device.startswith("cuda") else _host_seconds(run)
        if attempt >= 2:
            seconds.append(taken)
    return min(seconds)


def _host_seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _cuda_seconds(run: Callable[[], object]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def _name(device: str) -> str:
    if device.startswith("cuda"):
        return str(torch.cuda.get_device_name(device))
    import platform

    return platform.processor() or platform.machine() or "cpu"
