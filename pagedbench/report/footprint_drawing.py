"""How a footprint is drawn, and written in the form that was asked for. Needs matplotlib (extra `plot`), but no torch.

The picture of a record is SVG, and carries what it shows in its description, so that it can be drawn again in another
form by who has the record alone.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pagedbench.errors import PagedbenchError
from pagedbench.results.store import write_text

# What a field shows: nothing, a key read as it must, missed, read more than once, read though it must not be.
_COLOURS = ("#f4f4f2", "#9fb8cc", "#d1495b", "#edae49", "#6a3d9a")
_LABELS = ("not read", "read, as it must be", "missed", "read more than once", "must not be read, but is")
_MARK = "pagedbench-footprint:"


@dataclass(frozen=True)
class Drawing:
    """What a picture shows: `panels` are `(rows, slots)` of indices into the legend, first as it must be, then as it
    is."""

    title: str
    num_blocks: int
    block_size: int
    panels: tuple[np.ndarray, np.ndarray]

    def packed(self) -> str:
        """As letters that an SVG can carry."""
        panels = [panel.tolist() for panel in self.panels]
        text = json.dumps([self.title, self.num_blocks, self.block_size, panels])
        return _MARK + base64.b64encode(zlib.compress(text.encode(), 9)).decode()

    @classmethod
    def unpacked(cls, svg: str) -> Drawing | None:
        """What an SVG carries; None where it carries nothing."""
        found = re.search(_MARK + r"([A-Za-z0-9+/=]+)", svg)
        if found is None:
            return None
        title, blocks, size, (wanted, read) = json.loads(zlib.decompress(base64.b64decode(found[1])))
        return cls(title, blocks, size, (np.array(wanted), np.array(read)))


def write_picture(svg: str, file: Path) -> Path:
    """Write the footprint of a record under the name of `file`, whose ending says the form; PNG without one.

    Returns the file. SVG under a name that says so where the text carries nothing to draw it from again.
    """
    drawing = Drawing.unpacked(svg) if file.suffix != ".svg" else None
    if drawing is None:
        file = file.with_suffix(".svg")
        write_text(file, svg)
        return file
    file = file if file.suffix else file.with_suffix(".png")
    draw(drawing).savefig(file, dpi=160)
    return file


def draw(drawing: Drawing) -> Any:
    """The figure. PagedbenchError without matplotlib."""
    try:
        from matplotlib.colors import ListedColormap
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError as error:
        raise PagedbenchError("a picture needs matplotlib", "pip install 'pagedbench[plot]'") from error
    panels = drawing.panels
    rows, slots = panels[0].shape
    figure = Figure(figsize=(min(16.0, 5 + slots / 32), 2.4 + 0.2 * rows), layout="constrained")
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    colours = ListedColormap(_COLOURS)
    for axis, panel, name in zip(axes, panels, ("expected", "read"), strict=True):
        axis.imshow(panel, aspect="auto", cmap=colours, vmin=0, vmax=len(_COLOURS) - 1, interpolation="nearest")
        _grid(axis, drawing, rows, name)
    axes[-1].set_xlabel("physical block")
    present = [index for index in range(len(_COLOURS)) if any((panel == index).any() for panel in panels)]
    handles = [Patch(facecolor=_COLOURS[i], edgecolor="#888888", label=_LABELS[i]) for i in present]
    figure.suptitle(drawing.title, fontsize=10)
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=8, frameon=False)
    return figure


def _grid(axis: Any, drawing: Drawing, rows: int, name: str) -> None:
    """Block edges as lines, block ids as labels, query tokens on the left."""
    size = drawing.block_size
    blocks = np.arange(drawing.num_blocks)
    step = max(1, len(blocks) // 24)
    axis.set_xticks(blocks[::step] * size + (size - 1) / 2, [str(b) for b in blocks[::step]], fontsize=7)
    for edge in blocks[1:]:
        axis.axvline(edge * size - 0.5, color="#ffffff", linewidth=1.5)
    shown = np.arange(0, rows, max(1, rows // 16))
    axis.set_yticks(shown, [str(row) for row in shown], fontsize=7)
    axis.set_ylabel(f"{name}\nquery token", fontsize=8)
