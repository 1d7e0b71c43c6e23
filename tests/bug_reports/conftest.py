"""What the tests of this folder share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is the tests' own: its address space must not be limited."""
    monkeypatch.setattr("pagedbench.runner.cell.limit_address_space", lambda need, threads: need)
