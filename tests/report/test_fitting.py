"""Tables on narrow terminals: no name is cut or broken, nothing is lost, and wide ones see the table as it is."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pagedbench.report.fitting import Fitted

VARIANT = "features-window[attention.window=15]"


def shown(width: int, *rows: tuple[str, ...]) -> list[str]:
    table = Table(box=None)
    for name in ("scenario", "backend", "path", "verdict", "kernel", "GB/s"):
        table.add_column(name, overflow="fold", justify="right" if name in ("kernel", "GB/s") else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(Fitted(table))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


ROWS = (
    (VARIANT, "torch", "varlen", "PASS", "363 ±28.0 µs", "0.110"),
    ("", "torch", "paged-varlen", "NOT WRITTEN", "–", "–"),
)


def test_a_scenario_stands_over_its_rows_where_it_does_not_fit_beside_them() -> None:
    assert shown(80, *ROWS) == [
        "  backend  path          verdict            kernel   GB/s",
        "─" * 80,
        VARIANT,
        "  torch    varlen        PASS         363 ±28.0 µs  0.110",
        "  torch    paged-varlen  NOT WRITTEN             –      –",
    ]


def test_what_does_not_fit_beside_goes_below_and_what_says_nothing_is_left_out() -> None:
    assert shown(45, *ROWS)[2:] == [
        VARIANT,
        "  torch    varlen        PASS",
        "    kernel: 363 ±28.0 µs, GB/s: 0.110",
        "  torch    paged-varlen  NOT WRITTEN",
    ]


@pytest.mark.parametrize("width", [100, 120])
def test_a_wide_terminal_has_the_table_as_it_is(width: int) -> None:
    assert any(line.split()[:2] == [VARIANT, "torch"] for line in shown(width, *ROWS))


def test_a_name_too_long_for_a_wide_terminal_is_not_broken_either() -> None:
    long = "shapes[batch.spec=64q1s8k,cache.block_size=256,attention.model=llama-3.1-70b]"
    lines = shown(100, (long, "torch", "varlen", "PASS", "363 ±28.0 µs", "0.110"))
    assert lines[2:] == [long, "  torch    varlen  PASS     363 ±28.0 µs  0.110"]


def test_a_sentence_is_wrapped_before_a_name_is_broken() -> None:
    table = Table(box=None)
    for name in ("scenario", "kernel time by stage"):
        table.add_column(name, overflow="fold")
    table.add_row(Text(VARIANT), Text("write 12%, gather 34%, attention 54%"))
    console = Console(file=io.StringIO(), width=52, highlight=False)
    console.print(Fitted(table))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    start = next(number for number, line in enumerate(lines) if VARIANT in line)
    assert lines[start].split() == [VARIANT, "write", "12%,"]
    assert " ".join(" ".join(lines[start + 1 :]).split()) == "gather 34%, attention 54%"


def test_so_has_a_narrow_one_where_it_fits() -> None:
    lines = shown(60, ("docs-decode", "torch", "decode", "PASS", "–", "–"))
    assert [line.split()[0] for line in lines] == ["scenario", "docs-decode"]
