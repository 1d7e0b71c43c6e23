"""The footprint as a picture: for the rows of one sequence, the slots they should read against those they read.

Needs matplotlib (extra `plot`). What is drawn is what `checks/footprint_locate.py` found.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pagedbench.checks.base import CheckContext
from pagedbench.checks.footprint import first_deviation, read_slots_of, worst_sequence
from pagedbench.checks.footprint_locate import Reads
from pagedbench.errors import PagedbenchError
from pagedbench.layout.batch import BatchLayout

# What a field shows: nothing, a key read as it must, missed, read more than once, read though it must not be.
_COLOURS = ("#f4f4f2", "#9fb8cc", "#d1495b", "#edae49", "#6a3d9a")
_LABELS = ("not read", "read, as it must be", "missed", "read more than once", "must not be read, but is")
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
    matrix = footprint_matrix(reads, own_slots, num_slots, head)
    wanted = footprint_matrix(_as_wanted(reads), own_slots, num_slots, head)
    figure = _draw(layout, [wanted, matrix], title or f"sequence {sequence}, head {head}")
    figure.savefig(file, dpi=160, format="svg" if isinstance(file, io.StringIO) else None)


def _as_wanted(reads: Reads) -> Reads:
    return Reads(reads.wanted, reads.wanted.astype(np.float64))


def _draw(layout: BatchLayout, panels: Sequence[np.ndarray], title: str) -> Any:
    try:
        from matplotlib.colors import ListedColormap
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError as error:
        raise PagedbenchError("a picture needs matplotlib", "pip install 'pagedbench[plot]'") from error
    rows, slots = panels[0].shape
    figure = Figure(figsize=(min(16.0, 5 + slots / 32), 2.4 + 0.2 * rows), layout="constrained")
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    colours = ListedColormap(_COLOURS)
    for axis, panel, name in zip(axes, panels, ("expected", "read"), strict=True):
        axis.imshow(panel, aspect="auto", cmap=colours, vmin=0, vmax=len(_COLOURS) - 1, interpolation="nearest")
        _grid(axis, layout, rows, name)
    axes[-1].set_xlabel("physical block")
    present = [index for index in range(len(_COLOURS)) if any((panel == index).any() for panel in panels)]
    handles = [Patch(facecolor=_COLOURS[i], edgecolor="#888888", label=_LABELS[i]) for i in present]
    figure.suptitle(title, fontsize=10)
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=8, frameon=False)
    return figure


def _grid(axis: Any, layout: BatchLayout, rows: int, name: str) -> None:
    """Block edges as lines, block ids as labels, query tokens on the left."""
    size = layout.block_size
    blocks = np.arange(layout.num_blocks)
    step = max(1, len(blocks) // 24)
    axis.set_xticks(blocks[::step] * size + (size - 1) / 2, [str(b) for b in blocks[::step]], fontsize=7)
    for edge in blocks[1:]:
        axis.axvline(edge * size - 0.5, color="#ffffff", linewidth=1.5)
    shown = np.arange(0, rows, max(1, rows // 16))
    axis.set_yticks(shown, [str(row) for row in shown], fontsize=7)
    axis.set_ylabel(f"{name}\nquery token", fontsize=8)
