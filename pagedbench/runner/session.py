"""A run from its first cell to its last: what `run`, `check` and the pytest plugin have in common. The parent's side.

Cells are judged one after the other (a timed GPU must not be shared), or by several workers where nothing is timed;
each record is stored the moment it is there. Ctrl-C and SIGTERM end the run after the record in hand: what was done is
returned, and `interrupted_by` says so.
"""

from __future__ import annotations

import signal
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from pagedbench.errors import PagedbenchError, RecordsLost
from pagedbench.results.record import CellRecord
from pagedbench.results.store import RecordStore
from pagedbench.runner.cells import Cell, JudgeOptions
from pagedbench.runner.environment import git_state
from pagedbench.runner.outcome import apply_expectation, expectation_of, wants_memory
from pagedbench.runner.parallel import side_by_side
from pagedbench.runner.pool import WorkerError, Workers
from pagedbench.runner.signals import interruptible, signals_wait

DIAGNOSED_A_BACKEND = 10
"""A kernel that fails everywhere fails for one reason: so many of its failures are explained, the rest are listed."""
NOT_DIAGNOSED = (
    f"not diagnosed: {DIAGNOSED_A_BACKEND} failures of the backend were before; check it alone, and it is diagnosed"
)

FEWER = 4
"""So many times fewer workers judge again what found too little memory beside all of them."""


class Watcher(Protocol):
    """Is told how the run gets on."""

    def begin(self, cell: Cell) -> None:
        """A cell begins."""

    def stage(self, name: str) -> None:
        """A stage of it begins."""

    def end(self, record: CellRecord) -> None:
        """Its record is there."""


@dataclass
class RunResult:
    """All records of a run, those kept from an earlier one included, in the order of the plan.

    `interrupted_by` is the signal, `failed` the error that ended it early, None if it went to its end; `planned` counts
    the cells it had.
    """

    planned: int
    records: list[CellRecord] = field(default_factory=list)
    interrupted_by: signal.Signals | None = None
    failed: PagedbenchError | None = None


def run_cells(
    cells: Sequence[Cell],
    workers: Sequence[Workers],
    options: JudgeOptions,
    watcher: Watcher,
    *,
    store: RecordStore | None = None,
    done: Mapping[str, CellRecord] | None = None,
) -> RunResult:
    """Judge every cell that is not among `done` (by fingerprint), and store each record as it is made."""
    result = RunResult(planned=len(cells))
    environment = {**workers[0].environment, "git": git_state(Path.cwd())}
    there = dict(done or {})
    judging = _Judging(options, watcher, environment, uuid.uuid4().hex[:12], store, there)
    fingerprints = [cell.fingerprint(options) for cell in cells]
    left = [cell for cell, fingerprint in zip(cells, fingerprints, strict=True) if fingerprint not in there]
    try:
        with interruptible() as interruption:
            if len(workers) == 1:
                judging.one_by_one(left, workers[0])
            else:
                judging.together(left, workers)
        result.interrupted_by = interruption.by
    except (WorkerError, RecordsLost) as error:  # what was judged before is to be reported first
        result.failed = error
    result.records = [there[fingerprint] for fingerprint in fingerprints if fingerprint in there]
    return result


@dataclass
class _Judging:
    """What the cells of a run have in common, and their records by fingerprint (`there`)."""

    options: JudgeOptions
    watcher: Watcher
    environment: Mapping[str, object]
    run: str
    store: RecordStore | None
    there: dict[str, CellRecord]
    diagnosed: Counter[str] = field(default_factory=Counter)

    def one_by_one(self, cells: Sequence[Cell], workers: Workers) -> None:
        """Judge the cells in their order; the watcher is told of every stage."""
        for cell in cells:
            self.watcher.begin(cell)
            self._conclude(cell, self._ask(workers, cell, self.watcher.stage))

    def together(self, cells: Sequence[Cell], workers: Sequence[Workers]) -> None:
        """Judge the cells by several workers at a time; the watcher is told of what is done alone.

        A cell that found too little memory is judged again when all others are done, which may have had it: by fewer
        workers, and by one in the end.
        """
        while cells:
            short = []
            with closing(side_by_side(cells, workers, self._ask_in_silence)) as made:
                for cell, record in made:
                    if len(workers) > 1 and wants_memory(record):
                        short.append(cell)
                    else:
                        self._conclude(cell, record)
            cells, workers = short, workers[: max(len(workers) // FEWER, 1)]

    def _ask_in_silence(self, workers: Workers, cell: Cell) -> CellRecord:
        return self._ask(workers, cell, lambda stage: None)

    def _ask(self, workers: Workers, cell: Cell, on_stage: Callable[[str], None]) -> CellRecord:
        known = expectation_of(cell.target.name, cell.path, cell.scenario.expect) is not None  # it says why itself
        often = self.diagnosed[cell.target.name] >= DIAGNOSED_A_BACKEND
        job = replace(cell.job(self.options), diagnose=not (known or often))
        record = workers.judge(job, cell.target.compile_seconds, on_stage)
        if record.verdict.is_wrong and often and not known:
            record.warnings.append(NOT_DIAGNOSED)
        return record

    def _conclude(self, cell: Cell, record: CellRecord) -> None:
        """Complete a record and store it."""
        self.diagnosed[cell.target.name] += record.verdict.is_wrong
        cell.describe(record, self.options, dict(self.environment), self.run)
        apply_expectation(record, cell.scenario.expect)
        with signals_wait():  # a record is in the file and in the table, or in neither
            if self.store is not None:
                self.store.append(record)
            self.there[record.fingerprint] = record
        self.watcher.end(record)
