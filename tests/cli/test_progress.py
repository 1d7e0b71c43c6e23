from __future__ import annotations

import time
from collections.abc import Sequence
from typing import cast

import pytest

from pagedbench.cli import progress
from pagedbench.runner.pool import Workers
from pagedbench.runner.protocol import ResolvedTarget

ANSWER = [ResolvedTarget("slow.py:f_decode", ("decode",), available=True)]


class Loading:
    """Workers whose file has been loaded when something was said, or at once without `capsys`."""

    def __init__(self, capsys: pytest.CaptureFixture[str] | None = None) -> None:
        self.capsys = capsys
        self.said = ""

    def wait(self) -> None:
        pass

    def resolve(self, targets: Sequence[str], paths: Sequence[str]) -> list[ResolvedTarget]:
        until = time.monotonic() + 30
        while self.capsys and not self.said and time.monotonic() < until:
            self.said = self.capsys.readouterr().err
            time.sleep(0.01)
        return ANSWER


def test_a_file_that_is_long_in_loading_is_named_with_the_seconds_it_has(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_SILENT_SECONDS", 0.01)
    workers = Loading(capsys)
    assert progress.resolving(cast(Workers, workers))(["slow.py:f_decode"], []) == ANSWER
    assert workers.said.startswith("still loading slow.py:f_decode; ")
    assert "may take up to 120 s" in workers.said


def test_of_what_is_there_soon_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert progress.resolving(cast(Workers, Loading()))(["slow.py:f_decode"], []) == ANSWER
    assert capsys.readouterr().err == ""
