"""What a fault is: a named, pure change of a right kernel's program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pagedbench.faults.program import AttentionProgram

# Wrong result, Crash, NaN/LSE, non-Determinism, in-place cache Update, API semantics.
FaultClass = Literal["W", "C", "N", "D", "U", "A"]

Change = Callable[[AttentionProgram], AttentionProgram]


@dataclass(frozen=True)
class Fault:
    """One way for a kernel to be wrong.

    `sentence` completes «the output is what a kernel gives if ...». `shows` says in words what a scenario needs for the
    fault to have an effect; whether it has one is decided by comparing programs (`effect.py`), not from these words.
    `report` is a public report of the same fault.
    """

    name: str
    sentence: str
    kind: FaultClass
    change: Change
    shows: str = "any scenario"
    report: str | None = None
