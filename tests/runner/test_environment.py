"""What records say of the circumstances: enough to compare by, nothing that names a person or a machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pagedbench.errors import UsageError
from pagedbench.runner.environment import choose_device, git_state
from pagedbench.runner.paths import shorten_paths


def test_git_state_is_the_commit_and_whether_there_are_changes(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        author = {f"GIT_{who}_{what}": "x@y" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        subprocess.run(
            ["git", "-C", str(tmp_path), *arguments], check=True, capture_output=True, env={**os.environ, **author}
        )

    assert git_state(tmp_path) is None
    git("init")
    (tmp_path / "kernel.py").write_text("1")
    git("add", ".")
    git("commit", "-m", "first")
    clean = git_state(tmp_path)
    assert clean is not None
    assert len(clean["commit"]) == 12
    assert clean["dirty"] is False
    (tmp_path / "kernel.py").write_text("2")
    assert git_state(tmp_path) == {**clean, "dirty": True}


def test_paths_lose_what_is_nobodys_business(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shorten_paths(f'File "{tmp_path}/kernels/mine.py", line 3') == 'File "kernels/mine.py", line 3'
    assert shorten_paths(f"{Path(sys.prefix)}/lib/x.py") == "<python>/lib/x.py"
    assert shorten_paths(f"{Path.home()}/secret/x.py") == "~/secret/x.py"
    assert shorten_paths(f"nvcc -I{Path.home()}/secret x.cu") == "nvcc -I~/secret x.cu"


def test_a_folder_of_the_same_name_elsewhere_is_left_alone() -> None:
    elsewhere = f"/var{Path.home()}/x.py"
    assert shorten_paths(elsewhere) == elsewhere


def test_a_device_that_is_none_is_refused_by_its_name() -> None:
    with pytest.raises(UsageError) as refused:
        choose_device("cud")
    assert (refused.value.message, refused.value.hint) == ("there is no device 'cud'", "did you mean cuda?")


@pytest.mark.parametrize("name", ["gpu", "GPU", "cuda:0", "nvidia"])
def test_a_gpu_by_another_name_is_cuda(name: str) -> None:
    with pytest.raises(UsageError) as refused:
        choose_device(name)
    assert refused.value.hint == "did you mean cuda?"
