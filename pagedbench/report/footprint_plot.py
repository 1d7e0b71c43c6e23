"""The footprint as a picture: for the rows of one sequence, the slots they should read against those they read.

Needs matplotlib (extra `plot`). What is drawn is what `checks/footprint_locate.py` found; how, `footprint_drawing.py`.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pagedbench.checks.base import CheckContext
from pagedbench.checks.footprint import first_deviation, read_slots_of, worst_sequence
from pagedbench.checks.footprint_locate import Reads
from pagedbench.errors import PagedbenchError
from pagedbench.layout.batch import BatchLayout
from pagedbench.report.footprint_drawing import Drawing, draw

_MOST_SLOTS = 4096
_MOST_ROWS = 64


def footprint_svg(context: CheckContext) -> str | None:
    """A picture of the sequence with most wrong rows, as SVG text; None where nothing is wrong or it would be too
    large.

    Measures what it draws: a few dozen calls of the backend. PagedbenchError without matplotlib.
    """
    layout = context.layout
    deviation = first_deviation(context)
    sequence = None if deviation is None else worst_sequence(context, deviation)
    if deviation is None or sequence is None or layout.num_blocks * layout.block_size > _MOST_SLOTS:
        return None
    rows = np.arange(layout.cu_seqlens_q[sequence], layout.cu_seqlens_q[sequence + 1])[-_MOST_ROWS:]
    head = int(deviation.sums[rows[0] : rows[-1] + 1].any(0).nonzero()[0])
    reads = read_slots_of(context, deviation, sequence, rows)
    own = layout.read_slots[layout.cu_seqlens_k[sequence] : layout.cu_seqlens_k[sequence + 1]]
    title = f"{context.scenario.name} · {context.backend.name}:{context.path} · sequence {sequence}, head {head}"
    file = io.StringIO()
    save_footprint(file, layout, sequence, reads, own[own >= 0].tolist(), head=head, title=title)
    return file.getvalue()


def footprint_matrix(reads: Reads, own_slots: Sequence[int], num_slots: int, head: int) -> np.ndarray:
    """`(rows, slots)` of indices into the legend, for one head."""
    wanted, counts = reads.wanted[:, head], reads.counts[:, head]
    keys = np.zeros(wanted.shape, dtype=np.int64)
    keys[wanted & (counts == 1)] = 1
    keys[wanted & (counts == 0)] = 2
    keys[wanted & ((counts > 1) | np.isnan(counts))] = 3
    keys[~wanted & (counts > 0)] = 4
    matrix = np.zeros((len(wanted), num_slots), dtype=np.int64)
    matrix[:, list(own_slots)] = keys
    for slot, found in reads.foreign.items():
        matrix[found[:, head] > 0, slot] = 4
    return matrix


def save_footprint(
    file: Path | io.StringIO,
    layout: BatchLayout,
    sequence: int,
    reads: Reads,
    own_slots: Sequence[int],
    *,
    head: int = 0,
    title: str = "",
) -> None:
    """Write the picture as PNG or SVG, by the file's suffix; into a StringIO as SVG. PagedbenchError without
    matplotlib or for a huge pool."""
    num_slots = layout.num_blocks * layout.block_size
    if num_slots > _MOST_SLOTS:
        raise PagedbenchError(
            f"a picture of {num_slots:,} slots shows nothing", f"use a scenario of at most {_MOST_SLOTS:,} slots"
        )
    wanted = footprint_matrix(_as_wanted(reads), own_slots, num_slots, head)
    read = footprint_matrix(reads, own_slots, num_slots, head)
    title = title or f"sequence {sequence}, head {head}"
    drawing = Drawing(title, layout.num_blocks, layout.block_size, (wanted, read))
    if isinstance(file, io.StringIO):
        draw(drawing).savefig(file, format="svg", metadata={"Description": drawing.packed()})
    else:
        draw(drawing).savefig(file, dpi=160)


def _as_wanted(reads: Reads) -> Reads:
    return Reads(reads.wanted, reads.wanted.astype(np.float64))
