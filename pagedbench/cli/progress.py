"""Progress on stderr: a bar on a terminal, a line now and then in a log, so that no long job is silent."""

from __future__ import annotations

import time
from collections.abc import Sequence
from threading import Timer
from types import TracebackType
from typing import TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from pagedbench.results.comparison import ComparisonRecord
from pagedbench.results.record import CellRecord
from pagedbench.results.store import RecordStore
from pagedbench.runner.cells import Cell
from pagedbench.runner.pool import REQUEST_SECONDS, Workers
from pagedbench.runner.protocol import ResolvedTarget
from pagedbench.runner.sides import Resolve

_SECONDS_BETWEEN_LINES = 10.0
_SILENT_SECONDS = 8.0
_COLUMNS_OF_THE_BAR = 58
_AnyBar = TypeVar("_AnyBar", bound="_Bar")


def time_left(done: int, total: int, seconds: float) -> str:
    """What is left at the pace so far; in a sweep that grows, it is more."""
    return f"about {seconds / done * (total - done):.0f} s left" if done else ""


def resolving(workers: Workers) -> Resolve:
    """The `resolve` of workers that says what it waits for, where a file or a library is long in loading."""

    def resolve(targets: Sequence[str], paths: Sequence[str]) -> list[ResolvedTarget]:
        workers.wait()
        what = " ".join(targets) or "the backends that are there"
        said = f"still loading {what}; --timeout is for cells, and loading may take up to {REQUEST_SECONDS:.0f} s"
        timer = Timer(_SILENT_SECONDS, typer.echo, (said,), {"err": True})
        timer.start()
        try:
            return workers.resolve(targets, paths)
        finally:
            timer.cancel()

    return resolve


class _Bar:
    """So many `things` to do, and how many are done; a context manager, so that the bar never outlives the job."""

    def __init__(self, console: Console, total: int, things: str) -> None:
        self._console, self._total, self._things = console, total, things
        self._label, self._done = "", 0
        self._begun = self._last_line = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=total, left="")

    def __enter__(self: _AnyBar) -> _AnyBar:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def stage(self, name: str) -> None:
        """A stage of the thing in hand begins."""
        text = f"{self._label} · {name}" if name else self._label
        self._bar.update(self._task, description=text[: self._console.width - _COLUMNS_OF_THE_BAR])

    def _begin(self, label: str) -> None:
        self._label = label
        self.stage("")

    def _end(self, last: str) -> None:
        """One more is done; `last` says which."""
        self._done += 1
        now = time.monotonic()
        left = time_left(self._done, self._total, now - self._begun)
        self._bar.update(self._task, advance=1, left=left)
        if not self._console.is_terminal and now - self._last_line > _SECONDS_BETWEEN_LINES:
            self._last_line = now
            done = f"{self._done} of {self._total} {self._things} in {now - self._begun:.0f} s, {left}"
            self._console.print(Text(f"{done}; last: {last}"))


class CellProgress(_Bar):
    """A `Watcher` for a run of so many cells."""

    def __init__(self, console: Console, cells: int) -> None:
        super().__init__(console, cells, "cells")

    def begin(self, cell: Cell) -> None:
        """A cell begins."""
        self._begin(cell.label)

    def end(self, record: CellRecord) -> None:
        """Its record is there."""
        self._end(f"{record.scenario} {record.target} {record.verdict}")


class ComparisonProgress(_Bar):
    """A `Watcher` for so many comparisons; keeps each record in `store` as it is made."""

    def __init__(self, console: Console, comparisons: int, store: RecordStore | None) -> None:
        super().__init__(console, comparisons, "comparisons")
        self._store = store

    def begin(self, label: str) -> None:
        """A scenario begins."""
        self._begin(label)

    def end(self, record: ComparisonRecord) -> None:
        """Its record is there."""
        self._end(record.scenario)
        if self._store is not None:
            self._store.append(record)


class TrialProgress(_Bar):
    """For a probe of so many features and paths."""

    def __init__(self, console: Console, trials: int) -> None:
        super().__init__(console, trials, "trials")

    def end(self, last: str) -> None:
        """One is done."""
        self._end(last)
