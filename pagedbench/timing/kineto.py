"""From a profiler trace to the device times of calls: which kernel belongs to which call and stage.

Pure functions on plain events; `cuda_clock.py` records the trace. A kernel is found through the launch that
started it: both carry one correlation id, and the launch lies inside the host range its stage was marked with.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pagedbench.timing.clock import CallTime, CannotMeasure

PREFIX = "pagedbench:"
IGNORED = PREFIX + "aside"
"""The name of ranges whose kernels are not timed: the flush of the cache, the kernel that holds the queue back."""


def range_name(call: int, stage: int) -> str:
    """The name of the host range around one stage of one call."""
    return f"{PREFIX}{call}:{stage}"


@dataclass(frozen=True)
class Event:
    """One event of a trace; times in ns, host and device on one time axis (CUPTI converts)."""

    name: str
    on_device: bool
    start: int
    duration: int
    correlation: int

    @property
    def end(self) -> int:
        """When it ended."""
        return self.start + self.duration


@dataclass(frozen=True)
class _Placed:
    """A device event and the host launch it came from."""

    kernel: Event
    launch: Event


def call_times(events: Iterable[Event], stage_names: Sequence[Sequence[str]]) -> list[CallTime]:
    """Device times of the calls of a trace, in order; `stage_names[i]` are the stages of call i.

    A call that started nothing on the device took 0 ns. Raises `CannotMeasure` when a kernel cannot be traced to a
    launch inside a marked range: a time that may lack a kernel is worse than none.
    """
    placed = _place(list(events))
    return [_call_time(placed, call, names) for call, names in enumerate(stage_names)]


def _place(events: list[Event]) -> dict[str, list[_Placed]]:
    marks = sorted((e for e in events if not e.on_device and e.name.startswith(PREFIX)), key=lambda e: e.start)
    launches = {e.correlation: e for e in events if not e.on_device and _is_driver_call(e.name)}
    # The profiler repeats host ranges on the device's axis, under their own name: those are no kernels.
    kernels = [e for e in events if e.on_device and not e.name.startswith(PREFIX)]
    starts = [mark.start for mark in marks]
    placed: dict[str, list[_Placed]] = defaultdict(list)
    for kernel in kernels:
        launch = launches.get(kernel.correlation)
        index = bisect_right(starts, launch.start) - 1 if launch else -1
        if launch is None or index < 0 or launch.start > marks[index].end:
            raise CannotMeasure(f"the profiler does not say which call started the kernel {kernel.name[:60]!r}")
        placed[marks[index].name].append(_Placed(kernel, launch))
    return placed


def _is_driver_call(name: str) -> bool:
    # Operators carry correlation ids of another kind, which may coincide with those of launches.
    return name.startswith("cu") and ":" not in name


def _call_time(placed: dict[str, list[_Placed]], call: int, names: Sequence[str]) -> CallTime:
    stages = {name: placed.get(range_name(call, i), []) for i, name in enumerate(names)}
    everything = [item for items in stages.values() for item in items]
    if not everything:
        return CallTime(0.0, 0.0, dict.fromkeys(names, 0.0), True, 0)
    start = min(item.kernel.start for item in everything)
    last_launch = max(item.launch.end for item in everything)
    return CallTime(
        span=_span(everything),
        busy=float(sum(item.kernel.duration for item in everything)),
        stages={name: _span(items) for name, items in stages.items()},
        launched=len(everything) == 1 or last_launch <= start,
        kernels=len(everything),
    )


def _span(items: Sequence[_Placed]) -> float:
    if not items:
        return 0.0
    return float(max(item.kernel.end for item in items) - min(item.kernel.start for item in items))
