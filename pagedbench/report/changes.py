"""The terminal's view of a comparison with a baseline: one row a cell whose standing changed or is not known."""

from __future__ import annotations

from collections import Counter

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pagedbench.report.fitting import Fitted
from pagedbench.results.baseline import BaselineComparison, CellChange

_STYLES = {"regressed": "bold red", "slower": "bold red", "gone": "bold magenta", "faster": "green", "fixed": "green"}


def render_changes(comparison: BaselineComparison) -> RenderableType:
    """Cells that changed, what differs between the environments, and how many cells came to what."""
    counts = Counter(c.change for c in comparison.changes)
    told = ", ".join(f"{count} {change}" for change, count in counts.items())
    parts: list[RenderableType] = [Text(f"\nagainst the baseline: {told or 'no cell in common'}", style="bold")]
    shown = [c for c in comparison.changes if c.change != "unchanged"]
    if shown:
        parts.append(Fitted(_table(shown)))
    parts += [Text(f"environments differ: {difference}", style="yellow") for difference in comparison.differences]
    return Group(*parts)


def _table(changes: list[CellChange]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False)
    for name in ("scenario", "backend", "path", "change", "why"):
        table.add_column(name, overflow="fold")
    for change in changes:
        scenario, backend, path, _ = change.key
        styled = Text(change.change, style=_STYLES.get(change.change, ""))
        table.add_row(Text(scenario), Text(backend), Text(path), styled, Text(change.reason))
    return table
