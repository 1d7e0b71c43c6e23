"""The parent's side: it needs no torch, resolves names through the worker, and keeps a verdict once reached."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from pagedbench.errors import UsageError
from pagedbench.results.record import CellRecord
from pagedbench.runner.pool import WorkerError, WorkerOptions, Workers
from pagedbench.runner.process import WorkerProcess
from pagedbench.runner.protocol import Job
from pagedbench.scenario.loader import loads
from pagedbench.words import Verdict

from .conftest import KERNELS, SCENARIO


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    """One worker for all tests of this file: a start costs seconds."""
    with Workers(WorkerOptions("cpu", timeout=30)) as running:
        yield running


def judge(workers: Workers, backend: str, **job: object) -> CellRecord:
    scenario = loads(SCENARIO.format(name="small"))[0]
    return workers.judge(Job(scenario, backend, "decode", "cpu", "run", **job), 0.0, lambda stage: None)  # type: ignore[arg-type]


def test_the_parent_never_imports_torch() -> None:
    script = textwrap.dedent(
        """
        import sys
        import pagedbench.cli.judging, pagedbench.cli.run, pagedbench.cli.check, pagedbench.cli.baseline
        import pagedbench.report.table, pagedbench.results.baseline
        from pagedbench.scenario.loader import load_scenarios
        load_scenarios(["docs"])
        heavy = {"torch", "pandas", "matplotlib"} & set(sys.modules)
        sys.exit(f"imported {heavy}" if heavy else 0)
        """
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_environment_names_versions_and_no_machine(workers: Workers) -> None:
    import platform

    assert workers.device == "cpu"
    assert {"python", "torch", "cpu", "cpu_threads", "libraries"} <= workers.environment.keys()
    assert platform.node() not in str(workers.environment)


def test_names_are_resolved_with_their_paths(workers: Workers) -> None:
    torch_backend, own = workers.resolve(["torch", f"{KERNELS}:good_decode"], [])
    assert torch_backend.paths == ("varlen", "decode")
    assert torch_backend.available
    assert own.paths == ("decode",)
    assert own.identity


def test_paths_can_be_named_for_all_or_for_one(workers: Workers) -> None:
    assert workers.resolve(["torch:decode"], ["varlen"])[0].paths == ("decode",)
    assert workers.resolve(["torch"], ["all"])[0].paths == ("varlen", "decode", "paged-varlen")
    assert workers.resolve([], ["paged-varlen"])[0].paths == ("paged-varlen",)


@pytest.mark.parametrize(
    ("targets", "paths", "complaint"),
    [
        (["torhc"], [], "torhc"),
        (["decode"], [], "names a path, no backend"),
        (["torch"], ["prefill"], "prefill"),
        (["no_such_file.py:f"], [], "no_such_file.py"),
    ],
)
def test_what_means_nothing_is_a_usage_error(
    workers: Workers, targets: list[str], paths: list[str], complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        workers.resolve(targets, paths)


def test_a_file_that_raises_what_ctrl_c_does_is_refused_with_its_place(workers: Workers, tmp_path: Path) -> None:
    file = tmp_path / "impatient.py"
    file.write_text("x = 1\nraise KeyboardInterrupt\n")
    with pytest.raises(UsageError) as refused:
        workers.resolve([f"{file}:f_decode"], [])
    assert refused.value.message == "KeyboardInterrupt, raised when it is imported (impatient.py:2)"


def test_what_a_file_changes_at_its_import_is_said_of_it_and_costs_no_worker_a_cell(tmp_path: Path) -> None:
    file = tmp_path / "doubles.py"
    file.write_text(KERNELS.read_text() + "\ntorch.set_default_dtype(torch.float64)\n")
    with Workers(WorkerOptions("cpu", timeout=30)) as running:
        (target,) = running.resolve([f"{file}:good_decode"], [])
        said = "the import of doubles.py leaves torch's default dtype changed, from torch.float32 to"
        assert [warning.startswith(said) for warning in target.warnings] == [True]
        assert judge(running, f"{file}:aborting_decode").verdict is Verdict.CRASHED
        first = judge(running, target.name)
        worker = running._process
        second = judge(running, target.name)
        assert running._process is worker, "imported anew by each of them otherwise"
        assert [(r.verdict, r.warnings) for r in (first, second)] == [(Verdict.PASS, [])] * 2


def test_a_library_that_ends_the_process_costs_its_own_cells_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "transformers.py").write_text("import os; os.abort()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Workers(WorkerOptions("cpu", timeout=30)) as running:
        broken, torch = running.resolve(["transformers:varlen", "torch"], [])
        assert (broken.paths, torch.paths) == (("varlen",), ("varlen", "decode"))
        record = judge(running, "transformers")
        assert record.verdict is Verdict.CRASHED
        assert "SIGABRT" in record.message
        assert judge(running, "torch").verdict is Verdict.PASS


def test_a_worker_is_reused_and_replaced_only_after_a_crash(workers: Workers) -> None:
    def pid() -> int:
        assert workers._process is not None
        return workers._process.pid

    assert judge(workers, "torch").verdict is Verdict.PASS
    first = pid()
    assert judge(workers, f"{KERNELS}:raising_decode").verdict is Verdict.ERROR
    assert pid() == first
    assert judge(workers, f"{KERNELS}:aborting_decode").verdict is Verdict.CRASHED
    assert judge(workers, "torch").verdict is Verdict.PASS
    assert pid() != first


def test_what_the_worker_prints_is_kept_with_the_cell_that_printed_it(workers: Workers) -> None:
    crashed = judge(workers, f"{KERNELS}:segfault_decode")
    assert "about to read address 0" in crashed.stderr
    assert "about to read" not in judge(workers, "torch").stderr


def test_of_long_output_the_last_whole_lines_are_kept(workers: Workers, tmp_path: Path) -> None:
    file = tmp_path / "chatty.py"
    file.write_text(
        "import os\n\n"
        "def chatty_decode(q):\n"
        "    for n in range(9999):\n        os.write(2, b'a line %d\\n' % n)\n    os.abort()\n"
    )
    first, *rest = judge(workers, f"{file}:chatty_decode").stderr.splitlines()
    assert first.startswith("a line ")
    assert len(rest) > 100


@pytest.mark.parametrize(
    "forged",
    [
        '{"event": "done", "record": {}}',
        '{"no": "event"}',
        '{"event": "stage", "name": 1}',
        '{"event": "stage", "name": "x", "allowance": "long"}',
    ],
)
def test_a_kernel_that_writes_into_its_workers_channel_costs_its_own_cell(
    workers: Workers, tmp_path: Path, forged: str
) -> None:
    file = tmp_path / "forger.py"
    file.write_text(
        "import os, stat\n\n"
        "def forger_decode(q):\n"
        "    for fd in range(3, 64):\n"
        "        try:\n"
        "            if stat.S_ISFIFO(os.fstat(fd).st_mode):\n"
        f"                os.write(fd, {forged.encode()!r} + b'\\n')\n"
        "        except OSError:\n"
        "            pass\n"
        "    return q * 0\n"
    )
    record = judge(workers, f"{file}:forger_decode")
    assert record.verdict is Verdict.CRASHED
    assert "sent what is no reply" in record.message
    assert judge(workers, "torch").verdict is Verdict.PASS


def test_a_crash_while_explaining_does_not_take_the_verdict_back(workers: Workers, tmp_path: Path) -> None:
    """A kernel that is wrong, and aborts when it is asked too often: the diagnosis does that."""
    file = tmp_path / "touchy.py"
    file.write_text(
        KERNELS.read_text() + "\ncalls = 0\n\n"
        "def touchy_decode(q, k_cache, v_cache, block_table, total_seqlens, softmax_scale):\n"
        "    global calls\n    calls += 1\n    if calls > 4:\n        os.abort()\n"
        "    return wrong_decode(q, k_cache, v_cache, block_table, total_seqlens, softmax_scale)\n"
    )
    record = judge(workers, f"{file}:touchy_decode")
    assert record.verdict is Verdict.MISMATCH
    assert "abort() was called (SIGABRT), in its diagnosis" in record.warnings


def test_a_crash_that_another_kernel_left_behind_names_that_one(workers: Workers, tmp_path: Path) -> None:
    file = tmp_path / "traps.py"
    file.write_text(
        KERNELS.read_text() + "\n\n"
        "def trap_decode(q, k_cache, v_cache, block_table, total_seqlens, softmax_scale):\n"
        "    torch.Tensor.repeat_interleave = lambda *arguments, **options: os.abort()\n"
        "    return q * 0\n"
    )
    assert judge(workers, f"{file}:trap_decode", diagnose=False).verdict is Verdict.MISMATCH
    victim = judge(workers, f"{KERNELS}:good_decode")
    assert victim.verdict is Verdict.CRASHED
    assert "abort() was called" in victim.message
    assert "; alone in a new worker it is PASS: perhaps the doing of " in victim.message
    assert f"{file}:trap_decode, judged in the same worker before" in victim.message
    assert judge(workers, "torch").verdict is Verdict.PASS


def test_a_crash_of_its_own_accuses_nobody_and_is_tried_alone_once() -> None:
    tries: list[str] = []
    scenario = loads(SCENARIO.format(name="small"))[0]
    crashing = Job(scenario, f"{KERNELS}:aborting_decode", "decode", "cpu", "run")
    with Workers(WorkerOptions("cpu", timeout=30)) as fresh:
        for expected in (2, 1):
            assert judge(fresh, "torch").verdict is Verdict.PASS
            tries.clear()
            record = fresh.judge(crashing, 0.0, tries.append)
            assert record.message == "abort() was called (SIGABRT), in the check accuracy"
            assert tries.count("the check accuracy") == expected


def test_a_crash_is_on_record_where_no_new_worker_can_be_had_to_try_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> WorkerProcess:
        raise WorkerError("the worker process does not start")

    with Workers(WorkerOptions("cpu", timeout=30)) as fresh:
        assert judge(fresh, "torch").verdict is Verdict.PASS
        monkeypatch.setattr(fresh, "_start", none)
        assert judge(fresh, f"{KERNELS}:aborting_decode").verdict is Verdict.CRASHED


def test_a_device_that_is_not_there_is_a_usage_error() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with Workers(WorkerOptions("cuda")) as workers, pytest.raises(UsageError, match="no CUDA device"):
        workers.resolve([], [])


def test_a_compiler_beside_others_gets_more_time_and_a_kernel_does_not() -> None:
    alone, crowded = WorkerOptions("cpu", timeout=10), WorkerOptions("cpu", timeout=10, at_a_time=8)
    assert (alone.seconds_for(0), crowded.seconds_for(0)) == (10, 10)
    assert (alone.seconds_for(100), crowded.seconds_for(100)) == (110, 310)


def test_a_worker_that_ends_between_two_cells_costs_neither(workers: Workers) -> None:
    assert judge(workers, "torch").verdict is Verdict.PASS
    assert workers._process is not None
    os.kill(workers._process.pid, signal.SIGKILL)
    record = judge(workers, "torch")
    assert record.verdict is Verdict.PASS
    (warning,) = [warning for warning in record.warnings if "a new worker" in warning]
    assert warning == (
        "judged by a new worker: killed (SIGKILL), most likely for want of memory, between a cell of torch and this one"
    )


def test_a_worker_that_ends_before_its_first_cell_costs_no_cell() -> None:
    with Workers(WorkerOptions("cpu", timeout=30)) as workers:
        workers.wait()
        assert workers._process is not None
        os.kill(workers._process.pid, signal.SIGKILL)
        record = judge(workers, "torch")
    assert record.verdict is Verdict.PASS
    (warning,) = [warning for warning in record.warnings if "a new worker" in warning]
    assert warning.endswith("killed (SIGKILL), most likely for want of memory, before its first cell")


def test_a_worker_that_ends_while_it_starts_is_started_again_once() -> None:
    with Workers(WorkerOptions("cpu", timeout=30)) as workers:
        workers.kill()
        assert workers.device == "cpu"


def test_workers_that_never_start_are_told_with_what_they_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    said = r"does not start: .* exited with status 1\n.*PYTHONHOME"
    with Workers(WorkerOptions("cpu")) as workers, pytest.raises(WorkerError, match=rf"(?s){said}"):
        workers.wait()
