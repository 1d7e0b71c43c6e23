"""The command line in this process, with workers that judge by the scenario's name: exit codes without torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pagedbench.errors import UsageError
from pagedbench.results.record import CellRecord
from pagedbench.runner.pool import WorkerError
from pagedbench.runner.protocol import Job, ResolvedTarget
from pagedbench.words import Verdict

SCENARIO = """
name: {name}
batch: {{query_lens: [1], cached_lens: [5]}}
cache: {{block_size: 4}}
attention: {{num_heads: 4, num_kv_heads: 2, head_dim: 16}}
"""


class FakeWorkers:
    """Judges a cell as its scenario is called: `mismatch` is MISMATCH, `no-reference` NO REFERENCE, `right` PASS;
    at `no-worker` there is none to be had."""

    device = "cpu"
    environment: dict[str, Any] = {"torch": "none"}

    def __init__(self, options: object) -> None:
        pass

    def __enter__(self) -> FakeWorkers:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def close(self) -> None:
        pass

    def wait(self) -> None:
        pass

    def resolve(self, targets: Sequence[str], paths: Sequence[str]) -> list[ResolvedTarget]:
        if "torhc" in targets:
            raise UsageError("there is no backend 'torhc'", "did you mean torch?")
        return [ResolvedTarget(name, ("decode",), available=True) for name in targets or ("torch",)]

    def require_known(self, targets: Sequence[str]) -> None:
        self.resolve(targets, ())

    def judge(self, job: Job, compile_seconds: float, on_stage: Callable[[str], None]) -> CellRecord:
        on_stage("the check accuracy")
        name = job.scenario.name.partition("[")[0]
        if name == "interrupted":
            raise KeyboardInterrupt
        if name == "no-worker":
            raise WorkerError("the worker process does not start: no processes are left")
        verdict = {"right": Verdict.PASS, "blind": Verdict.PASS}.get(name) or Verdict(name.upper().replace("-", " "))
        record = CellRecord(job.scenario.name, job.backend, job.path, job.device, verdict, f"is {name}")
        if name == "blind":
            record.warnings.append("BLIND: one block a sequence")
        return record


@dataclass
class Ended:
    """How the command ended."""

    code: int
    out: str
    err: str


Command = Callable[..., Ended]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs the command line in the test's folder, where `NAME.yaml` is written for every scenario asked for."""
    from pagedbench.cli.app import main

    monkeypatch.setattr("pagedbench.cli.judging.Workers", FakeWorkers)
    monkeypatch.setenv("GITHUB_ACTIONS", "false")
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object, scenarios: Sequence[str] = (), extra: str = "") -> Ended:
        for name in scenarios:
            (tmp_path / f"{name}.yaml").write_text(SCENARIO.format(name=name) + extra)
        files = [f"{name}.yaml" for name in scenarios]
        monkeypatch.setattr(sys, "argv", ["pagedbench", *map(str, arguments), *files])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        return Ended(int(ended.value.code or 0), told.out, told.err)

    return run
