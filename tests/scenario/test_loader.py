"""Targets: shipped names, variants, patterns, folders and files; and what loading must not cost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pagedbench.errors import UsageError
from pagedbench.scenario.loader import load_scenarios
from tests.scenario.files import VALID


def names_of(*targets: str) -> list[str]:
    return [scenario.name for scenario in load_scenarios(targets)]


def test_no_targets_are_no_scenarios() -> None:
    assert load_scenarios([]) == []


def test_a_shipped_name_is_one_document_of_its_file() -> None:
    assert names_of("docs-varlen-append") == ["docs-varlen-append"]


def test_a_shipped_name_brings_all_its_variants_and_a_full_name_one() -> None:
    assert len(names_of("edge-padding")) == 4
    assert names_of("edge-padding[cache.padding=0]") == ["edge-padding[cache.padding=0]"]


def test_a_shipped_folder_and_a_pattern() -> None:
    assert names_of("docs") == ["docs-decode", "docs-varlen", "docs-varlen-append"]
    assert names_of("docs-v*") == ["docs-varlen", "docs-varlen-append"]


def test_a_scenario_that_two_targets_find_is_loaded_once() -> None:
    assert names_of("docs-varlen", "docs", "docs-varlen") == ["docs-varlen", "docs-decode", "docs-varlen-append"]


def test_files_and_folders_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs" / "deep").mkdir(parents=True)
    (tmp_path / "docs" / "b.yaml").write_text(VALID.replace("small", "b"))
    (tmp_path / "docs" / "deep" / "a.yml").write_text(VALID.replace("small", "a") + "---\n" + VALID)
    (tmp_path / "docs" / "notes.txt").write_text("no scenario")
    monkeypatch.chdir(tmp_path)
    assert names_of("./docs") == ["b", "a", "small"]
    assert names_of("docs/b.yaml") == ["b"]
    assert "docs-decode" in names_of("docs"), "a bare word is a shipped name first"
    (scenario,) = load_scenarios([str(tmp_path / "docs" / "b.yaml")])
    assert scenario.origin.where("cache.block_size") == "docs/b.yaml:3:21"


@pytest.mark.parametrize(
    ("target", "message", "hint"),
    [
        ("docs-decod", "there is no scenario, file or folder 'docs-decod'", "did you mean docs-decode?"),
        ("features-windw", "there is no scenario, file or folder 'features-windw'", "did you mean features-window?"),
        ("featurs", "there is no scenario, file or folder 'featurs'", "did you mean features?"),
        ("qqqq", "there is no scenario, file or folder 'qqqq'", "`pagedbench scenarios` lists them"),
        ("missing.yaml", "there is no file or folder 'missing.yaml'", None),
        ("./missing", "there is no file or folder './missing'", None),
        (
            "edge-padding[cache.padding=1]",
            "there is no scenario 'edge-padding[cache.padding=1]'",
            "did you mean edge-padding[cache.padding=-1]?",
        ),
    ],
)
def test_an_unknown_target_has_its_nearest(target: str, message: str, hint: str | None) -> None:
    with pytest.raises(UsageError) as refused:
        load_scenarios([target])
    assert (refused.value.message, refused.value.hint) == (message, hint)


def test_a_folder_without_scenarios_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no scenario files"):
        load_scenarios([str(tmp_path)])


def test_loading_imports_neither_torch_nor_pandas() -> None:
    program = (
        "import sys; from pagedbench.scenario.loader import load_scenarios; load_scenarios(['docs-decode']);"
        "print([name for name in ('torch', 'pandas', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
