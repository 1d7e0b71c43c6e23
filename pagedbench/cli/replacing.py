"""What a file of records held before a command took its place: nobody is to lose records without a word.

Looks and tells; replacing is never refused, since a run that is made again is what most people want.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path

from pagedbench.errors import UsageError
from pagedbench.results.comparison import ComparisonRecord
from pagedbench.results.record import CellRecord
from pagedbench.results.store import is_stream, read_text

Identity = Callable[[str], Hashable]
"""What a line is a record of; raises for a line that is none."""


class Earlier:
    """The records that `file` holds now. `identity` tells what each is of."""

    def __init__(self, file: Path, identity: Identity) -> None:
        self._file = file
        self._held = _held(file, identity)

    def others(self, written: Iterable[Hashable]) -> int | None:
        """How many records were of something else than those `written`; None where the file held no records, but was
        not empty."""
        new = set(written)
        return None if self._held is None else sum(one not in new for one in self._held)

    def tell_cells(self, written: Iterable[CellRecord]) -> None:
        """On stderr, after a run: what was replaced beyond the cells that were judged again."""
        count = self.others(record.key for record in written)
        if count is None:
            print(f"{self._file} held no records of cells before, and was replaced", file=sys.stderr)
        elif count:
            records = f"{count} records" if count > 1 else "a record"
            print(f"replaced: {self._file} held {records} of other cells; --resume keeps them", file=sys.stderr)

    def tell(self, written: Iterable[Hashable]) -> None:
        """On stderr, where there is nothing that would have kept them: that the file held something else."""
        if self.others(written) != 0:
            print(f"replaced: {self._file} held something else before", file=sys.stderr)


def of_cell(line: str) -> Hashable:
    """The key of a cell's record."""
    return CellRecord.from_json(line).key


def of_comparison(line: str) -> Hashable:
    """Scenario and sides of a comparison's record."""
    return compared(ComparisonRecord.from_json(line))


def compared(record: ComparisonRecord) -> Hashable:
    """What a comparison is of."""
    return (record.scenario, record.device, *(side.target for side in record.sides))


def of_trial(line: str) -> Hashable:
    """Fault, scenario and path of a record of `selftest`."""
    return tried(json.loads(line))


def tried(record: dict[str, object]) -> Hashable:
    """What a trial is of."""
    return (record["fault"], record["scenario"], record["path"])


def _held(file: Path, identity: Identity) -> list[Hashable] | None:
    if not file.is_file() or is_stream(file):
        return []
    try:
        *lines, torn = read_text(file).split("\n")
        held = [identity(line) for line in lines if line.strip()]
    except (UsageError, ValueError, LookupError, TypeError):
        return None
    return held if held or not torn.strip() else None
