"""Pictures are drawn, carry their labels, and say on what they were measured."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pagedbench.errors import UsageError
from pagedbench.report.plot_crossover import crossover_figure
from pagedbench.report.plots import (
    Entry,
    bars_figure,
    cell_caption,
    plot_comparisons,
    require_matplotlib,
    roofline_figure,
    stages_figure,
)
from tests.report.comparisons import comparison
from tests.report.records import skipped, timed

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


def test_a_runs_pictures_say_heads_and_dtype_too():
    cells = [
        timed(12.7, heads="32/8 heads, head dim 128", dtype=dtype, device="cpu") for dtype in ("bfloat16", "float16")
    ]
    caption = cell_caption([*cells, skipped(heads="4/2 heads, head dim 16", dtype="float32")])
    assert "32/8 heads, head dim 128  ·  bfloat16/float16" in caption
    assert "float32" not in caption, "it has no place in the picture"
    assert "heads differ" in cell_caption([cells[0], timed(25.4, heads="4/2 heads, head dim 16", device="cpu")])


def test_the_map_says_in_words_what_its_colours_show(drawn):
    text = text_of(drawn["crossover"])
    for label in ("A 1.2×", "=", "B 2×", "B 3×", "A = varlen, B = decode"):
        assert f">{label}<" in text or label in text


def test_sides_differ_by_hatch_as_well_as_by_colour(drawn):
    assert "pattern" in text_of(drawn["bars"])


def test_peaks_are_named_in_the_roofline(drawn):
    assert "reading, 4,000 GB/s" in text_of(drawn["roofline"])


def roofline_of(records, folder: Path) -> str:
    plt = require_matplotlib()
    plt.rcParams["svg.fonttype"] = "none"
    files = {file.stem.removeprefix("own-"): file for file in plot_comparisons(records, folder / "own.svg")}
    return text_of(files["roofline"]) if "roofline" in files else ""


def with_roofline(record, **changed):
    """The comparison with another roofline for each of its sides."""
    for own in record.sides:
        own.timing["roofline"] |= changed
    return record


def test_peaks_of_a_slow_device_are_no_round_zero(tmp_path):
    text = roofline_of([with_roofline(comparison(20, 10), peak_tflop_s=0.2, peak_gb_s=47.1)], tmp_path)
    assert "matrix product, 0.200 TFLOP/s" in text
    assert "reading, 47.1 GB/s" in text


def test_a_batch_with_nothing_to_compute_does_not_stretch_the_roofline(tmp_path):
    idle = {"flops": 0, "bytes": 0, "gb_s": 0.0, "tflop_s": 0.0}
    busy = comparison(20, 10, name="busy")
    both = [busy, with_roofline(comparison(20, 10, name="idle"), **idle)]
    entries = [Entry(record.scenario, own.target, own.measurement) for record in both for own in record.sides]
    (axes,) = roofline_figure(entries, "").axes
    assert sum(len(points.get_offsets()) for points in axes.collections) == 2
    assert axes.get_ylim()[0] > 0.01  # the points are at 0.4 and 0.8 TFLOP/s
    assert roofline_of([with_roofline(comparison(20, 10), **idle)], tmp_path) == ""


def test_a_long_chart_has_no_empty_bands():
    """60 calls: less than one bar's height is left free at either end."""
    measurement = comparison(20, 10, stages={"gather": 10, "attention": 10}).sides[0].measurement
    entries = [Entry(f"cell {number}", "flash-attn-3:varlen", measurement) for number in range(60)]
    plt = require_matplotlib()
    for figure in (bars_figure(entries, ""), stages_figure(entries, "")):
        bottom, top = figure.axes[0].get_ylim()
        ticks = figure.axes[0].get_yticks()
        assert -1 <= top < min(ticks) - 0.5
        assert max(ticks) + 0.5 < bottom <= max(ticks) + 1.1
        plt.close(figure)


def test_an_axis_of_narrow_ratios_has_numbers_to_read():
    narrow = [comparison(us, 10, keys=k) for k, us in [(128, 12), (1024, 12.5)]]
    _, ratios = crossover_figure(narrow, "").axes
    low, high = ratios.get_ylim()
    assert sum(low <= tick <= high for tick in ratios.get_yticks()) >= 3


def test_no_two_lines_of_a_map_look_alike():
    many = [comparison(us, 10, keys=k, block_size=b) for k, us in [(128, 12), (1024, 13)] for b in range(1, 13)]
    _, ratios = crossover_figure(many, "").axes
    lines = [container.lines[0] for container in ratios.containers]
    looks = {(line.get_marker(), line.get_color(), str(line.get_markerfacecolor())) for line in lines}
    assert len(looks) == len(lines) == 12


def test_a_version_is_said_once(tmp_path):
    record = comparison(20, 10)
    for own in record.sides:
        own.backend, own.version = "torch", "2.11.0"
    assert roofline_of([record], tmp_path).count("torch 2.11.0") == 1


def test_a_dollar_in_a_name_makes_no_formula(tmp_path):
    plt = require_matplotlib()
    plt.rcParams["svg.fonttype"] = "none"
    grid = [comparison(20, 10, batch=1, keys=k, stages={"gather": 10, "attention": 10}) for k in (128, 4096)]
    for own in (side for record in grid for side in record.sides):
        own.backend = r"./$\frac$.py:mine"
    for file in plot_comparisons(grid, tmp_path / "own.svg"):
        assert r"./$\frac$.py:mine" in text_of(file), file.name


def test_an_unknown_form_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"cannot be written as '.docx'"):
        plot_comparisons(GRID[:1], tmp_path / "x.docx")


def test_without_matplotlib_the_way_to_get_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match="plots need matplotlib") as refused:
        require_matplotlib()
    assert "pagedbench[plot]" in refused.value.hint
