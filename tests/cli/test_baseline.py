"""`baseline` and `check --baseline`: three processes, a refusal elsewhere, exit 4 only beyond doubt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagedbench.results.record import CellRecord
from pagedbench.runner.protocol import Job, ResolvedTarget
from pagedbench.words import Verdict

from .conftest import Command, FakeWorkers


class Timer:
    """How long the kernel takes, in µs, and on which GPU; a fresh process is a fresh draw of luck."""

    kernel_us = 100.0
    gpu = "NVIDIA H200"
    process = 0


class TimedWorkers(FakeWorkers):
    def __init__(self, options: object) -> None:
        Timer.process += 1
        self.rng = np.random.default_rng(Timer.process)
        self.environment = {"gpu": Timer.gpu}
        self.luck = self.rng.normal(1, 0.002)

    def judge(self, job: Job, compile_seconds: float, on_stage: Callable[[str], None]) -> CellRecord:
        record = super().judge(job, compile_seconds, on_stage)
        if job.timing is not None and record.verdict is Verdict.PASS:
            samples = Timer.kernel_us * 1e3 * self.luck * self.rng.normal(1, 0.01, 100)
            median = float(np.median(samples))
            kernel: dict[str, Any] = {"samples": samples.tolist(), "median": median, "low": median, "high": median}
            record.timing = {"quantities": {"kernel": kernel}, "invalid": None}
            record.time_us = float(np.median(samples)) / 1e3
        return record


@pytest.fixture
def timed(command: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command line with a kernel that takes 100 µs."""
    monkeypatch.setattr("pagedbench.cli.judging.Workers", TimedWorkers)
    monkeypatch.setattr(Timer, "kernel_us", 100.0)
    monkeypatch.setattr(Timer, "gpu", "NVIDIA H200")
    return command


def saved(timed: Command) -> None:
    ended = timed("baseline", "save", "main", "right.yaml", scenarios=["right"])
    assert ended.code == 0, ended.err
    assert Path("results/baselines/main.jsonl").exists()


def test_no_baseline_is_made_of_a_run_that_ended_for_want_of_a_worker(timed: Command) -> None:
    ended = timed("baseline", "save", "main", scenarios=["right", "no-worker"])
    assert ended.code == 5
    assert "error: the worker process does not start" in ended.err
    assert not Path("results/baselines/main.jsonl").exists()


def test_a_baseline_without_times_says_so(command: Command) -> None:
    command("check", "--json", "records.jsonl", scenarios=["right"])
    ended = command("baseline", "save", "main", "records.jsonl")
    assert (ended.code, "none is timed: it holds verdicts alone" in ended.out) == (0, True)


def test_a_baseline_holds_three_processes(timed: Command) -> None:
    saved(timed)
    lines = Path("results/baselines/main.jsonl").read_text().splitlines()
    assert len({CellRecord.from_json(line).run for line in lines}) == 3


def test_a_baseline_holds_the_paths_that_check_takes(timed: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Sequence[str]] = []
    resolve = TimedWorkers.resolve

    def note(workers: TimedWorkers, targets: Sequence[str], paths: Sequence[str]) -> list[ResolvedTarget]:
        asked.append(tuple(paths))
        return resolve(workers, targets, paths)

    monkeypatch.setattr(TimedWorkers, "resolve", note)
    saved(timed)
    timed("check", "--baseline", "main", scenarios=["right"])
    assert set(asked) == {("all",)}


def test_4_slower_beyond_doubt(timed: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(timed)
    monkeypatch.setattr(Timer, "kernel_us", 105.0)
    ended = timed("check", "--baseline", "main", scenarios=["right"])
    assert ended.code == 4, ended.out + ended.err
    assert "slower beyond the margin" in " ".join(ended.out.split())


def test_0_identical_code_is_not_slower_and_faster_is_no_failure(
    timed: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(timed)
    assert timed("check", "--baseline", "main", scenarios=["right"]).code == 0
    monkeypatch.setattr(Timer, "kernel_us", 90.0)
    ended = timed("check", "--baseline", "main", scenarios=["right"])
    assert ended.code == 0
    assert "1 faster" in ended.out


def test_1_wrong_comes_before_slower(timed: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(timed)
    monkeypatch.setattr(Timer, "kernel_us", 200.0)
    assert timed("check", "--baseline", "main", scenarios=["right", "mismatch"]).code == 1


def test_2_another_environment_is_refused_before_a_cell_is_judged(
    timed: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(timed)
    monkeypatch.setattr(Timer, "gpu", "NVIDIA A100")
    ended = timed("check", "--baseline", "main", scenarios=["right"])
    assert ended.code == 2
    assert "gpu: NVIDIA H200 → NVIDIA A100" in ended.err
    assert ended.out == ""


def test_a_slower_cell_shows_in_the_reports_and_has_one_row_however_many_processes(
    timed: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(timed)
    monkeypatch.setattr(Timer, "kernel_us", 105.0)
    assert timed("check", "--baseline", "main", "--markdown", "out.md", scenarios=["right"]).code == 4
    text = Path("out.md").read_text()
    assert text.startswith("### ❌ pagedbench: 1 requirement not met; the cell passed")
    assert "right torch:decode is slower than the baseline: new/old 1.0" in text


def test_2_another_gpu_is_refused_unless_asked_for(timed: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(timed)
    monkeypatch.setattr(Timer, "gpu", "NVIDIA H100")
    refused = timed("check", "--baseline", "main", scenarios=["right"])
    assert refused.code == 2
    assert "gpu: NVIDIA H200 → NVIDIA H100" in refused.err
    assert timed("check", "--baseline", "main", "--across", scenarios=["right"]).code == 0


def test_2_a_baseline_that_is_not_there(timed: Command) -> None:
    ended = timed("check", "--baseline", "nightly", scenarios=["right"])
    assert ended.code == 2
    assert "pagedbench baseline save" in ended.err


def test_2_a_wrong_name_is_refused_before_anything_is_timed(timed: Command) -> None:
    for action, name in (("save", "../main"), ("compare", "nightly")):
        before = Timer.process
        assert timed("baseline", action, name, scenarios=["right"]).code == 2
        assert Timer.process == before


def test_2_what_cannot_be_written_is_refused_before_anything_is_timed(timed: Command) -> None:
    Path("results").write_text("no folder")
    before = Timer.process
    ended = timed("baseline", "save", "main", scenarios=["right"])
    assert (ended.code, ended.out) == (2, "")
    assert "cannot write results/baselines/main.jsonl" in ended.err
    assert Timer.process == before


def test_2_a_baseline_that_is_cut_off_is_refused_before_a_cell_is_judged(timed: Command) -> None:
    saved(timed)
    file = Path("results/baselines/main.jsonl")
    file.write_text(file.read_text()[:-100])
    before = Timer.process
    for words in (("check", "--baseline", "main"), ("baseline", "compare", "main")):
        ended = timed(*words, scenarios=["right"])
        assert ended.code == 2
        assert "main.jsonl: its last record is cut off" in ended.err
    assert Timer.process == before


def test_records_in_gzip_make_a_baseline(timed: Command) -> None:
    for number in range(3):
        timed("run", "--json", f"old{number}.jsonl.gz", scenarios=["right"])
    assert timed("baseline", "save", "main", *(f"old{number}.jsonl.gz" for number in range(3))).code == 0


def test_records_can_be_saved_and_compared_without_a_run(timed: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        timed("run", "--json", f"old{number}.jsonl", scenarios=["right"])
    timed("baseline", "save", "main", "old0.jsonl", "old1.jsonl", "old2.jsonl")
    monkeypatch.setattr(Timer, "kernel_us", 110.0)
    for number in range(3):
        timed("run", "--json", f"new{number}.jsonl", scenarios=["right"])
    assert timed("baseline", "compare", "main", "new0.jsonl", "new1.jsonl", "new2.jsonl").code == 4
    assert timed("baseline", "list").out.split() == ["main"]
