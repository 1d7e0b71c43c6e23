"""What a kernel may leave changed in its process is seen, and can be put back."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pagedbench.runner.state import changes, process_state, restore

kept = []


def entered_inference_mode(folder: Path) -> None:
    kept.append(torch.inference_mode())
    kept[-1].__enter__()


CHANGES: dict[str, Callable[[Path], object]] = {
    "torch's default dtype": lambda folder: torch.set_default_dtype(torch.float64),
    "torch's default device": lambda folder: torch.set_default_device("meta"),
    "torch's deterministic mode": lambda folder: torch.use_deterministic_algorithms(True),
    "torch's precision of fp32 products": lambda folder: torch.set_float32_matmul_precision("medium"),
    "torch's gradient mode": lambda folder: torch.set_grad_enabled(False),
    "torch's inference mode": entered_inference_mode,
    "the working directory": os.chdir,
}


def test_every_setting_is_tried() -> None:
    assert set(CHANGES) == set(process_state())


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_told_and_undone(tmp_path: Path, name: str) -> None:
    before = process_state()
    try:
        CHANGES[name](tmp_path)
        told = changes(before)
    finally:
        restore(before)
    assert any(sentence.startswith(f"the kernel leaves {name} changed, from ") for sentence in told)
    assert process_state() == before
    assert torch.ones(1, requires_grad=True).mul(2).requires_grad, "autograd works on"


def test_a_folder_that_is_gone_is_not_gone_back_to(tmp_path: Path) -> None:
    here = Path.cwd()
    (tmp_path / "gone").mkdir()
    os.chdir(tmp_path / "gone")
    try:
        before = process_state()
        os.chdir(here)
        (tmp_path / "gone").rmdir()
        restore(before)
        assert Path.cwd() == here
    finally:
        os.chdir(here)
