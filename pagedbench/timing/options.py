"""What a user may choose about a measurement. No torch, so that the command line can read it instantly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from pagedbench.errors import UsageError

CacheState = Literal["cold", "warm"]
Quantity = Literal["kernel", "graph", "call", "plan", "total"]

QUANTITIES: dict[str, str] = {
    "kernel": "device time, from the start of a call's first kernel to the end of its last",
    "graph": "device time of one replay of a captured graph, by events",
    "call": "host time until the call returns: Python and launches",
    "plan": "host work a backend wants before the calls of a step",
    "total": "host time from the start of planning until the device is done",
}

HARD_SECONDS = 5.0
"""How long a comparison may take to get the least number of pairs although its time is over."""


@dataclass(frozen=True)
class TimingOptions:
    """How to measure, and when to stop.

    `cache` cold flushes the card's L2 before every call. Sampling stops when the `confidence` interval of the median
    is within ±`precision` of it, or at `max_samples`, or after `max_seconds`: of kernel time, and of a comparison for
    each side; other quantities take a quarter of it. `quantities` that do not apply (a graph on a CPU) are left out
    silently. Comparisons use `compare_confidence`, and call nothing faster or slower within the equivalence `margin`;
    they go on beyond `max_seconds`, up to `HARD_SECONDS`, until there are pairs enough to say anything.
    """

    cache: CacheState = "cold"
    precision: float = 0.01
    confidence: float = 0.95
    min_samples: int = 30
    max_samples: int = 1000
    max_seconds: float = 1.0
    warmup_seconds: float = 0.1
    quantities: tuple[Quantity, ...] = ("kernel", "graph", "call", "total")
    compare_confidence: float = 0.999
    margin: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.precision < 1:
            raise UsageError(f"precision {self.precision} is not between 0 and 1", hint="write 1% or 0.01")
        if not 0.5 <= self.confidence < 1 or not 0.5 <= self.compare_confidence < 1:
            raise UsageError("a confidence lies between 0.5 and 1", hint="write 95 % as 0.95")
        if self.min_samples < 1 or self.max_samples < self.min_samples:
            raise UsageError(f"no number of samples lies between {self.min_samples} and {self.max_samples}")
        if self.margin < 0 or self.max_seconds <= 0 or self.warmup_seconds < 0:
            raise UsageError("margin, max_seconds and warmup_seconds are not negative, and max_seconds is not 0")
        unknown = [q for q in self.quantities if q not in QUANTITIES]
        if unknown:
            raise UsageError(f"no quantity is named {unknown[0]!r}", hint=f"there are {', '.join(QUANTITIES)}")


def parse_precision(text: str) -> float:
    """`"1%"`, `"0.5 %"` or `"0.01"` as a fraction."""
    stripped = text.strip()
    try:
        value = float(stripped.rstrip("%").strip())
    except ValueError:
        raise UsageError(f"{text!r} is not a precision", hint="write it like 1% or 0.01") from None
    return value / 100 if stripped.endswith("%") else value


def parse_quantities(text: str) -> tuple[Quantity, ...]:
    """`"kernel,graph"` as names of quantities; the kernel is always among them, since all reports are made of it."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UsageError("--quantities names nothing", hint="leave it out, or say --no-timing to time nothing")
    unknown = [name for name in names if name not in QUANTITIES]
    if unknown:
        raise UsageError(f"no quantity is named {unknown[0]!r}", hint=f"there are {', '.join(QUANTITIES)}")
    found: tuple[Quantity, ...] = tuple(q for q in get_args(Quantity) if q == "kernel" or q in names)
    return found
