"""Cells judged by several workers at a time: for checks, which no clock watches.

A thread a worker asks it for one cell after another; records come back in the order in which they are made. A worker
stays with one backend while there are cells of it, since each loads and compiles anew what it judges with, and judges
all paths of a scenario, which have kernels, inputs and the oracle's answer in common.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from itertools import groupby, takewhile
from queue import SimpleQueue

from pagedbench.results.record import CellRecord
from pagedbench.runner.cells import Cell
from pagedbench.runner.pool import Workers

Ask = Callable[[Workers, Cell], CellRecord]
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
        backend = None
        try:
            while not stopped.is_set() and (taken := waiting.take(backend)):
                backend = taken[0].target.name
                for cell in takewhile(lambda _: not stopped.is_set(), taken):
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
    """The cells that nobody has taken: by backend, those of a scenario together."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self._lock = threading.Lock()
        self._takers: Counter[str] = Counter()
        self._cells: dict[str, deque[list[Cell]]] = {}
        by_both = sorted(cells, key=lambda cell: cell.target.name)  # stable: scenarios keep their order
        for (backend, _), together in groupby(by_both, lambda cell: (cell.target.name, cell.scenario.name)):
            self._cells.setdefault(backend, deque()).append(list(together))
        # Backends begin at different scenarios: the largest of all at one time would leave no memory for any.
        for index, scenarios in enumerate(self._cells.values()):
            scenarios.rotate(-(index * len(scenarios) // len(self._cells)))

    def take(self, last: str | None) -> list[Cell]:
        """The next scenario's cells of the backend that the worker was at, else of the one with the fewest workers,
        then the longest to compile, which must not be last, then the most left; none when all are taken."""
        with self._lock:
            if not self._cells:
                return []
            backend = last if last is not None and last in self._cells else self._neediest()
            taken = self._cells[backend].popleft()
            if not self._cells[backend]:
                del self._cells[backend]
            return taken

    def _neediest(self) -> str:
        def need(backend: str) -> tuple[int, float, int]:
            left = self._cells[backend]
            return self._takers[backend], -left[0][0].target.compile_seconds, -len(left)

        backend = min(self._cells, key=need)
        self._takers[backend] += 1
        return backend
