"""All faults by name, in the order in which a diagnosis prefers them when several explain the same behaviour."""

from __future__ import annotations

from difflib import get_close_matches

from pagedbench.errors import UsageError
from pagedbench.faults import misread, output, reading, scoring, writing
from pagedbench.faults.fault import Fault

FAULTS: tuple[Fault, ...] = (*misread.FAULTS, *reading.FAULTS, *scoring.FAULTS, *writing.FAULTS, *output.FAULTS)
_BY_NAME = {fault.name: fault for fault in FAULTS}


def find_fault(name: str) -> Fault:
    """The fault of that name; raises UsageError with the nearest one."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    near = get_close_matches(name, _BY_NAME, 1)
    raise UsageError(f"no fault is named «{name}»", f"did you mean «{near[0]}»?" if near else None)
