"""Limits that keep one bad kernel from taking the machine along: a worker's life, its memory, its output.

Set by the worker on itself (`bind_life_to_parent`, `limit_address_space`) or watched by the parent (`resident_bytes`).
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from pathlib import Path

import psutil

GIB = 1 << 30
SLACK_BYTES = 2 * GIB
"""What a cell may use beyond its estimate: temporaries of checks and of libraries."""
_PER_THREAD = 80 << 20  # a thread's stack and malloc arena reserve this much address space without using it
_PR_SET_PDEATHSIG = 1


def bind_life_to_parent(parent: int) -> None:
    """Have the system end this process with its parent, so that `kill -9` of the parent leaves no orphan (Linux)."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent and not os.environ.get("PAGEDBENCH_WRAPPED"):
        os._exit(0)  # it died before the line above took effect


def limit_address_space(need: int, threads: int) -> int:
    """Let this process grow by its cell's `need` (bytes), a slack, and no more; returns the growth allowed.

    Only for CPU work: CUDA reserves address space far beyond any memory. The limit is soft: the next cell may raise it.
    """
    growth = 2 * need + SLACK_BYTES
    if not sys.platform.startswith("linux"):
        return growth
    limit = psutil.Process().memory_info().vms + growth + threads * _PER_THREAD
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    return growth


def resident_bytes(pid: int, *, family: bool) -> int:
    """Resident memory of a process, with its descendants on request (slow: it looks at all processes); 0 if gone."""
    try:
        process = psutil.Process(pid)
        members = [process, *process.children(recursive=True)] if family else [process]
        return int(sum(member.memory_info().rss for member in members))
    except psutil.Error:
        return 0


def host_memory_available() -> int:
    """Bytes that a new process could use without swapping, the limit of a container's memory group included."""
    free = psutil.virtual_memory().available
    for limit_file, usage_file in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            limit, usage = (Path(name).read_text().strip() for name in (limit_file, usage_file))
        except OSError:
            continue
        if limit.isdigit():
            free = min(free, int(limit) - int(usage))
    return max(free, 0)
