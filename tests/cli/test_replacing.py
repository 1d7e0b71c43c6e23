"""What is told of a file of comparisons or of trials that another one takes the place of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pagedbench.cli.replacing import Earlier, Identity, compared, of_comparison, of_trial, tried
from tests.report.comparisons import comparison

ONE, OTHER = (comparison(300, 100, name=name) for name in ("one", "other"))
TRIAL = {"fault": "a", "scenario": "s", "path": "decode", "failed": False}


@pytest.mark.parametrize(
    ("held", "told"),
    [
        ("", False),
        (ONE.to_json() + "\n", False),
        (f"{ONE.to_json()}\n{OTHER.to_json()}\n", True),
        ("a letter\n", True),
        (json.dumps(TRIAL) + "\n", True),
    ],
)
def test_comparisons(held: str, told: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(held, of_comparison, compared(ONE), tmp_path, capsys) == told


@pytest.mark.parametrize(
    ("held", "told"),
    [
        (json.dumps(TRIAL) + "\n", False),
        (json.dumps({**TRIAL, "fault": "b"}) + "\n", True),
        (ONE.to_json() + "\n", True),
        ("[]\n", True),
    ],
)
def test_trials(held: str, told: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(held, of_trial, tried(TRIAL), tmp_path, capsys) == told


def said(held: str, identity: Identity, written: object, folder: Path, capsys: pytest.CaptureFixture[str]) -> bool:
    """Whether it is said that a file was replaced, once what is `written` has taken its place."""
    file = folder / "out.jsonl"
    file.write_text(held)
    Earlier(file, identity).tell([written])  # type: ignore[list-item]
    return capsys.readouterr().err == f"replaced: {file} held something else before\n"


def test_a_file_that_is_not_there_holds_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Earlier(tmp_path / "none.jsonl", of_trial).tell([])
    assert capsys.readouterr().err == ""
