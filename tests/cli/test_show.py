"""`pagedbench show` as a user meets it: fast, plain in a pipe, whole as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from pagedbench.cli.app import app

SHOW_WITHOUT_TORCH = """
import sys
from pagedbench.cli.app import app
app(["show", "docs-decode"], standalone_mode=False)
print("torch" in sys.modules, file=sys.stderr)
"""


def test_never_imports_torch() -> None:
    done = subprocess.run([sys.executable, "-c", SHOW_WITHOUT_TORCH], capture_output=True, text=True, check=True)
    assert done.stderr.split() == ["False"]
    assert "so a second block is needed" in done.stdout
    assert "\x1b" not in done.stdout


def test_json_goes_to_stdout_one_object_a_scenario() -> None:
    result = CliRunner().invoke(app, ["show", "docs-decode", "docs-varlen", "--json"])
    assert result.exit_code == 0
    decode, varlen, *_ = (json.loads(line) for line in result.stdout.splitlines())
    assert decode["block_table"] == [[2, -1, -1, -1], [0, 1, -1, -1], [3, 5, 6, -1]]
    assert varlen["cu_seqlens_k"] == [0, 0, 1, 8]


def test_several_scenarios_are_told_apart() -> None:
    result = CliRunner().invoke(app, ["show", "docs-decode", "docs-varlen"])
    assert "docs-decode" in result.stdout
    assert "\n" + "─" * 100 + "\n" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 100


@pytest.mark.parametrize("ascii_only", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "POSIX"}], ids=str)
def test_an_output_without_the_drawings_characters_gets_others_and_no_traceback(ascii_only: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pagedbench", "show", "docs-decode"],
        env={**os.environ, **ascii_only, "PYTHONUTF8": "0"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"2 ######+. 30+1 " in done.stdout
    assert b"# seen keys  : keys no row sees  + new tokens  . tail" in done.stdout
    assert b"31 <= 32, so the new token fits" in done.stdout
