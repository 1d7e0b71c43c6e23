"""The terminal's second table: where the time of each timed cell goes, and which limit of the device binds it.

One row a timed cell: host time of the call and of planning, bytes that must move, FLOPs, the share of the limit that
binds, and the stages of a path with their shares. The verdicts and the kernel's time are in `table.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from pagedbench.report.figures import duration, three_digits
from pagedbench.results.record import CellRecord

_UNITS = ("", "k", "M", "G", "T", "P")
_WHEN_MEASURED = ("graph", "total", "plan")
"""Quantities that have a column where a cell has them: two only when asked for, and planning is not every backend's."""
_PLACEMENT = "cache.placement"


def timing_table(records: Sequence[CellRecord]) -> Table | None:
    """The table of the cells that were timed; None if there are none. A time that must not be used is not shown."""
    timed = [r for r in records if r.timing and not r.timing.get("invalid")]
    if not timed:
        return None
    quantities = ["call", *(name for name in _WHEN_MEASURED if any(_quantity(r, name) is not None for r in timed))]
    placements = placement_effects(timed)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False)
    table.add_column("scenario", overflow="fold")
    table.add_column("backend:path", overflow="fold")
    if placements:
        table.add_column("placement", overflow="fold")
    for name in (*quantities, "bytes", "FLOPs", "of limit"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("kernel time by stage", overflow="fold")
    above = ""
    for index, record in enumerate(timed):
        name = "" if record.scenario == above else record.scenario
        effect = [placements.get(index, "")] if placements else []
        table.add_row(*map(Text, (name, record.target, *effect, *_figures(record, quantities))))
        above = record.scenario
    return table


def _figures(record: CellRecord, quantities: Sequence[str]) -> list[str]:
    work = record.work or {}
    times = [duration(_quantity(record, name)) for name in quantities]
    return [*times, _scaled(work.get("bytes")), _scaled(work.get("flops")), _limit(record), _stages(record)]


def placement_effects(records: Sequence[CellRecord]) -> Mapping[int, str]:
    """Where a matrix varies the placement of blocks: by the record's index, the placement, and the kernel time as a
    multiple of that of the first placement with all else the same (`reversed 1.02×`)."""
    first: dict[tuple[object, ...], float] = {}
    effects: dict[int, str] = {}
    for index, record in enumerate(records):
        kernel = _quantity(record, "kernel")
        if _PLACEMENT not in record.variant or not kernel:
            continue
        others = tuple((name, str(value)) for name, value in sorted(record.variant.items()) if name != _PLACEMENT)
        key = (record.scenario.partition("[")[0], record.target, others)
        base = first.setdefault(key, kernel)
        effects[index] = f"{record.variant[_PLACEMENT]} {kernel / base:.2f}×"
    return effects


def _quantity(record: CellRecord, name: str) -> float | None:
    """The median of a named quantity, in µs."""
    found = (record.timing or {}).get("quantities", {}).get(name)
    return None if found is None else float(found["median"]) / 1e3


def _scaled(count: float | None) -> str:
    """A count with three digits and a decimal prefix: 614 k, 2.21 M."""
    if count is None:
        return "–"
    if count == 0:
        return "0"
    power = 0
    while count >= 999.5 and power < len(_UNITS) - 1:
        count, power = count / 1e3, power + 1
    return f"{three_digits(count)} {_UNITS[power]}".rstrip()


def _limit(record: CellRecord) -> str:
    """The share of the limit that binds, and which one: `83% memory`."""
    roofline = (record.timing or {}).get("roofline")
    return f"{roofline['share']:.0%} {roofline['bound']}" if roofline else "–"


def _stages(record: CellRecord) -> str:
    """`write 4%, gather 67%, attention 29%`; one stage is all there is and needs no share."""
    stages = (record.timing or {}).get("stages", [])
    if len(stages) < 2:
        return stages[0]["name"] if stages else ""
    return ", ".join(f"{s['name']} {s['share']:.0%}" for s in stages)
