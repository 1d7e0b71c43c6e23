"""Tables that do not fit: the scenario takes a line of its own over its rows, and what does not fit beside the rest
goes below it. A table stays one where it fits as it is, or with its sentences wrapped: a name is never broken.
The tables that are stacked have the scenario in their first column, empty where it is the one above.

A map has no bound on its columns: one too wide for any terminal is cut into parts, one under the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Column, Table
from rich.text import Text

_GAP = 2
_INDENT = 2
_BETWEEN = 3
"""What a table with `padding=(0, 1)` leaves between two columns."""
_LEAST_COLUMNS = 3
_MOST_LINES = 3
_NOTHING = ("", "–")


@dataclass(frozen=True)
class Fitted:
    """A table that is shown whole or stacked, as the terminal and its names ask."""

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = _widths(self.table.columns, options.max_width)
        if widths is None:
            yield from _stacked(self.table, options.max_width)
            return
        for column, width in zip(self.table.columns, widths, strict=True):
            column.width = width
        yield self.table


def _widths(columns: Sequence[Column], room: int) -> list[int] | None:
    """The columns' widths where all fit side by side: no word is broken, nor a cell that is not to be wrapped, and no
    sentence takes more than `_MOST_LINES` lines; None where they do not."""
    whole = [_width(column) for column in columns]
    widths = [
        full if column.no_wrap else max(_longest_word(column), -(-full // _MOST_LINES))
        for column, full in zip(columns, whole, strict=True)
    ]
    left = room - sum(widths) - _BETWEEN * (len(columns) - 1)
    if left < 0:
        return None
    for number in sorted(range(len(columns)), key=lambda n: whole[n] - widths[n]):  # as many as possible in one line
        more = min(left, whole[number] - widths[number])
        widths[number], left = widths[number] + more, left - more
    return widths


@dataclass(frozen=True)
class InParts:
    """A table whose columns after the first `kept` go below where they do not fit; the first stand before each part."""

    table: Table
    kept: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        first, rest = self.table.columns[: self.kept], self.table.columns[self.kept :]
        room = options.max_width - sum(_width(column) + _BETWEEN for column in first)
        while rest:
            count = _count_that_fit(rest, room)
            yield _of_columns(self.table, [*first, *rest[:count]])
            rest = rest[count:]
            if rest:
                yield Text()


def _count_that_fit(columns: Sequence[Column], room: int) -> int:
    """How many columns, from the left, fit side by side; one at least."""
    ends = itertools.accumulate(_width(column) + _BETWEEN for column in columns)
    return max(1, sum(end - _BETWEEN <= room for end in ends))


def _of_columns(table: Table, columns: Sequence[Column]) -> Table:
    """A table like `table`, of these columns of it."""
    part = Table(box=table.box, pad_edge=table.pad_edge, padding=table.padding, show_edge=table.show_edge)
    for column in columns:
        part.add_column(column.header, justify=column.justify, no_wrap=column.no_wrap)
    for cells in zip(*(column.cells for column in columns), strict=True):
        part.add_row(*cells)
    return part


def _stacked(table: Table, width: int) -> Iterator[RenderableType]:
    names, *columns = _on_one_line(table, width) or table.columns
    beside = _that_fit(columns, width - _INDENT)
    below = columns[len(beside) :]
    widths = [_width(column) for column in beside]  # found once: a column is as long as the table
    header = [Text(str(column.header), table.header_style or "table.header") for column in beside]
    yield _line(beside, widths, header)
    yield Rule(style="none", characters="─")
    cells = [list(column.cells) for column in columns]
    for number, name in enumerate(names.cells):
        row = [column[number] for column in cells]
        if str(name):
            yield Text(str(name).replace("\n", ""), "bold")
        yield _line(beside, widths, row[: len(beside)])
        more = [
            f"{c.header}: {cell}"
            for c, cell in zip(below, row[len(beside) :], strict=True)
            if str(cell) not in _NOTHING
        ]
        if more:
            yield Padding(Text(", ".join(more)), (0, 0, 0, 2 * _INDENT), expand=False)


def _on_one_line(table: Table, width: int) -> list[Column] | None:
    """The columns with every cell on one line, where all fit beside each other so."""
    first, *rest = table.columns
    joined = Table()
    for column in rest:
        joined.add_column(column.header, justify=column.justify)
    for cells in zip(*(column.cells for column in rest), strict=True):
        joined.add_row(
            *(Text(str(cell).replace("\n", ""), cell.style if isinstance(cell, Text) else "") for cell in cells)
        )
    fits = len(_that_fit(joined.columns, width - _INDENT)) == len(rest)
    return [first, *joined.columns] if fits else None


def _longest_word(column: Column) -> int:
    """The columns of a terminal that it must have to break no word."""
    return max((cell_len(w) for cell in (column.header, *column.cells) for w in str(cell).split()), default=0)


def _that_fit(columns: Sequence[Column], width: int) -> Sequence[Column]:
    """As many of the columns, from the left, as fit side by side; at least the first few."""
    count = len(columns)
    while count > _LEAST_COLUMNS and sum(map(_width, columns[:count])) + _GAP * (count - 1) > width:
        count -= 1
    return columns[:count]


def _width(column: Column) -> int:
    return max(cell_len(line) for cell in (column.header, *column.cells) for line in str(cell).split("\n"))


def _line(columns: Sequence[Column], widths: Sequence[int], cells: Sequence[RenderableType]) -> RenderableType:
    grid = Table.grid(padding=(0, _GAP, 0, 0), pad_edge=False)
    for column, width in zip(columns, widths, strict=True):
        grid.add_column(width=width, justify=column.justify)
    grid.add_row(*cells)
    return Padding(grid, (0, 0, 0, _INDENT), expand=False)
