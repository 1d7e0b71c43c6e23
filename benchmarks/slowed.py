"""A decode kernel that can be made slower on purpose: pagedbench's own, and SLOWDOWN - 1 of its time behind it.

Use: SLOWDOWN=1.05 pagedbench check docs-decode --backend benchmarks/slowed.py:decode --baseline NAME

One backend under one name, so that a baseline of it without SLOWDOWN is what the slowed one is held against. On a GPU
it is the `triton` backend and a kernel that waits, which is launched in either case, on a CPU `torch` and a busy loop.
What is added is measured at the first call of the process.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

import pagedbench
from pagedbench.backends.base import Backend
from pagedbench.backends.torch_backend import TorchBackend
from pagedbench.backends.triton_backend import TritonBackend
from pagedbench.tensors.call import Call

SLOWDOWN = float(os.environ.get("SLOWDOWN", "1"))
CALLS = 30


@lru_cache(maxsize=2)
def kernel_of(device: str) -> Backend:
    """The backend that does the work."""
    return TritonBackend() if device == "cuda" else TorchBackend()


def plan_of(call: Call) -> Any:
    """The plan of that backend."""
    return kernel_of(call.q.device.type).plan(call)


@pagedbench.backend(path="decode", plan=plan_of, compile_seconds=20.0)
def decode(call: Call, plan: Any, **_: Any) -> torch.Tensor:
    """The output of the kernel, `(total_q, num_heads, head_dim_v)`, some time later than it could have been."""
    device = call.q.device.type
    backend = kernel_of(device)
    ns = added_ns(device, lambda: backend.decode(call, plan))
    found = backend.decode(call, plan).out
    if device == "cuda":
        wait_on_device(ns)
    else:
        until = time.perf_counter_ns() + ns
        while time.perf_counter_ns() < until:
            pass
    return found


_added: dict[str, float] = {}


def added_ns(device: str, run: Callable[[], object]) -> float:
    """What SLOWDOWN adds to a call, in ns; measured once a process."""
    if device not in _added:
        measured = on_device if device == "cuda" else on_host
        _added[device] = (SLOWDOWN - 1) * measured(run) if SLOWDOWN > 1 else 0.0
    return _added[device]


def on_host(run: Callable[[], object]) -> float:
    """Median ns of a call."""
    times = []
    for _ in range(CALLS):
        start = time.perf_counter_ns()
        run()
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times)


def on_device(run: Callable[[], object]) -> float:
    """Device ns of a call, one after the other without gaps: queued behind a kernel that waits for 10 ms."""
    for _ in range(3):  # compiles at the first
        run()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    wait_on_device(10e6)
    begin.record()
    for _ in range(CALLS):
        run()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end) * 1e6 / CALLS)


def wait_on_device(ns: float) -> None:
    """Queue a kernel that does nothing for so long."""
    from pagedbench.timing.cuda_clock import cycles_per_ns

    torch.cuda._sleep(max(1, int(ns * cycles_per_ns("cuda"))))  # type: ignore[no-untyped-call]
