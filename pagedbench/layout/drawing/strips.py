"""Which token belongs to which sequence: the guide's request-index strips with the cumulative lengths as a ruler below.

One cell a token while they fit a line; for larger batches one cell a sequence (`r0 ×2,048`), the middle left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from rich.text import Text

from pagedbench.layout.batch import Int32Array
from pagedbench.layout.drawing.words import FAINT, INDENT, shade

LABEL_WIDTH = 17


@dataclass(frozen=True)
class Names:
    """What the strip and its ruler are called, and what the tokens are called that a sequence may have none of."""

    strip: str
    ruler: str
    tokens: str


@dataclass(frozen=True)
class _Cell:
    """A stretch of the strip: its text, whose it is (None: left out), and what the ruler says at its left edge."""

    text: str
    sequence: int | None
    mark: str

    @property
    def width(self) -> int:
        return max(len(self.text), len(self.mark)) + 1


def strip(cumulative: Int32Array, names: Names, width: int) -> list[Text]:
    """The strip and its ruler, at most `width` characters wide. `cumulative` is `(batch + 1,)`."""
    lengths = np.diff(cumulative)
    room = width - len(INDENT) - LABEL_WIDTH
    last = str(cumulative[-1])
    cells = _token_cells(cumulative, room)
    if cells is None or sum(c.width for c in cells) + len(last) > room:
        cells = _fit(_sequence_cells(cumulative, room), room - _trailing_width(cumulative))
    trailing = _mark(int(cumulative[-1]), _empty_at_the_end(lengths) + 1)
    if not cells:
        return [_line(names.strip, Text("(no tokens)", FAINT)), _line(names.ruler, Text(trailing))]
    tokens = Text()
    for cell in cells:
        style = FAINT if cell.sequence is None else shade(cell.sequence)
        tokens.append(cell.text.ljust(cell.width), style)
    ruler = "".join(c.mark.ljust(c.width, " " if c.sequence is None else "_") for c in cells) + trailing
    return [_line(names.strip, tokens), _line(names.ruler, Text(ruler)), *_remark(lengths, names, width)]


def _line(label: str, content: Text) -> Text:
    return Text.assemble(INDENT, (label.ljust(LABEL_WIDTH), FAINT), content)


def _mark(value: int, times: int) -> str:
    """The ruler's number at a boundary, once for each sequence that starts there: `0,0` with an empty one."""
    return ",".join([str(value)] * times) if times <= 3 else f"{value}(×{times})"


def _empty_at_the_end(lengths: Int32Array) -> int:
    filled = np.flatnonzero(lengths)
    return len(lengths) - 1 - int(filled[-1]) if len(filled) else len(lengths)


def _trailing_width(cumulative: Int32Array) -> int:
    return len(_mark(int(cumulative[-1]), _empty_at_the_end(np.diff(cumulative)) + 1))


def _token_cells(cumulative: Int32Array, room: int) -> list[_Cell] | None:
    """One cell a token, or None where there are too many to try."""
    if cumulative[-1] > room:
        return None
    return [
        _Cell(f"r{sequence}", sequence, mark if token == 0 else "")
        for sequence, mark in _starts(cumulative)
        for token in range(int(cumulative[sequence + 1] - cumulative[sequence]))
    ]


def _sequence_cells(cumulative: Int32Array, room: int) -> list[_Cell]:
    """One cell a sequence that has tokens; where there are more than could fit, only those at the ends."""
    lengths = np.diff(cumulative)
    return [
        _Cell(f"r{sequence} ×{int(lengths[sequence]):,}", sequence, mark)
        for sequence, mark in _starts(cumulative, at_each_end=room)
    ]


def _starts(cumulative: Int32Array, at_each_end: int | None = None) -> list[tuple[int, str]]:
    """Sequences that have tokens, each with the ruler's mark where it starts."""
    filled = np.flatnonzero(np.diff(cumulative))
    previous = np.concatenate([[-1], filled[:-1]])
    pairs = list(zip(filled.tolist(), (filled - previous).tolist(), strict=True))
    if at_each_end is not None and len(pairs) > 2 * at_each_end:
        pairs = pairs[:at_each_end] + pairs[-at_each_end:]
    return [(sequence, _mark(int(cumulative[sequence]), empty)) for sequence, empty in pairs]


def _fit(cells: list[_Cell], room: int) -> list[_Cell]:
    """Cells of both ends that fit, one that says how many sequences are left out between them."""
    if sum(c.width for c in cells) <= room:
        return cells
    last = cells[-1]
    first: list[_Cell] = []
    used = last.width + len("… 000,000 more … ")
    for cell in cells[:-1]:
        if used + cell.width > room:
            break
        first.append(cell)
        used += cell.width
    left_out = (last.sequence or 0) - (first[-1].sequence or 0) - 1 if first else last.sequence or 0
    return [*first, _Cell(f"… {left_out:,} more …", None, ""), last]


def _remark(lengths: Int32Array, names: Names, width: int) -> list[Text]:
    """Which sequences have no cell."""
    empty = np.flatnonzero(lengths == 0).tolist()
    if not empty:
        return []
    shown = ", ".join(f"r{s}" for s in empty[:8]) + (f" and {len(empty) - 8:,} more" if len(empty) > 8 else "")
    verb = "has" if len(empty) == 1 else "have"
    return [Text(f"{INDENT}{'':{LABEL_WIDTH}}({shown} {verb} no {names.tokens})"[:width], FAINT)]
