"""The fixed words of the project as types: paths, verdicts, exit codes.

No logic beyond what the words themselves mean; imports nothing, so that every other module may import it.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, IntEnum


class AttnPath(str, Enum):
    """How a kernel reaches the cache."""

    VARLEN = "varlen"
    DECODE = "decode"
    PAGED_VARLEN = "paged-varlen"

    def __str__(self) -> str:
        return self.value


class Verdict(str, Enum):
    """The outcome of one check, and of a cell (its worst check)."""

    PASS = "PASS"
    EXPECTED = "EXPECTED"
    SKIPPED = "SKIPPED"
    MISMATCH = "MISMATCH"
    FOOTPRINT = "FOOTPRINT"
    LEAK = "LEAK"
    NOT_WRITTEN = "NOT WRITTEN"
    NON_FINITE = "NON-FINITE"
    CORRUPTED = "CORRUPTED"
    UNSTABLE = "UNSTABLE"
    REFUSED = "REFUSED"
    ERROR = "ERROR"
    CRASHED = "CRASHED"
    TIMED_OUT = "TIMED OUT"
    NO_REFERENCE = "NO REFERENCE"

    def __str__(self) -> str:
        return self.value

    @property
    def is_wrong(self) -> bool:
        """The kernel is wrong (exit 1)."""
        return self in _WRONG

    @property
    def is_undecided(self) -> bool:
        """No verdict could be reached (exit 5)."""
        return self in _UNDECIDED


# Worst first. What corrupts memory or was not written explains the numbers that follow from it, so it ranks above them.
_WRONG = (
    Verdict.CORRUPTED,
    Verdict.NOT_WRITTEN,
    Verdict.NON_FINITE,
    Verdict.FOOTPRINT,
    Verdict.LEAK,
    Verdict.MISMATCH,
    Verdict.UNSTABLE,
)
_UNDECIDED = (Verdict.CRASHED, Verdict.TIMED_OUT, Verdict.ERROR, Verdict.NO_REFERENCE)
_RANK = (Verdict.REFUSED, *_WRONG, *_UNDECIDED, Verdict.SKIPPED, Verdict.EXPECTED, Verdict.PASS)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict of a cell from those of its checks.

    A check that was SKIPPED (not applicable) does not lower a cell that passed another one; a cell of skips only is
    SKIPPED, and so is an empty one: nothing passes by default.
    """
    found = list(verdicts)
    judged: list[Verdict] = [v for v in found if v is not Verdict.SKIPPED]
    return min(judged or [Verdict.SKIPPED], key=_RANK.index)


class ExitCode(IntEnum):
    """Exit codes of the commands that judge kernels (`run`, `check`, `compare`)."""

    OK = 0
    WRONG = 1
    USAGE = 2
    NOTHING_CHECKED = 3
    SLOWER = 4
    UNDECIDED = 5


def exit_code(cells: Iterable[Verdict], *, slower: bool = False) -> ExitCode:
    """The exit code for a run: usage errors never get here, then 1, 5, 4, 3, 0 in that order."""
    verdicts = list(cells)
    if any(v is Verdict.REFUSED for v in verdicts):
        return ExitCode.USAGE
    if any(v.is_wrong for v in verdicts):
        return ExitCode.WRONG
    if any(v.is_undecided for v in verdicts):
        return ExitCode.UNDECIDED
    if slower:
        return ExitCode.SLOWER
    if not any(v is Verdict.PASS for v in verdicts):
        return ExitCode.NOTHING_CHECKED
    return ExitCode.OK
