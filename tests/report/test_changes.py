"""A comparison with a baseline on a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from pagedbench.report.changes import render_changes
from pagedbench.results.baseline import BaselineComparison, CellChange

VARIANT = "features-window[attention.window=15]"


def test_a_name_is_never_broken_however_narrow_the_terminal() -> None:
    reason = "kernel time 1.31 times that of the baseline [1.28, 1.33], where 1.05 is let through"
    change = CellChange((VARIANT, "flashinfer-cuda-cores", "paged-varlen", "cuda"), "slower", reason)
    console = Console(file=io.StringIO(), width=60)
    console.print(render_changes(BaselineComparison((change,), ())))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert VARIANT in text
    assert "flashinfer-cuda-cores  paged-varlen  slower" in text
    assert reason in " ".join(text.split())
