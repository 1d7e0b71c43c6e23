"""Tables on terminals narrower than they are made for: the scenario takes a line of its own over its rows, and what
does not fit beside the rest goes below it. On 100 columns and more, and wherever it fits as it is, a table stays one.

The tables that this takes have the scenario in their first column, empty where it is the one above.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Column, Table
from rich.text import Text

FULL_WIDTH = 100
_GAP = 2
_INDENT = 2
_LEAST_COLUMNS = 3
_NOTHING = ("", "–")


@dataclass(frozen=True)
class Fitted:
    """A table that is shown whole or stacked, as the terminal asks."""

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        natural = Measurement.get(console, options.update_width(FULL_WIDTH), self.table).maximum
        if width >= FULL_WIDTH or natural <= width:
            yield self.table
        else:
            yield from _stacked(self.table, width)


def _stacked(table: Table, width: int) -> Iterator[RenderableType]:
    names, *columns = table.columns
    beside = _that_fit(columns, width - _INDENT)
    below = columns[len(beside) :]
    yield _line(beside, [Text(str(column.header), table.header_style or "table.header") for column in beside])
    yield Rule(style="none", characters="─")
    cells = [list(column.cells) for column in columns]
    for number, name in enumerate(names.cells):
        row = [column[number] for column in cells]
        if str(name):
            yield Text(str(name).replace("\n", ""), "bold")
        yield _line(beside, row[: len(beside)])
        more = [
            f"{c.header}: {cell}"
            for c, cell in zip(below, row[len(beside) :], strict=True)
            if str(cell) not in _NOTHING
        ]
        if more:
            yield Padding(Text(", ".join(more)), (0, 0, 0, 2 * _INDENT))


def _that_fit(columns: Sequence[Column], width: int) -> Sequence[Column]:
    """As many of the columns, from the left, as fit side by side; at least the first few."""
    count = len(columns)
    while count > _LEAST_COLUMNS and sum(map(_width, columns[:count])) + _GAP * (count - 1) > width:
        count -= 1
    return columns[:count]


def _width(column: Column) -> int:
    return max(cell_len(line) for cell in (column.header, *column.cells) for line in str(cell).split("\n"))


def _line(columns: Sequence[Column], cells: Sequence[RenderableType]) -> RenderableType:
    grid = Table.grid(padding=(0, _GAP, 0, 0), pad_edge=False)
    for column in columns:
        grid.add_column(width=_width(column), justify=column.justify)
    grid.add_row(*cells)
    return Padding(grid, (0, 0, 0, _INDENT))
