"""The file that `new-backend` writes works as it stands."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from pagedbench.backends.execute import execute
from pagedbench.backends.files import load_backend
from pagedbench.backends.scaffold import text
from pagedbench.cli.app import app
from pagedbench.words import AttnPath

from .calls import Batch, make

CASES = {
    "the guide's batch": Batch((1, 1, 1), (30, 32, 70), block_size=32),
    "several tokens": Batch((3, 3), (0, 6)),
    "nothing appended": Batch((2, 2), (1, 6), append=False),
    "an empty sequence": Batch((1, 1), (0, 5), append=False),
    "infinite poison": Batch((1, 1), (3, 5), poison=math.inf),
    "MQA": Batch((1,), (9,), num_kv_heads=1),
    "rubbish in the table": replace(Batch((1, 1), (3, 9)), padding=1_000_000),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_right_in_the_corners(tmp_path: Path, case: str) -> None:
    file = tmp_path / "fresh.py"
    file.write_text(text("fresh"))
    made = make(CASES[case], AttnPath.DECODE)
    output = execute(load_backend(str(file), "fresh_decode"), made.call)
    torch.testing.assert_close(output.out.double(), made.out, rtol=1e-5, atol=1e-5)
    assert output.lse is not None
    torch.testing.assert_close(output.lse.double(), made.lse, rtol=1e-5, atol=1e-5)
    assert torch.equal(made.call.k_cache.view(torch.int32), made.k_after.view(torch.int32))


def test_it_runs_as_its_message_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written = CliRunner().invoke(app, ["new-backend", "my_kernel"])
    assert written.exit_code == 0, written.output
    assert "pagedbench run docs-decode --backend my_kernel.py:my_kernel_decode" in written.output
    assert load_backend("my_kernel.py", "my_kernel_decode").paths == (AttnPath.DECODE,)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("not-a-name", "letters, digits and _"),
        ("class", "letters, digits and _"),
        ("taken", "--force"),
        ("torch", "my_torch"),
        ("json", "my_json"),
        ("x" * 300, "where you may write"),
    ],
)
def test_it_overwrites_nothing_and_wants_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("taken.py").write_text("mine = 1\n")
    result = CliRunner().invoke(app, ["new-backend", name])
    assert words in getattr(result.exception, "hint", "")
    assert Path("taken.py").read_text() == "mine = 1\n"
