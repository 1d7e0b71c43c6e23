"""Cells judged by several workers at a time: for checks, which no clock watches.

A thread a worker asks it for one cell after another; records come back in the order in which they are made. A worker
stays with one backend and path while there are cells of it, since each loads and compiles anew what it judges with.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from queue import SimpleQueue

from pagedbench.results.record import CellRecord
from pagedbench.runner.cells import Cell
from pagedbench.runner.pool import Workers

Ask = Callable[[Workers, Cell], CellRecord]
_Group = tuple[str, str]
_Made = SimpleQueue["tuple[Cell, CellRecord] | Exception | None"]
_JOIN_SECONDS = 0.2


def side_by_side(
    cells: Sequence[Cell], workers: Sequence[Workers], ask: Ask
) -> Generator[tuple[Cell, CellRecord], None, None]:
    """The cells with their records, as they are made. Closed early, it ends what the workers are at.

    Raises what `ask` raises, in the caller's thread.
    """
    waiting, stopped = _Waiting(cells), threading.Event()
    made: _Made = SimpleQueue()

    def serve(worker: Workers) -> None:
        group = None
        try:
            while not stopped.is_set() and (taken := waiting.take(group)):
                group, cell = taken
                made.put((cell, ask(worker, cell)))
        except Exception as error:
            made.put(error)
        made.put(None)

    threads = [threading.Thread(target=serve, args=(worker,), daemon=True) for worker in workers]
    try:
        for thread in threads:
            thread.start()
        yield from _until_all_ended(made, len(threads))
    finally:
        stopped.set()
        _end(threads, workers)


def _until_all_ended(made: _Made, threads: int) -> Generator[tuple[Cell, CellRecord], None, None]:
    while threads:
        item = made.get()
        if item is None:
            threads -= 1
        elif isinstance(item, Exception):
            raise item
        else:
            yield item


def _end(threads: Sequence[threading.Thread], workers: Sequence[Workers]) -> None:
    """Wait for the threads; one that still waits for its worker has it ended, and the one it may have just started.

    All are told before any is waited for: the end of a process that holds a GPU takes a while.
    """
    while any(thread.is_alive() for thread in threads):
        for thread, worker in zip(threads, workers, strict=True):
            if thread.is_alive():
                worker.kill()
        deadline = time.monotonic() + _JOIN_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))


class _Waiting:
    """The cells that nobody has taken, by backend and path."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self._lock = threading.Lock()
        self._takers: Counter[_Group] = Counter()
        self._cells: dict[_Group, deque[Cell]] = {}
        for cell in cells:
            self._cells.setdefault((cell.target.name, cell.path), deque()).append(cell)

    def take(self, last: _Group | None) -> tuple[_Group, Cell] | None:
        """The next cell of the group that the worker was at, else of the one with the fewest workers, then the longest
        to compile, which must not be last, then the most cells; None when all are taken."""
        with self._lock:
            if last is not None and last in self._cells:
                group = last
            elif self._cells:
                group = min(self._cells, key=self._order)
                self._takers[group] += 1
            else:
                return None
            cell = self._cells[group].popleft()
            if not self._cells[group]:
                del self._cells[group]
            return group, cell

    def _order(self, group: _Group) -> tuple[int, float, int]:
        cells = self._cells[group]
        return self._takers[group], -cells[0].target.compile_seconds, -len(cells)
