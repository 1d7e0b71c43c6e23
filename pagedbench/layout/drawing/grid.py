"""The block table as a grid: the id in each entry, and what that block holds for its sequence.

A bar shows the block from its first slot to its last: █ keys that are seen, ░ keys that no row sees, ▒ new tokens,
· the tail. Wide and tall tables keep their ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from rich.text import Text

from pagedbench.layout.batch import BatchLayout
from pagedbench.layout.drawing.words import FAINT, INDENT, NEW, pick, shade
from pagedbench.layout.regions import first_visible_key

BAR = 8
MAX_ROWS = 12
SEEN, HIDDEN, WRITTEN, TAIL = "█", "░", "▒", "·"
LEGEND = f"{SEEN} seen keys  {HIDDEN} keys no row sees  {WRITTEN} new tokens  {TAIL} tail   30+1: 30 cached keys, 1 new"
_GAP = 2
_MOST = 16


@dataclass(frozen=True)
class Holding:
    """What a table entry's block holds for its sequence, in tokens."""

    hidden: int
    seen: int
    new: int
    tail: int

    @property
    def cached(self) -> int:
        """Keys from before this step."""
        return self.hidden + self.seen

    @property
    def count(self) -> str:
        """`30+1`, `32`, `+1`."""
        if not self.new:
            return str(self.cached)
        return f"{self.cached or ''}+{self.new}"

    def bar(self) -> str:
        """The block in `BAR` characters; whatever is there at all gets at least one."""
        parts = [(self.hidden, HIDDEN), (self.seen, SEEN), (self.new, WRITTEN), (self.tail, TAIL)]
        size = sum(tokens for tokens, _ in parts)
        widths = [max(1, round(tokens * BAR / size)) if tokens else 0 for tokens, _ in parts]
        while sum(widths) > BAR:
            widths[widths.index(max(widths))] -= 1
        while sum(widths) < BAR:
            widths[widths.index(max(widths))] += 1
        return "".join(sign * width for width, (_, sign) in zip(widths, parts, strict=True))


def holding(layout: BatchLayout, sequence: int, column: int, first_seen: int) -> Holding | None:
    """What column `column` of `sequence` holds; None for an entry without a key."""
    size = layout.block_size
    start, total = column * size, int(layout.total_seqlens[sequence])
    if start >= total:
        return None
    stop = min(start + size, total)
    cached = min(max(int(layout.cache_seqlens[sequence]) - start, 0), stop - start)
    hidden = min(max(first_seen - start, 0), cached)
    return Holding(hidden, cached - hidden, stop - start - cached, size - (stop - start))


def grid(layout: BatchLayout, width: int) -> list[Text]:
    """The table, one line a sequence, at most `width` wide and about `MAX_ROWS` long, with a legend."""
    head, tail = pick(layout.batch, MAX_ROWS)
    rows = [*head, *tail]
    if not rows:
        return []
    label_width = len(_label(rows[-1])) + _GAP
    room = width - len(INDENT) - label_width
    first_seen = first_visible_key(layout)
    cells = {row: _all_cells(layout, row, int(first_seen[row])) for row in rows if layout.max_blocks_per_seq <= _MOST}
    header = [Text(f"column {c}", FAINT) for c in range(layout.max_blocks_per_seq)] if cells else []
    if not cells or _total_width([header, *cells.values()]) > room:
        header, cells = [], {row: _end_cells(layout, row, int(first_seen[row])) for row in rows}
        cells = _narrowed(cells, room)
    widths = _widths([header, *cells.values()])
    lines = [_line("", header, label_width, widths)] if header else []
    for row in rows:
        if tail and row == tail[0]:
            lines.append(Text(f"{INDENT}… {tail.start - head.stop:,} more sequences …", FAINT))
        lines.append(_line(_label(row), cells[row], label_width, widths, shade(row)))
    return [*lines, Text(f"{INDENT}{LEGEND}", FAINT)]


def _label(sequence: int) -> str:
    return f"sequence {sequence}"


def _line(label: str, cells: list[Text], label_width: int, widths: list[int], style: str = "") -> Text:
    line = Text(f"{INDENT}{label:<{label_width}}", style)
    for cell, cell_width in zip(cells, widths, strict=False):
        line.append_text(cell).append(" " * (cell_width - len(cell.plain) + _GAP))
    line.rstrip()
    return line


def _widths(rows: list[list[Text]]) -> list[int]:
    """The width of each column of cells; rows may have fewer cells than others."""
    columns = max(len(row) for row in rows)
    return [max(len(row[c].plain) for row in rows if c < len(row)) for c in range(columns)]


def _total_width(rows: list[list[Text]]) -> int:
    return sum(w + _GAP for w in _widths(rows)) - _GAP


def _narrowed(cells: dict[int, list[Text]], room: int) -> dict[int, list[Text]]:
    """Without the entry after the last used one where it does not fit the line."""
    if _total_width(list(cells.values())) <= room:
        return cells
    return {row: found[:3] for row, found in cells.items()}


def _all_cells(layout: BatchLayout, sequence: int, first_seen: int) -> list[Text]:
    return [_cell(layout, sequence, c, first_seen) for c in range(layout.max_blocks_per_seq)]


def _end_cells(layout: BatchLayout, sequence: int, first_seen: int) -> list[Text]:
    """The first block, how many are left out, the last one in use and the entry after it: where things go wrong."""
    last = -(-int(layout.total_seqlens[sequence]) // layout.block_size) - 1
    cells = [_cell(layout, sequence, 0, first_seen, named=True)]
    left_out = max(last - 1, 0)
    cells.append(Text(f"… {left_out:,} more …" if left_out else "", FAINT))
    cells.append(_cell(layout, sequence, last, first_seen, named=True) if last > 0 else Text())
    after = max(last, 0) + 1
    cells.append(
        _cell(layout, sequence, after, first_seen, named=True) if after < layout.max_blocks_per_seq else Text()
    )
    return cells


def _cell(layout: BatchLayout, sequence: int, column: int, first_seen: int, *, named: bool = False) -> Text:
    """One entry; `named` puts its column before it, for lines that leave columns out."""
    entry = int(layout.block_table[sequence, column])
    held = holding(layout, sequence, column, first_seen)
    cell = Text.assemble((f"column {column}: " if named else "", FAINT))
    if held is None or entry == layout.trash_block:
        return cell.append(f"{entry}" if held is None else f"{entry} trash", FAINT)
    style = shade(sequence) if layout.needed_blocks[sequence, column] else FAINT
    cell.append(f"{entry} ", f"bold {style}")
    for sign, stretch in groupby(held.bar()):
        cell.append("".join(stretch), NEW if sign == WRITTEN else style)
    return cell.append(f" {held.count}", style)
