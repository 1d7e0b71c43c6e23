"""Baselines: records of an earlier version to hold a new one against, in correctness and in speed.

A speed regression is decided by `timing/stats.py` from the raw samples of at least three processes a side, since one
hides how placement varies; where the machine cannot be why (`disturbance.py`); and only between equal environments. A
backend's own version is no part of the environment: it is what is being compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pagedbench.errors import NotWhole, UsageError, nearest
from pagedbench.results.disturbance import doubt
from pagedbench.results.record import CellRecord
from pagedbench.results.store import read_records, write_text
from pagedbench.timing.stats import MIN_PROCESSES, judge_change
from pagedbench.words import Verdict

__all__ = ["MIN_PROCESSES", "BaselineComparison", "CellChange", "compare_records", "load_baseline", "save_baseline"]

FOLDER = Path("results") / "baselines"
MARGIN = 0.01
"""The share of a time within which nothing counts as a change."""
# What two timings must share to be comparable; absent on both sides counts as equal.
SAME_FOR_SPEED = (
    "gpu", "driver", "cuda", "torch", "power_limit_w", "clock_sm_max_mhz", "cpu", "cpu_cores", "cpu_threads",
)  # fmt: skip

Key = tuple[str, str, str, str]
Change = Literal["regressed", "fixed", "slower", "faster", "ambiguous", "unchanged", "new", "gone", "not compared"]


@dataclass(frozen=True)
class CellChange:
    """How one cell stands against its baseline. `ratio` is new time over old, with its interval, where it was timed."""

    key: Key
    change: Change
    reason: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def name(self) -> str:
        """The cell as messages name it: scenario, backend and path."""
        return _name(self.key)


@dataclass(frozen=True)
class BaselineComparison:
    """All cells, and what differs between the environments (empty if nothing does)."""

    changes: tuple[CellChange, ...]
    differences: tuple[str, ...]

    @property
    def regressed(self) -> bool:
        """A cell that was right is not any more."""
        return any(c.change == "regressed" for c in self.changes)

    @property
    def slower(self) -> bool:
        """A cell is slower beyond doubt."""
        return bool(self.slower_cells)

    @property
    def slower_cells(self) -> list[str]:
        """A sentence for each cell that is slower beyond doubt."""
        return [f"{c.name} is slower than the baseline: {c.reason}" for c in self.changes if c.change == "slower"]

    @property
    def missing(self) -> list[CellChange]:
        """Cells that the baseline has and this run was asked about, but did not judge."""
        return [c for c in self.changes if c.change == "gone"]


def baseline_file(name: str, folder: Path = FOLDER) -> Path:
    """Where the baseline of that name lies. Raises `UsageError` for a name that is a path."""
    if not name or Path(name).name != name or name.startswith("."):
        raise UsageError(f"{name!r} is no name for a baseline", "use letters, digits and dashes")
    return folder / f"{name}.jsonl"


def save_baseline(name: str, records: Sequence[CellRecord], folder: Path = FOLDER) -> Path:
    """Write a baseline; returns its file. Raises `UsageError` if a timed cell has too few processes, or none passed."""
    if not any(r.verdict is Verdict.PASS for r in records):
        raise UsageError("no cell passed: there is nothing to hold a later version against")
    for key, processes in _by_key(records).items():
        timed = [r for r in processes if r.timing is not None]
        if 0 < len(timed) < MIN_PROCESSES:
            raise UsageError(
                f"{_name(key)} was timed in {len(timed)} process(es), a baseline needs {MIN_PROCESSES}",
                "run the scenarios again and give all records, or let `baseline save NAME SCENARIO...` do it",
            )
    file = baseline_file(name, folder)
    write_text(file, "".join(record.to_json() + "\n" for record in records))
    return file


def load_baseline(name: str, folder: Path = FOLDER) -> list[CellRecord]:
    """The records of a baseline. Raises `UsageError` with the nearest name, and `NotWhole`: a gate would hold nothing
    against what is missing."""
    file = baseline_file(name, folder)
    if not file.exists():
        known = sorted(path.stem for path in folder.glob("*.jsonl"))
        hint = nearest(name, known) or (
            f"there are {', '.join(known)}" if known else "save one: pagedbench baseline save"
        )
        raise UsageError(f"there is no baseline {name!r} in {folder}", hint)
    try:
        return read_records(file)
    except NotWhole as error:
        raise NotWhole(error.message, f"save it again: pagedbench baseline save {name} SCENARIO...") from error


def compare_records(
    new: Sequence[CellRecord], old: Sequence[CellRecord], *, across: bool = False
) -> BaselineComparison:
    """Hold `new` against `old`, cell by cell; scenarios that `new` has nothing of are left out.

    Times are compared between equal environments only: raises `UsageError` when they differ, unless `across` is asked
    for.
    """
    asked = {r.scenario for r in new}
    old = [r for r in old if r.scenario in asked]
    if not across and any(r.timing for r in new):
        require_equal_environments([r.environment for r in new], old)
    differences = environment_differences([r.environment for r in new], old) if old else []
    ours, theirs = _by_key(new), _by_key(old)
    changes = [_compare_cell(key, ours.get(key, []), theirs.get(key, [])) for key in dict.fromkeys([*ours, *theirs])]
    return BaselineComparison(tuple(changes), tuple(differences))


def require_equal_environments(new: Iterable[Mapping[str, Any]], old: Sequence[CellRecord]) -> None:
    """Raises `UsageError` when `old` has times that were not taken in the environments `new`."""
    differences = environment_differences(new, old) if any(r.timing for r in old) else []
    if differences:
        raise UsageError(
            "the environments differ, so their times cannot be compared: " + "; ".join(differences),
            "make a baseline here, or say --across to compare nevertheless",
        )


def environment_differences(new: Iterable[Mapping[str, Any]], old: Iterable[CellRecord]) -> list[str]:
    """`name: old → new` for each fact that matters to speed and is not the same on both sides."""
    ours, theirs = _facts(new), _facts(r.environment for r in old)
    return [
        f"{name}: {_told(theirs[name])} → {_told(ours[name])}" for name in SAME_FOR_SPEED if ours[name] != theirs[name]
    ]


def _facts(environments: Iterable[Mapping[str, Any]]) -> Mapping[str, set[Any]]:
    environments = list(environments)
    return {name: {e.get(name) for e in environments} for name in SAME_FOR_SPEED}


def _told(values: set[Any]) -> str:
    return ", ".join(sorted(str(v) for v in values)) or "unknown"


def _by_key(records: Iterable[CellRecord]) -> dict[Key, list[CellRecord]]:
    cells: dict[Key, list[CellRecord]] = {}
    for record in records:
        cells.setdefault(record.key, []).append(record)
    return cells


def _name(key: Key) -> str:
    return f"{key[0]} {key[1]}:{key[2]}"


def _compare_cell(key: Key, new: list[CellRecord], old: list[CellRecord]) -> CellChange:
    absent = _without_two_sides(key, new, old)
    if absent is not None:
        return absent
    was_right = all(r.verdict is Verdict.PASS for r in old)
    failed = next((r for r in new if r.verdict.is_wrong or r.verdict.is_undecided), None)
    if failed is not None:
        change: Change = "regressed" if was_right else "unchanged"
        return CellChange(key, change, f"{failed.verdict}: {failed.message}")
    if not was_right:
        return CellChange(key, "fixed", f"was {old[0].verdict}: {old[0].message}")
    return _compare_speed(key, new, old)


def _without_two_sides(key: Key, new: list[CellRecord], old: list[CellRecord]) -> CellChange | None:
    """The change of a cell that one side has not judged, or judged on another scenario; None if both did."""
    judged_now, judged_then = (any(r.verdict is not Verdict.SKIPPED for r in side) for side in (new, old))
    if judged_now and judged_then:
        same = {r.scenario_hash for r in new} == {r.scenario_hash for r in old}
        return None if same else CellChange(key, "not compared", "the scenario is not the one of the baseline")
    if judged_now:
        return CellChange(key, "new", "not judged in the baseline")
    if judged_then:
        reason = f": {new[0].message}" if new else "; judge its backend and path, too, or save the baseline without it"
        return CellChange(key, "gone", f"judged in the baseline, but not now{reason}")
    return CellChange(key, "not compared", "judged on neither side")


def _compare_speed(key: Key, new: list[CellRecord], old: list[CellRecord]) -> CellChange:
    ours, theirs = _kernel_samples(new), _kernel_samples(old)
    if not ours or not theirs:
        return CellChange(key, "unchanged", "right on both sides; not timed on both")
    found = judge_change(ours, theirs, margin=MARGIN)
    low, high = (x if math.isfinite(x) else None for x in (found.low, found.high))
    doubted = doubt(found, new, old, MARGIN) if found.change in ("slower", "faster") else None
    if doubted:
        return CellChange(key, "ambiguous", f"{found.reason}; but {doubted}", found.ratio, low, high)
    return CellChange(key, found.change, found.reason, found.ratio, low, high)


def _kernel_samples(records: Iterable[CellRecord]) -> list[list[float]]:
    """Raw kernel times, one list a process; measurements that were found invalid do not count."""
    found = []
    for record in records:
        timing = record.timing or {}
        kernel = timing.get("quantities", {}).get("kernel")
        if kernel and not timing.get("invalid"):
            found.append([float(x) for x in kernel["samples"]])
    return found
