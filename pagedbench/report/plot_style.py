"""What all pictures share: colours that the colour-blind can tell apart, hatches and markers for black and white.

Okabe and Ito's palette. Needs matplotlib, which is imported on use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pagedbench.errors import UsageError

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "ooo", "---", "+++")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


def require_matplotlib() -> Any:
    """`matplotlib.pyplot`, drawing to files only. Raises `UsageError` where it is not installed."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise UsageError("plots need matplotlib", hint="install it: pip install 'pagedbench[plot]'") from None
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def literal(name: str) -> str:
    """A name of the user's as matplotlib shows it letter by letter: between two dollars it would read a formula."""
    return name.replace("$", r"\$")


def look_of(sides: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Colour, hatch and marker of each side."""
    return {
        side: {"colour": COLOURS[i % 8], "hatch": HATCHES[i % 8], "marker": MARKERS[i % 8]}
        for i, side in enumerate(dict.fromkeys(sides))
    }


def legend_handles(look: dict[str, dict[str, Any]], *, as_points: bool) -> list[Any]:
    """What stands in the legend for each look."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    if as_points:
        return [
            Line2D([], [], linestyle="none", marker=s["marker"], color=s["colour"], markeredgecolor="black")
            for s in look.values()
        ]
    return [Patch(facecolor=s["colour"], hatch=s["hatch"], edgecolor="black") for s in look.values()]


def finish(figure: Any, axes: Any, title: str, caption: str) -> None:
    """Title, caption under the picture, and no frame."""
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.text(0.01, -0.02, literal(caption), fontsize=7, color="#444444", ha="left", va="top", wrap=True)
