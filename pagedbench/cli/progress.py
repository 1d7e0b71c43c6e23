"""Progress on stderr: a bar on a terminal, a line now and then in a log, so that no long job is silent."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from pagedbench.results.record import CellRecord
from pagedbench.runner.cells import Cell

_SECONDS_BETWEEN_LINES = 15.0


class CellProgress:
    """A `Watcher` for a run of so many cells; a context manager, so that the bar never outlives the run."""

    def __init__(self, console: Console, cells: int) -> None:
        self._console = console
        self._cells = cells
        self._done = 0
        self._label = ""
        self._last_line = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=cells)

    def __enter__(self) -> CellProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def begin(self, cell: Cell) -> None:
        """A cell begins."""
        self._label = cell.label
        self._bar.update(self._task, description=self._label)

    def stage(self, name: str) -> None:
        """A stage of it begins."""
        self._bar.update(self._task, description=f"{self._label} · {name}"[: self._console.width - 40])

    def end(self, record: CellRecord) -> None:
        """Its record is there."""
        self._done += 1
        self._bar.advance(self._task)
        now = time.monotonic()
        if not self._console.is_terminal and now - self._last_line > _SECONDS_BETWEEN_LINES:
            self._last_line = now
            line = f"{self._done} of {self._cells} cells; last: {record.scenario} {record.target} {record.verdict}"
            self._console.print(Text(line))
