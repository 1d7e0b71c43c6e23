"""A kernel that crashes, hangs or eats the memory costs its own cell; the end of the parent costs one at most."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from pagedbench.results.store import partial_path, read_records, read_unfinished
from pagedbench.words import ExitCode, Verdict

from .conftest import KERNELS, Start

Write = Callable[..., Path]


def backends(*functions: str) -> list[str]:
    return [part for name in functions for part in ("--backend", f"{KERNELS}:{name}_decode")]


@pytest.mark.slow
def test_five_bad_kernels_and_a_good_one_get_six_right_verdicts(
    start: Start, scenario_file: Write, tmp_path: Path
) -> None:
    bad = ("wrong", "segfault", "hanging", "aborting", "hungry")
    records = tmp_path / "records.jsonl"
    begun = time.monotonic()
    arguments = ("--timeout", 6, "--json", records, *backends(*bad, "good"))
    run = start("run", scenario_file("small"), "--no-timing", *arguments)
    out, err = run.communicate(timeout=100)
    assert time.monotonic() - begun < 60
    found = read_records(records)
    assert [r.verdict for r in found] == [
        Verdict.MISMATCH,
        Verdict.CRASHED,
        Verdict.TIMED_OUT,
        Verdict.CRASHED,
        Verdict.ERROR,
        Verdict.PASS,
    ], out + err
    segfault, hang, abort, hungry = found[1:5]
    assert segfault.message == "segmentation fault (SIGSEGV), in the check accuracy"
    assert "about to read address 0" in segfault.stderr
    assert hang.message == "no answer within 6 s, in the check accuracy"
    assert "in hanging_decode" in hang.stderr
    assert abort.message == "abort() was called (SIGABRT), in the check accuracy"
    assert "ran out of memory" in hungry.message
    assert run.returncode == ExitCode.WRONG


@pytest.mark.slow
def test_side_by_side_each_costs_its_own_cell_alone(start: Start, scenario_file: Write, tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"
    arguments = ("--timeout", 6, "--jobs", 3, "--json", records, *backends("segfault", "wrong", "aborting", "good"))
    run = start("check", scenario_file("one", "two"), *arguments)
    _, err = run.communicate(timeout=100)
    found = {(r.scenario, r.backend.rpartition(":")[2]): r.verdict for r in read_records(records)}
    verdicts = {
        "segfault_decode": Verdict.CRASHED,
        "wrong_decode": Verdict.FOOTPRINT,
        "aborting_decode": Verdict.CRASHED,
        "good_decode": Verdict.PASS,
    }
    assert found == {(name, function): verdicts[function] for name in ("one", "two") for function in verdicts}, err
    assert run.returncode == ExitCode.WRONG


@pytest.mark.slow
def test_a_worker_that_hears_of_no_signal_still_says_where_it_stood(
    start: Start, scenario_file: Write, tmp_path: Path
) -> None:
    records = tmp_path / "records.jsonl"
    arguments = ("--no-timing", "--timeout", 3, "--json", records, *backends("deaf"))
    start("run", scenario_file("small"), *arguments).communicate(timeout=60)
    (deaf,) = read_records(records)
    assert deaf.verdict is Verdict.TIMED_OUT
    assert "in deaf_decode" in deaf.stderr


def test_of_three_scenarios_the_middle_one_crashes_and_the_others_pass(
    start: Start, tmp_path: Path, scenario_file: Write
) -> None:
    """H22: one illegal access must not fail everything after it."""
    kernel = tmp_path / "picky.py"
    kernel.write_text(
        "import os\n"
        f"import importlib.util as u\nspec = u.spec_from_file_location('kernels', {str(KERNELS)!r})\n"
        "kernels = u.module_from_spec(spec)\nspec.loader.exec_module(kernels)\n"
        "def picky_decode(q, k_cache, v_cache, block_table, total_seqlens, softmax_scale, call):\n"
        "    if call.spec.num_heads == 8:\n        os.abort()\n"
        "    return kernels.good_decode(q, k_cache, v_cache, block_table, total_seqlens, softmax_scale)\n"
    )
    file = scenario_file("a", "b", "c")
    file.write_text(file.read_text().replace("name: b", "name: b", 1))
    documents = file.read_text().split("---")
    documents[1] = documents[1].replace("num_heads: 4", "num_heads: 8")
    file.write_text("---".join(documents))
    records = tmp_path / "records.jsonl"
    run = start("run", file, "--no-timing", "--backend", f"{kernel}:picky_decode", "--json", records)
    out, err = run.communicate(timeout=60)
    found = {r.scenario: r.verdict for r in read_records(records)}
    assert found == {"a": Verdict.PASS, "b": Verdict.CRASHED, "c": Verdict.PASS}, out + err
    assert run.returncode == ExitCode.UNDECIDED


def _family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def _wait_for_records(file: Path, count: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if len(read_unfinished(partial_path(file))) >= count:
            return
        time.sleep(0.05)
    raise AssertionError(f"{count} records did not come")


def _assert_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=5)
    assert not alive


@pytest.mark.parametrize("command", [("run", "--no-timing"), ("check", "--jobs", 3)], ids=["alone", "jobs"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_complete_records_a_table_and_no_orphans(
    start: Start, scenario_file: Write, tmp_path: Path, number: signal.Signals, command: tuple[object, ...]
) -> None:
    records = tmp_path / "records.jsonl"
    names = [f"s{i}" for i in range(40)]
    run = start(*command, scenario_file(*names), "--json", records, *backends("slow"))
    _wait_for_records(records, 1)
    family = _family(run)
    assert family
    os.kill(run.pid, number)
    out, err = run.communicate(timeout=30)
    assert run.returncode == 128 + number, err
    done = read_records(records)
    assert 1 <= len(done) < 40
    assert not partial_path(records).exists()
    assert all(record.scenario in out for record in done)
    assert f"interrupted by {number.name}: {len(done)} of 40 cells were done; --resume goes on from there" in err
    _assert_gone(family)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_a_kernels_file_is_loaded_is_told_and_leaves_no_orphan(
    start: Start, scenario_file: Write, tmp_path: Path, number: signal.Signals
) -> None:
    kernel = tmp_path / "endless.py"
    kernel.write_text(
        "import os, subprocess\nfrom pathlib import Path\n\n"
        "child = subprocess.Popen(['sleep', '1000'])\n"
        "Path(__file__).with_name('pids').write_text(f'{os.getpid()} {child.pid}')\n"
        f"os.kill(os.getppid(), {int(number)})\nwhile True:\n    pass\n"
    )
    run = start("check", scenario_file("small"), "--backend", f"{kernel}:my_decode")
    _, err = run.communicate(timeout=60)
    assert run.returncode == 128 + number, err
    assert err.splitlines()[-1] == f"interrupted by {number.name}: what is not shown above was not done"
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    deadline = time.monotonic() + 5
    while any(map(_runs, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(_runs, pids))


def _runs(pid: int) -> bool:
    """Whether there is such a process that is not only waiting for somebody to ask how it ended."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_kill_9_loses_the_cell_in_flight_and_resume_goes_on(start: Start, scenario_file: Write, tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"
    names = [f"s{i}" for i in range(4)]
    arguments = ("run", scenario_file(*names), "--no-timing", "--json", records, *backends("slow"))
    run = start(*arguments)
    _wait_for_records(records, 1)
    family = _family(run)
    run.kill()
    run.communicate(timeout=10)
    _assert_gone(family)
    kept = read_unfinished(records)
    assert 1 <= len(kept) < 4

    again = start(*arguments, "--resume")
    out, err = again.communicate(timeout=60)
    assert again.returncode == ExitCode.OK, err
    finished = read_records(records)
    assert sorted(r.scenario for r in finished) == names
    assert [r.run for r in finished[: len(kept)]] == [r.run for r in kept]
    assert "4 cells: 4 PASS" in out
