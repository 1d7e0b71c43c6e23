"""The care that CPU timings need: threads in fixed places, and a note when others were using the machine.

Pinning is undone afterwards. Where that is not possible (fewer cores than threads, say) it is stated instead.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from pagedbench.timing.measurement import INTERFERENCE


@dataclass
class HostCare:
    """`threads` of the intra-op pool, `pinning` in words, `notes` on interference (complete once the timing ended)."""

    threads: int
    pinning: str
    notes: list[str] = field(default_factory=list)


@contextmanager
def quiet_host() -> Iterator[HostCare]:
    """Pin the process's threads one to a core while timing, and watch for interference."""
    care = HostCare(torch.get_num_threads(), "threads not pinned: not possible on this system")
    before = _allowed()
    if before:
        care.pinning = _pin(before, care.threads)
    preempted, _ = _preemptions()
    try:
        yield care
    finally:
        if before:
            _restore(before)
        care.notes.extend(_interference(preempted, len(before.get(os.getpid(), ())) or os.cpu_count() or 1))


def _allowed() -> dict[int, set[int]]:
    """The cores that each thread of this process may use; empty where the system does not tell."""
    if not sys.platform.startswith("linux"):
        return {}
    cores = {int(name): _cores_of(int(name)) for name in os.listdir("/proc/self/task")}
    return {thread: allowed for thread, allowed in cores.items() if allowed}


def _cores_of(thread: int) -> set[int]:
    try:
        return set(os.sched_getaffinity(thread))
    except OSError:  # it has ended
        return set()


def _pin(threads: dict[int, set[int]], workers: int) -> str:
    main = os.getpid()
    cores = sorted(threads.get(main, set()))
    if len(cores) < workers:
        return f"threads not pinned: {workers} threads on {len(cores)} cores"
    # Processes that time at the same moment should not all begin at the first core.
    start = main % len(cores)
    cores = [*cores[start:], *cores[:start]]
    # The first thread takes part in the work and gets a core to itself. Which of the others are its helpers cannot be
    # told, and a helper on the first one's core would have both wait for each other: they share the other cores.
    for thread in threads:
        _set(thread, {cores[0]} if thread == main else set(cores[1:workers]) or {cores[0]})
    return f"{workers} threads pinned to cores {', '.join(str(c) for c in sorted(cores[:workers]))}"


def _restore(threads: dict[int, set[int]]) -> None:
    for thread, cores in threads.items():
        _set(thread, cores)


def _set(thread: int, cores: set[int]) -> None:
    try:
        os.sched_setaffinity(thread, cores)
    except OSError:  # ended, or not allowed: timing goes on unpinned
        return


def _preemptions() -> tuple[int, float]:
    try:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw, os.getloadavg()[0]
    except (ImportError, OSError, AttributeError):
        return 0, 0.0


def _interference(before: int, cores: int) -> list[str]:
    after, load = _preemptions()
    if after - before <= 20 or load <= cores:
        return []
    return [
        f"{INTERFERENCE} this process was preempted {after - before} times while it was timed (load {load:.1f} on "
        f"{cores} cores); close other programs for steadier times"
    ]
