"""The composite action: what it would run, tried with a stand-in for `pagedbench`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ACTION = yaml.safe_load((Path(__file__).parent.parent / "action.yml").read_text())
STEPS: dict[str, dict[str, Any]] = {step["name"]: step for step in ACTION["runs"]["steps"]}
STAND_IN = '#!/bin/sh\nprintf "%s\\n" "$@" > arguments\nexit ${CODE:-0}\n'


def run_check(folder: Path, code: int = 0, **inputs: str) -> tuple[int, list[str], str]:
    """Exit status, the arguments that `pagedbench` got, and the step's outputs."""
    program = folder / "bin" / "pagedbench"
    program.parent.mkdir()
    program.write_text(STAND_IN)
    program.chmod(0o755)
    defaults = {name: str(told.get("default", "")) for name, told in ACTION["inputs"].items()}
    given = {**defaults, **inputs}
    values = {
        name: given[expression.removeprefix("${{ inputs.").removesuffix(" }}")]
        for name, expression in STEPS["Check kernels"]["env"].items()
    }
    output = folder / "output"
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    environment = {"PATH": path, "GITHUB_OUTPUT": str(output), "CODE": str(code), **values}
    command = ["bash", "-eo", "pipefail", "-c", STEPS["Check kernels"]["run"]]
    done = subprocess.run(command, cwd=folder, env=environment, check=False)
    return done.returncode, (folder / "arguments").read_text().splitlines(), output.read_text()


def test_runs_check_with_annotations_and_all_reports(tmp_path: Path) -> None:
    status, arguments, output = run_check(tmp_path)
    assert status == 0
    assert arguments[:4] == ["check", "docs", "edge", "features"]
    assert "--suite full" in " ".join(arguments)  # what quick leaves out finds kernels that are noisy now and then
    assert "--github" in arguments
    assert "pagedbench-reports/junit.xml" in arguments
    assert output == "exit-code=0\n"
    assert (tmp_path / "pagedbench-reports").is_dir()


def test_passes_the_gates_exit_code_on(tmp_path: Path) -> None:
    status, _, output = run_check(tmp_path, code=4)
    assert status == 4
    assert output == "exit-code=4\n"


def test_several_backends_and_requirements(tmp_path: Path) -> None:
    _, arguments, _ = run_check(tmp_path, backend="torch kernel.py:my_decode", require="torch", baseline="main")
    line = " ".join(arguments)
    assert "--backend torch --backend kernel.py:my_decode --require torch --baseline main" in line


@pytest.mark.parametrize("evil", ["$(touch pwned)", "; touch pwned", "`touch pwned`"])
def test_inputs_are_never_a_part_of_the_script(tmp_path: Path, evil: str) -> None:
    run_check(tmp_path, scenarios=evil, backend=evil, baseline=evil, args=evil)
    assert not (tmp_path / "pwned").exists()


def test_patterns_are_left_to_pagedbench(tmp_path: Path) -> None:
    (tmp_path / "edge-file").touch()
    _, arguments, _ = run_check(tmp_path, scenarios="edge-*")
    assert arguments[1] == "edge-*"


def test_no_input_is_written_into_a_script() -> None:
    assert all("${{" not in step.get("run", "") for step in STEPS.values())
