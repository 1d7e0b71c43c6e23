"""A simulated device: a clock and kernels whose times are known, for tests and for planting faults in timings.

The simulation has a host time and a device time that run apart, as a real device's do: a launch costs host time, and
its kernel starts when it was launched and the device is free. Nothing real is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pagedbench.timing.clock import CallTime, CannotMeasure, Job, run_job
from pagedbench.timing.options import CacheState


@dataclass
class FakeDevice:
    """The state of the simulation, in ns. `launches` collects (launched at, started, ended) of each kernel."""

    host: float = 0.0
    busy_until: float = 0.0
    cold: bool = False
    launches: list[tuple[float, float, float]] = field(default_factory=list)

    def launch(self, duration: float) -> None:
        """Queue a kernel that takes `duration`."""
        start = max(self.host, self.busy_until)
        self.busy_until = start + duration
        self.launches.append((self.host, start, self.busy_until))
        self.cold = False


@dataclass(frozen=True)
class FakeStage:
    """A stage that costs `host_ns` of host time and starts one kernel a duration drawn from `draw`."""

    name: str
    device: FakeDevice
    draw: Callable[[], float]
    host_ns: float = 5_000.0
    cold_ns: float = 0.0
    kernels: int = 1

    @property
    def run(self) -> Callable[[], None]:
        """The work."""
        return self._run

    def _run(self) -> None:
        extra = self.cold_ns if self.device.cold else 0.0
        for index in range(self.kernels):
            self.device.host += self.host_ns / self.kernels
            self.device.launch(self.draw() + (extra if index == 0 else 0.0))


class FakeClock:
    """A clock on a `FakeDevice`. `hold_ns` is how long the device is held back before a batch of calls;
    `profiler` and `graphs` False make it unable, as some machines are."""

    asynchronous = True
    l2_bytes = 1_000_000
    cache_states: tuple[CacheState, ...] = ("cold", "warm")

    def __init__(self, device: FakeDevice, *, hold_ns: float = 1e7, profiler: bool = True, graphs: bool = True) -> None:
        self.device = "fake"
        self.methods = dict.fromkeys(("kernel", "graph", "call", "plan", "total"), "simulated")
        self.notes: list[str] = []
        self._sim = device
        self._hold_ns = hold_ns
        self._profiler = profiler
        self._graphs = graphs

    def now(self) -> int:
        """Host time."""
        return int(self._sim.host)

    def rest(self, ns: float) -> None:
        """Do nothing for so long."""
        self._sim.host += ns

    def synchronize(self) -> None:
        """The host waits for the device."""
        self._sim.host = max(self._sim.host, self._sim.busy_until)

    def host_times(self, jobs: Sequence[Job], cache: CacheState) -> list[float]:
        """Host time of each job."""
        self.synchronize()
        times = []
        for job in jobs:
            start = self._sim.host
            run_job(job)
            times.append(self._sim.host - start)
        self.synchronize()
        return times

    def kernel_times(self, jobs: Sequence[Job], cache: CacheState) -> list[CallTime]:
        """Device time of each job."""
        if not self._profiler:
            raise CannotMeasure("no profiler in this simulation")
        self.synchronize()
        self._sim.busy_until = self._sim.host + self._hold_ns
        times = [self._one(job, cache) for job in jobs]
        self.synchronize()
        return times

    def graph_times(self, jobs: Sequence[Job], cache: CacheState) -> list[float]:
        """As kernel times: a graph has no gaps."""
        if not self._graphs:
            raise CannotMeasure("the call cannot be captured in a graph: not in this simulation")
        return [timing.busy for timing in self.kernel_times(jobs, cache)]

    def total_times(self, jobs: Sequence[Job], plan: Callable[[], object] | None, cache: CacheState) -> list[float]:
        """Host time until the device is done."""
        times = []
        for job in jobs:
            self.synchronize()
            self._sim.cold = cache == "cold"
            start = self._sim.host
            if plan is not None:
                plan()
            run_job(job)
            self.synchronize()
            times.append(self._sim.host - start)
        return times

    def _one(self, job: Job, cache: CacheState) -> CallTime:
        self._sim.cold = cache == "cold"
        stages, first = {}, len(self._sim.launches)
        for stage in job:
            before = len(self._sim.launches)
            stage.run()
            mine = self._sim.launches[before:]
            stages[stage.name] = mine[-1][2] - mine[0][1] if mine else 0.0
        kernels = self._sim.launches[first:]
        if not kernels:
            return CallTime(0.0, 0.0, stages, True, 0)
        queued = len(kernels) == 1 or kernels[-1][0] <= kernels[0][1]
        busy = sum(end - start for _, start, end in kernels)
        return CallTime(kernels[-1][2] - kernels[0][1], busy, stages, queued, len(kernels))
