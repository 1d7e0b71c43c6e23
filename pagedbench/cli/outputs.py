"""The files that a run is asked to write. Each form is made by its own module in `report/`; here is only the list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pagedbench.results.record import CellRecord


@dataclass(frozen=True)
class OutputFiles:
    """Where to write what; None: not at all. `json` is written cell by cell by the run itself."""

    json: Path | None = None
    csv: Path | None = None
    markdown: Path | None = None
    junit: Path | None = None
    html: Path | None = None
    sarif: Path | None = None
    github: bool = False

    def write(self, records: Sequence[CellRecord]) -> None:
        """Write every form asked for except `json`."""
