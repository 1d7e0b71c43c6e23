"""Pictures are drawn, carry their labels, and say on what they were measured."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pagedbench.errors import UsageError
from pagedbench.report.plots import plot_comparisons, require_matplotlib
from tests.report.comparisons import comparison

pytest.importorskip("matplotlib")

GRID = [comparison(v, 10, batch=b, keys=k, name=f"grid[{b}x{k}]", stages={"gather": v / 2, "attention": v / 2})
        for b, k, v in [(1, 128, 8), (1, 4096, 10), (4, 128, 20), (4, 4096, 30)]]  # fmt: skip


def text_of(file: Path) -> str:
    """An SVG's text, which matplotlib keeps beside the glyphs."""
    return file.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def drawn(tmp_path_factory) -> dict[str, Path]:
    plt = require_matplotlib()
    plt.rcParams["svg.fonttype"] = "none"
    files = plot_comparisons(GRID, tmp_path_factory.mktemp("plots") / "made" / "grid.svg")
    return {file.stem.removeprefix("grid-"): file for file in files}


def test_a_grid_is_drawn_as_bars_roofline_stages_and_map(drawn):
    assert sorted(drawn) == ["bars", "crossover", "roofline", "stages"]


def test_every_picture_says_on_what_it_was_measured(drawn):
    for file in drawn.values():
        text = text_of(file)
        for label in ("NVIDIA H200", "32/8 heads, head dim 128", "bfloat16", "flash-attn-3 1.0", "torch 2.11.0"):
            assert label in text, (file.name, label)


def test_the_map_says_in_words_what_its_colours_show(drawn):
    text = text_of(drawn["crossover"])
    for label in ("A 1.2×", "=", "B 2×", "B 3×", "A = varlen, B = decode"):
        assert f">{label}<" in text or label in text


def test_sides_differ_by_hatch_as_well_as_by_colour(drawn):
    assert "pattern" in text_of(drawn["bars"])


def test_peaks_are_named_in_the_roofline(drawn):
    assert "reading, 4,000 GB/s" in text_of(drawn["roofline"])


def test_an_unknown_form_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"cannot be written as '.docx'"):
        plot_comparisons(GRID[:1], tmp_path / "x.docx")


def test_without_matplotlib_the_way_to_get_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match="plots need matplotlib") as refused:
        require_matplotlib()
    assert "pagedbench[plot]" in refused.value.hint
