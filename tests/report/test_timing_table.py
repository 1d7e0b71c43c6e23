"""The second table: a row a timed cell, with call, plan, bytes, FLOPs, the limit that binds and the stages' shares."""

from __future__ import annotations

from io import StringIO
from typing import Any

from rich.console import Console

from pagedbench.report.timing_table import placement_effects, timing_table
from pagedbench.results.record import CellRecord
from pagedbench.words import Verdict


def _quantity(median_ns: float) -> dict[str, Any]:
    return {"name": "", "median": median_ns, "samples": [median_ns]}


def _record(**changes: Any) -> CellRecord:
    record = CellRecord("docs-decode", "torch", "varlen", "cuda", Verdict.PASS)
    record.work = {"bytes": 614_400, "flops": 2_211_840}
    record.timing = {
        "quantities": {"kernel": _quantity(12_700.0), "call": _quantity(50_000.0)},
        "stages": [
            {"name": "write", "median": 500.0, "share": 0.04},
            {"name": "gather", "median": 8_500.0, "share": 0.67},
            {"name": "attention", "median": 3_700.0, "share": 0.29},
        ],
        "roofline": {"share": 0.83, "bound": "memory"},
    } | changes
    return record


def _text(*records: CellRecord) -> str:
    table = timing_table(records)
    assert table is not None
    console = Console(file=StringIO(), width=100, record=True)
    console.print(table)
    return console.export_text()


def test_a_row_says_where_the_time_goes() -> None:
    words = _text(_record()).split()
    assert words[words.index("50.0") : words.index("50.0") + 2] == ["50.0", "µs"]
    for part in ("614", "k", "2.21", "M", "83%", "memory", "gather", "67%,"):
        assert part in words


def test_planning_has_a_column_only_where_something_was_planned() -> None:
    assert "plan" not in _text(_record())
    planned = {"kernel": _quantity(1e4), "call": _quantity(5e4), "plan": _quantity(2_600_000.0)}
    assert "2.60 ms" in _text(_record(quantities=planned))


def test_what_was_not_measured_is_a_dash_and_no_zero() -> None:
    text = _text(_record(quantities={"kernel": _quantity(1e4)}, roofline=None))
    assert text.count("–") == 2


def test_cells_without_a_time_have_no_row() -> None:
    untimed = CellRecord("docs-varlen", "torch", "decode", "cuda", Verdict.SKIPPED)
    assert timing_table([untimed]) is None
    assert "docs-varlen" not in _text(_record(), untimed)


def test_a_cell_that_was_wrong_after_timing_has_no_row() -> None:
    wrong = _record(invalid="wrong after timing: sequence 0")
    wrong.scenario = "docs-varlen"
    assert timing_table([wrong]) is None
    assert "docs-varlen" not in _text(_record(), wrong)


def test_graph_and_total_have_columns_where_they_were_asked_for() -> None:
    asked = {name: _quantity(ns) for name, ns in {"kernel": 1e4, "call": 5e4, "graph": 1.3e4, "total": 9e4}.items()}
    text = _text(_record(quantities=asked))
    for part in ("graph", "13.0 µs", "total", "90.0 µs"):
        assert part in text
    assert "graph" not in _text(_record())


def test_a_matrix_over_placements_shows_what_placement_does() -> None:
    """10 us in order, 10.4 us reversed: 1.04 times; another block size has a base of its own."""
    records = []
    for placement, block_size, ns in (
        ("sequential", 16, 1e4),
        ("reversed", 16, 1.04e4),
        ("sequential", 256, 2e4),
        ("reversed", 256, 3e4),
    ):
        record = _record(quantities={"kernel": _quantity(ns), "call": _quantity(5e4)})
        record.variant = {"cache.placement": placement, "cache.block_size": block_size}
        records.append(record)
    assert placement_effects(records) == {
        0: "sequential 1.00×",
        1: "reversed 1.04×",
        2: "sequential 1.00×",
        3: "reversed 1.50×",
    }
    assert "placement" in _text(*records)
    assert "placement" not in _text(_record())
