"""Several workers at a time: every cell is judged once, errors come out, and an end in the middle ends the workers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest

from pagedbench.results.record import CellRecord
from pagedbench.runner.cells import Cell, plan
from pagedbench.runner.parallel import side_by_side
from pagedbench.runner.protocol import ResolvedTarget
from pagedbench.scenario.loader import loads
from pagedbench.words import Verdict

SCENARIO = """
name: small
batch: {query_lens: [1], cached_lens: [5]}
cache: {block_size: 4}
attention: {num_heads: 4, num_kv_heads: 2, head_dim: 16}
matrix: {inputs.seed: [1, 2, 3, 4, 5, 6]}
"""
WAIT = 20  # seconds: reached by a test that fails only


class FakeWorker:
    """Answers as `ask` has it; `kill` lets go of what waits for it."""

    def __init__(self) -> None:
        self.killed = threading.Event()
        self.cells: list[Cell] = []

    def kill(self) -> None:
        self.killed.set()


def cells(*backends: str) -> list[Cell]:
    targets = [ResolvedTarget(name, ("decode",), available=True) for name in backends]
    return plan(loads(SCENARIO), targets)


def judged(cell: Cell) -> CellRecord:
    return CellRecord(cell.scenario.name, cell.target.name, cell.path, "cpu", Verdict.PASS)


def run(
    todo: list[Cell], workers: list[FakeWorker], ask: Callable[[FakeWorker, Cell], CellRecord]
) -> list[tuple[Cell, CellRecord]]:
    return list(side_by_side(todo, workers, ask))  # type: ignore[arg-type]


def test_every_cell_is_judged_once_and_comes_with_its_own_record() -> None:
    todo = cells("a", "b", "c")
    made = run(todo, [FakeWorker() for _ in range(4)], lambda worker, cell: judged(cell))
    assert sorted(cell.label for cell, _ in made) == sorted(cell.label for cell in todo)
    assert all((record.scenario, record.backend) == (cell.scenario.name, cell.target.name) for cell, record in made)


def test_they_work_at_the_same_time_each_on_a_backend_of_its_own_and_help_where_one_is_left() -> None:
    workers = [FakeWorker(), FakeWorker()]
    together = threading.Barrier(2, timeout=WAIT)  # breaks where one worker waits for the other's end

    def ask(worker: FakeWorker, cell: Cell) -> CellRecord:
        worker.cells.append(cell)
        together.wait()
        return judged(cell)

    run([*cells("a"), *cells("b")[:2]], workers, ask)
    first, second = sorted(([cell.target.name for cell in worker.cells] for worker in workers), key=str)
    assert (first, second) == (["a"] * 4, ["b", "b", "a", "a"])


def test_paths_of_a_scenario_stay_with_one_worker() -> None:
    workers = [FakeWorker(), FakeWorker()]
    together = threading.Barrier(2, timeout=WAIT)

    def ask(worker: FakeWorker, cell: Cell) -> CellRecord:
        worker.cells.append(cell)
        together.wait()
        return judged(cell)

    target = ResolvedTarget("a", ("varlen", "decode"), available=True)
    run(plan(loads(SCENARIO), [target]), workers, ask)
    for worker in workers:
        scenarios = [cell.scenario.name for cell in worker.cells]
        assert [cell.path for cell in worker.cells] == ["varlen", "decode"] * 3
        assert scenarios[::2] == scenarios[1::2]


def test_backends_do_not_all_come_to_the_largest_scenarios_at_one_time() -> None:
    made = run(cells("a", "b", "c"), [FakeWorker()], lambda worker, cell: judged(cell))
    seeds = {name: [cell.scenario.inputs.seed for cell, _ in made if cell.target.name == name] for name in "abc"}
    assert seeds == {"a": [1, 2, 3, 4, 5, 6], "b": [3, 4, 5, 6, 1, 2], "c": [5, 6, 1, 2, 3, 4]}


def test_what_compiles_longest_is_begun_first() -> None:
    quick, slow = cells("quick"), cells("slow")[:2]
    slow = [replace(cell, target=replace(cell.target, compile_seconds=9.0)) for cell in slow]
    made = run([*quick, *slow], [FakeWorker()], lambda worker, cell: judged(cell))
    assert [cell.target.name for cell, _ in made] == ["slow"] * 2 + ["quick"] * len(quick)


def test_what_a_worker_raises_is_raised_to_the_caller_and_ends_the_others() -> None:
    workers = [FakeWorker(), FakeWorker()]

    def ask(worker: FakeWorker, cell: Cell) -> CellRecord:
        if cell.target.name == "broken":
            raise ValueError("no worker can be had")
        assert worker.killed.wait(WAIT)
        return judged(cell)

    with pytest.raises(ValueError, match="no worker can be had"):
        run(cells("broken", "slow"), workers, ask)


def test_an_end_in_the_middle_ends_what_they_are_at_and_begins_nothing_more() -> None:
    workers, before = [FakeWorker(), FakeWorker()], threading.active_count()
    begun = []

    def ask(worker: FakeWorker, cell: Cell) -> CellRecord:
        begun.append(cell)
        if len(begun) > 1:
            assert worker.killed.wait(WAIT)
        return judged(cell)

    with closing(side_by_side(cells("a"), workers, ask)) as made:  # type: ignore[arg-type]
        next(made)
    assert len(begun) <= 3
    assert threading.active_count() == before
