"""Where each new token goes, and which of them open a block: a table of slots, and the guide's sentences."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from rich.text import Text

from pagedbench.layout.arithmetic import blocks_for
from pagedbench.layout.batch import BatchLayout, IntArray
from pagedbench.layout.drawing.words import FAINT, INDENT, ordinal, pick, plural, shade, short_list

MAX_LINES = 10
_COLUMNS = ("sequence", "query tokens", "keys", "column", "block", "offsets", "slots")


@dataclass(frozen=True)
class _Run:
    """New tokens of one sequence that go into one block: `count` of them, from query token `token` and key `key` on."""

    sequence: int
    token: int
    key: int
    count: int

    def cells(self, layout: BatchLayout) -> tuple[str, ...]:
        column, offset = divmod(self.key, layout.block_size)
        block = int(layout.block_table[self.sequence, column])
        spans = (self.token, self.key, offset, block * layout.block_size + offset)
        tokens, keys, offsets, slots = (_span(start, self.count) for start in spans)
        return (str(self.sequence), tokens, keys, str(column), str(block), offsets, slots)


def _span(start: int, count: int) -> str:
    return str(start) if count == 1 else f"{start}–{start + count - 1}"


def table(layout: BatchLayout) -> list[Text]:
    """For each sequence its first and its last block that is written; sequences in the middle are left out."""
    writing = np.flatnonzero(layout.query_lens > 0)
    head, tail = pick(len(writing), MAX_LINES if layout.max_seqlen_q == 1 else MAX_LINES // 2, tail=1)
    sequences = [int(writing[i]) for i in (*head, *tail)]
    rows = {sequence: [run.cells(layout) for run in _ends(layout, sequence)] for sequence in sequences}
    every = [_COLUMNS, *(cells for found in rows.values() for cells in found)]
    widths = [max(len(cells[i]) for cells in every) + 3 for i in range(len(_COLUMNS))]
    lines = [_row(_COLUMNS, widths, FAINT)]
    for number, (sequence, found) in enumerate(rows.items()):
        if tail and number == len(head):
            lines.append(Text(f"{INDENT}… {plural(tail.start - head.stop, 'more sequence')} …", FAINT))
        lines.append(_row(found[0], widths, shade(sequence)))
        if (between := _blocks_written(layout, sequence) - len(found)) > 0:
            lines.append(Text(f"{INDENT}{'':{widths[0]}}… {plural(between, 'more block')} …", FAINT))
        lines += [_row(cells, widths, shade(sequence)) for cells in found[1:]]
    return lines


def _row(cells: tuple[str, ...], widths: list[int], style: str) -> Text:
    return Text(INDENT + "".join(c.ljust(w) for c, w in zip(cells, widths, strict=True)).rstrip(), style)


def _blocks_written(layout: BatchLayout, sequence: int) -> int:
    first, last = _new_keys(layout, sequence)
    return last // layout.block_size - first // layout.block_size + 1


def _new_keys(layout: BatchLayout, sequence: int) -> tuple[int, int]:
    """The first and the last key that the sequence appends."""
    first = int(layout.cache_seqlens[sequence])
    return first, first + int(layout.query_lens[sequence]) - 1


def _ends(layout: BatchLayout, sequence: int) -> list[_Run]:
    """What goes into the first block that the sequence writes, and into the last one if it is another."""
    size = layout.block_size
    first, last = _new_keys(layout, sequence)
    start = max(first, last // size * size)
    if start == first:
        return [_Run(sequence, 0, first, last - first + 1)]
    return [
        _Run(sequence, 0, first, size - first % size),
        _Run(sequence, start - first, start, last - start + 1),
    ]


def sentences(layout: BatchLayout, width: int) -> list[Text]:
    """Whether each sequence's new tokens fit its last block or open others, in the guide's words."""
    appending = np.flatnonzero((layout.query_lens > 0) & ~layout.dead)
    head, tail = pick(len(appending), MAX_LINES, tail=1)
    lines = [_sentence(layout, int(appending[i]), width) for i in (*head, *tail)]
    if tail:
        opening = int((_opened(layout)[appending[head.stop : tail.start]] > 0).sum())
        left_out = plural(tail.start - head.stop, "more sequence")
        lines.insert(-1, Text(f"{INDENT}… {left_out}, {opening:,} of them open a block …", FAINT))
    return lines


def _opened(layout: BatchLayout) -> IntArray:
    """`(batch,)` how many blocks each sequence's new tokens open."""
    before = layout.cache_seqlens.astype(np.int64)
    return blocks_for(before + layout.query_lens, layout.block_size) - blocks_for(before, layout.block_size)


def _sentence(layout: BatchLayout, sequence: int, width: int) -> Text:
    before, new = int(layout.cache_seqlens[sequence]), int(layout.query_lens[sequence])
    has, opens = -(-before // layout.block_size), int(_opened(layout)[sequence])
    capacity = has * layout.block_size
    start = f"{INDENT}sequence {sequence}: {before:,} + {new:,}"
    if not opens:
        tokens = "the new token fits" if new == 1 else f"the {new:,} new tokens fit"
        place = "the block that it has" if has == 1 else f"its {ordinal(has)} block"
        return Text(f"{start} = {before + new:,} ≤ {capacity:,}, so {tokens} {place}", shade(sequence))
    blocks = layout.block_table[sequence, has : has + opens].tolist()
    if opens == 1:
        need = f"so a {ordinal(has + 1)} block is needed (block {blocks[0]})"
    else:
        need = f"so {opens:,} more blocks are needed (blocks "
        need += short_list(blocks, width - len(f"{start} > {capacity:,}, {need})"), brackets=("", "")) + ")"
    return Text(f"{start} > {capacity:,}, {need}", f"bold {shade(sequence)}")
