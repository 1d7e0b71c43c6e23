"""Invalid files and, word for word, what a person is told. Each `invalid/NAME.yaml` has its `NAME.txt`."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagedbench.errors import ScenarioError
from pagedbench.scenario.loader import load_scenarios

FOLDER = Path(__file__).parent / "invalid"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))


@pytest.mark.parametrize("name", NAMES)
def test_an_invalid_file_is_refused_in_these_words(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER)
    with pytest.raises(ScenarioError) as refused:
        load_scenarios([f"./{name}.yaml"])
    assert refused.value.message.splitlines() == (FOLDER / f"{name}.txt").read_text(encoding="utf-8").splitlines()


def test_problems_of_all_files_come_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER)
    with pytest.raises(ScenarioError) as refused:
        load_scenarios(["."])
    assert {problem.where.partition(".")[0] for problem in refused.value.problems} == set(NAMES)


def test_one_invalid_file_and_nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER)
    with pytest.raises(ScenarioError):
        load_scenarios(["docs-decode", "./narrow-table.yaml"])
