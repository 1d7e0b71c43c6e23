"""A run that is told to end ends quietly with what it has done; what found too little memory is judged again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from pagedbench.results.record import CellRecord
from pagedbench.runner.cells import Cell, JudgeOptions, plan
from pagedbench.runner.protocol import Job, ResolvedTarget
from pagedbench.runner.session import run_cells
from pagedbench.runner.signals import (
    Interrupted,
    ending_signals_interrupt,
    ignore_repeated,
    interruptible,
    signals_wait,
)
from pagedbench.scenario.loader import loads
from pagedbench.words import Verdict


@pytest.fixture(autouse=True)
def handler_kept() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def told_to_end() -> None:
    signal.raise_signal(signal.SIGTERM)


def test_a_second_signal_while_winding_up_is_ignored() -> None:
    done = []

    def run() -> None:
        try:
            told_to_end()
        finally:
            told_to_end()
            done.append("wound up")

    with pytest.raises(Interrupted), ending_signals_interrupt():
        run()
    told_to_end()  # after the block, while the report is printed
    assert done == ["wound up"]


def test_one_that_comes_much_later_ends_the_process() -> None:
    code = (
        "import signal, time\n"
        "from pagedbench.runner import signals\n"
        "signals.ECHO_SECONDS = dict.fromkeys(signals.ECHO_SECONDS, 0.0)\n"
        "try:\n"
        "    with signals.ending_signals_interrupt():\n"
        "        signal.raise_signal(signal.SIGTERM)\n"
        "except signals.Interrupted:\n"
        "    time.sleep(0.01)\n"
        "    signal.raise_signal(signal.SIGTERM)\n"
        "print('never')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "")


def test_a_lock_that_complains_of_the_interruption_does_not_hide_it() -> None:
    def wait_on_a_lock() -> None:
        try:
            told_to_end()
        except Interrupted:
            raise RuntimeError("release unlocked lock") from None

    with pytest.raises(Interrupted), ending_signals_interrupt():
        wait_on_a_lock()


def test_errors_of_the_program_stay_themselves() -> None:
    with pytest.raises(RuntimeError, match="its own"), ending_signals_interrupt():
        raise RuntimeError("its own")


def test_without_a_signal_the_handler_is_what_it_was() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with ending_signals_interrupt():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_block_that_a_signal_ends_says_which_and_what_follows_is_done(number: signal.Signals) -> None:
    with interruptible() as interruption:
        signal.raise_signal(number)
    assert interruption.by is number


def test_an_interrupted_block_within_another_goes_on_to_ignore_the_repeated_signal() -> None:
    with interruptible() as outer:
        with interruptible() as inner:
            told_to_end()
        told_to_end()
    told_to_end()
    assert (inner.by, outer.by) == (signal.SIGTERM, None)


def test_signals_wait_for_the_end_of_a_block_whichever_thread_they_reach() -> None:
    told: list[str] = []
    ended = threading.Event()
    threading.Thread(target=ended.wait, daemon=True).start()

    def run() -> None:
        with signals_wait():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.05)
            told.append("whole")
        told.append("never")

    with pytest.raises(Interrupted), ending_signals_interrupt():
        run()
    ended.set()
    assert told == ["whole"]


def test_after_signals_wait_the_handlers_are_what_they_were() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with signals_wait():
        assert signal.getsignal(signal.SIGINT) is not before[0]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_presses_ctrl_c_twice_tears_nothing_of_what_is_brought_home(number: signal.Signals) -> None:
    with interruptible() as interruption:
        signal.raise_signal(number)
    signal.raise_signal(number)
    signal.raise_signal(number)
    assert interruption.by is number


def test_a_program_started_without_ctrl_c_has_it_so() -> None:
    code = (
        "import signal\n"
        "from pagedbench.runner.signals import interruptible\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "with interruptible() as interruption:\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "print(interruption.by)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "None\n"


class Crowded:
    """A worker to whose cells memory is short until nobody else is at work."""

    environment: dict[str, object] = {}

    def __init__(self, at_work: list[str]) -> None:
        self.at_work = at_work

    def kill(self) -> None:
        raise AssertionError("nothing has to be ended")

    def judge(self, job: Job, compile_seconds: float, on_stage: Callable[[str], None]) -> CellRecord:
        self.at_work.append(job.scenario.name)
        first = self.at_work.count(job.scenario.name) == 1
        short = first and "seed=2" in job.scenario.name
        verdict = Verdict.SKIPPED if short else Verdict.PASS
        message = "needs 9.0 GiB of memory, 1.0 GiB are free" if short else ""
        return CellRecord(job.scenario.name, job.backend, job.path, job.device, verdict, message)


class Silent:
    def begin(self, cell: Cell) -> None: ...
    def stage(self, name: str) -> None: ...
    def end(self, record: CellRecord) -> None: ...


def test_a_cell_that_is_asked_for_twice_is_judged_once() -> None:
    scenarios = loads(
        "name: one\nbatch: {query_lens: [1], cached_lens: [5]}\ncache: {block_size: 4}\n"
        "attention: {num_heads: 4, num_kv_heads: 2, head_dim: 16}\n"
    )
    targets = [ResolvedTarget("a", paths, available=True) for paths in (("decode",), ("varlen", "decode"))]
    assert [cell.label for cell in plan(scenarios, targets)] == ["one a:decode", "one a:varlen"]


def test_a_cell_that_found_too_little_memory_beside_others_is_judged_again_behind_them() -> None:
    scenarios = loads(
        "name: small\nbatch: {query_lens: [1], cached_lens: [5]}\ncache: {block_size: 4}\n"
        "attention: {num_heads: 4, num_kv_heads: 2, head_dim: 16}\nmatrix: {inputs.seed: [1, 2, 3, 4]}\n"
    )
    cells = plan(scenarios, [ResolvedTarget("a", ("decode",), available=True)])
    at_work: list[str] = []
    workers = [Crowded(at_work), Crowded(at_work)]
    result = run_cells(cells, workers, JudgeOptions("check", "quick", "cpu"), Silent())  # type: ignore[arg-type]
    assert [record.verdict for record in result.records] == [Verdict.PASS] * 4
    assert [record.scenario for record in result.records] == [scenario.name for scenario in scenarios]
    assert (len(at_work), at_work[-1]) == (5, "small[inputs.seed=2]")


def test_what_is_short_of_memory_beside_many_is_judged_by_fewer_and_by_one_in_the_end() -> None:
    asked: list[tuple[int, str]] = []

    class AlwaysShort(Crowded):
        def judge(self, job: Job, compile_seconds: float, on_stage: Callable[[str], None]) -> CellRecord:
            asked.append((id(self), job.scenario.name))
            message = "needs 9.0 GiB of memory, 1.0 GiB are free"
            return CellRecord(job.scenario.name, job.backend, job.path, job.device, Verdict.SKIPPED, message)

    scenarios = loads(
        "name: large\nbatch: {query_lens: [1], cached_lens: [5]}\ncache: {block_size: 4}\n"
        "attention: {num_heads: 4, num_kv_heads: 2, head_dim: 16}\nmatrix: {inputs.seed: [1, 2, 3]}\n"
    )
    cells = plan(scenarios, [ResolvedTarget("a", ("decode",), available=True)])
    workers = [AlwaysShort([]) for _ in range(8)]
    result = run_cells(cells, workers, JudgeOptions("check", "quick", "cpu"), Silent())  # type: ignore[arg-type]
    assert [record.message for record in result.records] == ["needs 9.0 GiB of memory, 1.0 GiB are free"] * 3
    rounds = [{worker for worker, _ in asked[start : start + 3]} for start in (0, 3, 6)]
    assert len(asked) == 9
    assert rounds[1] <= {id(worker) for worker in workers[:2]}
    assert rounds[2] == {id(workers[0])}


def test_a_signal_after_the_last_word_does_not_change_the_exit_code() -> None:
    with interruptible():
        signal.raise_signal(signal.SIGINT)
    ignore_repeated()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_program_that_was_not_interrupted_can_be() -> None:
    with interruptible():
        pass
    ignore_repeated()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
