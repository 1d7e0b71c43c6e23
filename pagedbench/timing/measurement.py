"""The result of a measurement: named quantities with raw samples, and how they came about. Plain data, JSON-safe.

Nothing here measures, and nothing needs torch, so that reports read old records anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pagedbench.timing.stats import mad, median_interval

INTERFERENCE = "interference:"
"""How the note begins that others used the processor meanwhile."""
MADE_DO = "shown for want of better ones"
"""How the note ends on samples that should have been dropped, and are all there is."""


@dataclass(frozen=True)
class Timed:
    """One quantity. Times in ns; `samples` in the order of measurement; `low` to `high` is the interval of the median
    at `confidence`; `method` says how it was read, `stop` why sampling ended, `dropped` counts samples by reason."""

    name: str
    samples: tuple[float, ...]
    median: float
    low: float
    high: float
    confidence: float
    mad: float
    method: str
    stop: str
    dropped: Mapping[str, int] = field(default_factory=dict)

    @property
    def half_width(self) -> float:
        """The interval's larger arm as a fraction of the median."""
        return max(self.high - self.median, self.median - self.low) / self.median if self.median else 0.0


def summarise(
    name: str,
    samples: tuple[float, ...],
    *,
    confidence: float,
    method: str,
    stop: str,
    dropped: Mapping[str, int] | None = None,
) -> Timed:
    """A `Timed` from raw samples (at least one)."""
    interval = median_interval(samples, confidence)
    return Timed(
        name,
        samples,
        interval.value,
        interval.low,
        interval.high,
        interval.confidence,
        mad(samples),
        method,
        stop,
        dict(dropped or {}),
    )


@dataclass(frozen=True)
class StageTime:
    """One stage of a call: median ns of its own span, and its share of all stages' medians. `method` says how it was
    read where it has no span of its own."""

    name: str
    median: float
    share: float
    method: str = ""


@dataclass(frozen=True)
class RooflineRecord:
    """The place of the kernel time under the device's limits; see `roofline.py` for the meaning of each number."""

    bytes: int
    flops: int
    gb_s: float
    tflop_s: float
    bound: str
    share: float
    peak_gb_s: float
    peak_tflop_s: float


@dataclass(frozen=True)
class Measurement:
    """All that was learnt about one call on one device.

    `cache` is the state of the L2 at the start of each call. `busy` is the median sum of kernel times in ns, to be
    seen beside the kernel quantity (the span). `launch_bound`: the host takes longer to start the call than the device
    to do it. `invalid` says why these times must not be used, None if they may. `placed` is where threads or clocks
    stood; `sm_mhz` the SM clock at which most of the measuring was done, in MHz, None where nobody can tell.
    """

    device: str
    cache: str
    quantities: Mapping[str, Timed]
    stages: tuple[StageTime, ...] = ()
    busy: float | None = None
    kernels: int | None = None
    launch_bound: bool = False
    invalid: str | None = None
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    placed: str = ""
    sm_mhz: int | None = None
    roofline: RooflineRecord | None = None

    @property
    def kernel(self) -> Timed | None:
        """Device time, if it was measured."""
        return self.quantities.get("kernel")

    @property
    def graph(self) -> Timed | None:
        """Time of a graph's replay, if it was measured."""
        return self.quantities.get("graph")

    @property
    def call(self) -> Timed | None:
        """Host time of a call, if it was measured."""
        return self.quantities.get("call")

    @property
    def plan(self) -> Timed | None:
        """Host time of planning, if there was any."""
        return self.quantities.get("plan")

    @property
    def total(self) -> Timed | None:
        """Host time of planning, call and device together, if it was measured."""
        return self.quantities.get("total")

    def to_dict(self) -> dict[str, Any]:
        """As JSON: numbers, strings, lists and maps only."""
        data = asdict(self)
        for quantity in data["quantities"].values():
            quantity["samples"] = list(quantity["samples"])
        return {**data, "stages": list(data["stages"]), "warnings": list(self.warnings), "notes": list(self.notes)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Measurement:
        """The inverse of `to_dict`."""
        roofline = data.get("roofline")
        quantities = {
            name: Timed(**{**stored, "samples": tuple(stored["samples"])})
            for name, stored in data["quantities"].items()
        }
        return cls(
            **{
                **data,
                "quantities": quantities,
                "stages": tuple(StageTime(**stage) for stage in data.get("stages", ())),
                "warnings": tuple(data.get("warnings", ())),
                "notes": tuple(data.get("notes", ())),
                "roofline": RooflineRecord(**roofline) if roofline else None,
            }
        )
