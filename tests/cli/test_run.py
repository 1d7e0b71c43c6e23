"""The main job as a user runs it, once, with real workers; and what the command line does beside judging."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from pagedbench.cli.options import BACKEND_NAMES, complete_backend, complete_path, complete_scenario
from pagedbench.results.store import read_records
from pagedbench.words import Verdict

from .conftest import Command


def pagedbench(*arguments: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pagedbench", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def test_the_main_job_from_any_folder(tmp_path: Path) -> None:
    done = pagedbench(
        "run", "docs-decode", "docs-varlen", "--device", "cpu", "--json", "records.jsonl", "--max-seconds", 0.05,
        cwd=tmp_path, NO_COLOR="1",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    records = read_records(tmp_path / "records.jsonl")
    assert [(r.scenario, r.path, r.verdict) for r in records] == [
        ("docs-decode", "varlen", Verdict.PASS),
        ("docs-decode", "decode", Verdict.PASS),
        ("docs-varlen", "varlen", Verdict.PASS),
        ("docs-varlen", "decode", Verdict.SKIPPED),
    ]
    assert records[3].message.startswith("decode cannot take prefill")
    assert "decode cannot take prefill" in done.stdout
    assert "\x1b[" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert all(r.time_us and r.gb_per_s and r.work and r.environment["torch"] for r in records[:3])
    assert "docs-decode" in records[0].scenario_text
    assert os.path.expanduser("~") + os.sep not in (tmp_path / "records.jsonl").read_text()


def test_records_are_read_by_pandas_in_one_line(tmp_path: Path) -> None:
    done = pagedbench("run", "docs-varlen", "--no-timing", "--device", "cpu", "--json", "records.jsonl", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    table = pd.read_json(tmp_path / "records.jsonl", lines=True)
    assert list(table.groupby("verdict").size().items()) == [("PASS", 1), ("SKIPPED", 1)]


def test_the_total_is_timed_on_a_cpu_where_it_is_asked_for(tmp_path: Path) -> None:
    """It is more than the call by what is planned; only graphs are a GPU's own."""
    done = pagedbench(
        "run", "docs-decode", "--backend", "torch:decode", "--device", "cpu", "--max-seconds", "0.02",
        "--quantities", "graph,call,total", "--json", "records.jsonl", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (record,) = read_records(tmp_path / "records.jsonl")
    assert list((record.timing or {})["quantities"]) == ["kernel", "call", "plan", "total"]
    assert "total" in done.stdout


def test_help_names_every_command_and_imports_no_torch() -> None:
    script = (
        "import sys; from typer.testing import CliRunner; from pagedbench.cli.app import COMMANDS, app\n"
        "out = CliRunner().invoke(app, ['--help']).output\n"
        "missing = [c for c in COMMANDS if c not in out]\n"
        "heavy = {'torch', 'pandas', 'pydantic', 'yaml', 'matplotlib', 'numpy'} & set(sys.modules)\n"
        "sys.exit(f'{missing} {heavy}' if missing or heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_completion_is_for_the_command_however_the_tool_is_begun(tmp_path: Path) -> None:
    """`python -m pagedbench` is no name for a function of the shell."""
    done = pagedbench("--show-completion", "bash", cwd=tmp_path, SHELL="/bin/bash")
    assert "_PAGEDBENCH_COMPLETE=complete_bash" in done.stdout
    assert "python -m" not in done.stdout


def test_completion_knows_scenarios_folders_backends_and_paths() -> None:
    assert "docs-decode" in complete_scenario("docs-")
    assert "edge" in complete_scenario("ed")
    assert complete_backend("torch-") == ["torch-varlen"]
    assert complete_path("paged") == ["paged-varlen"]


def test_the_names_that_are_completed_are_the_backends_there_are() -> None:
    from pagedbench.backends.registry import OWN

    assert set(BACKEND_NAMES) == set(OWN)


@pytest.mark.parametrize(("cells", "told"), [(10, 0), (12, 1)])
def test_failures_beyond_the_ten_that_are_diagnosed_are_said_once(command: Command, cells: int, told: int) -> None:
    ended = command("check", scenarios=["mismatch"], extra=f"matrix: {{inputs.seed: {list(range(cells))}}}\n")
    text = " ".join(ended.out.split())
    assert text.count("not diagnosed: 10 failures of the backend were before") == told
    assert ("inputs.seed=10] torch:decode, mismatch[inputs.seed=11] torch:decode)" in text) == bool(told)
