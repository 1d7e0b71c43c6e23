"""The kill matrix as a table of at most 100 columns, and as plain records for JSON. Judges nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rich.table import Table
from rich.text import Text

from pagedbench.faults.fault import Fault
from pagedbench.layout.drawing.words import plural
from pagedbench.runner.selftest import Power, Trialled

_SHORT = {
    "accuracy": "accur",
    "cache-update": "cache",
    "unwritten": "unwrt",
    "steps": "steps",
    "footprint": "footp",
    "leaks": "leaks",
    "invariance": "invar",
    "graph-replay": "graph",
}


@dataclass
class MatrixRow:
    """One fault over all trials."""

    fault: Fault
    trials: list[Trialled] = field(default_factory=list)

    def count(self, power: Power) -> int:
        """Trials that can show so much of the fault."""
        return sum(trial.power is power for trial in self.trials)

    @property
    def caught(self) -> int:
        """Trials that show the fault and in which some check caught it."""
        return sum(trial.power is Power.SHOWS and bool(trial.caught_by) for trial in self.trials)

    def caught_by(self, check: str) -> int:
        """Trials in which this check caught it."""
        return sum(check in trial.caught_by for trial in self.trials)


def rows(results: Iterable[Trialled]) -> list[MatrixRow]:
    """Results by fault, in the catalogue's order."""
    by_name: dict[str, MatrixRow] = {}
    for result in results:
        if result.fault is not None:
            by_name.setdefault(result.fault.name, MatrixRow(result.fault)).trials.append(result)
    return list(by_name.values())


def table(results: Sequence[Trialled], checks: Sequence[str]) -> Table:
    """Fault × check: the number of trials in which the check caught the fault."""
    grid = Table(box=None, pad_edge=False, header_style="bold", collapse_padding=True)
    grid.add_column("fault", no_wrap=True)
    grid.add_column("class", justify="center")
    for check in checks:
        grid.add_column(_SHORT.get(check, check[:5]), justify="right")
    grid.add_column("caught", justify="right")
    grid.add_column("equiv", justify="right")
    for row in rows(results):
        grid.add_row(
            row.fault.name, row.fault.kind, *_marks(row, checks), _caught(row), str(row.count(Power.EQUIVALENT))
        )
    return grid


def _marks(row: MatrixRow, checks: Sequence[str]) -> list[str]:
    return [str(row.caught_by(check) or "·") for check in checks]


def _caught(row: MatrixRow) -> Text:
    shows = row.count(Power.SHOWS)
    if not shows:
        return Text("cannot show here", style="dim")
    return Text(f"{row.caught} of {shows}", style="green" if row.caught == shows else "bold red")


def summary(results: Sequence[Trialled], *, whole: bool = True) -> list[str]:
    """The figures under the table, then one line for each failure. What cannot show is known of a `whole` run only."""
    matrix = rows(results)
    shown = [row for row in matrix if row.count(Power.SHOWS)]
    shows = sum(row.count(Power.SHOWS) for row in matrix)
    right = [result for result in results if result.fault is None]
    accused = [result for result in right if result.failed]
    lines = [
        f"{plural(len(matrix), 'fault')} on {plural(len(right), 'scenario')}: {plural(shows, 'pair')} that can show, "
        f"{sum(row.caught for row in matrix)} caught; "
        f"{sum(row.count(Power.BELOW_ROUNDING) for row in matrix)} below rounding, "
        f"{sum(row.count(Power.EQUIVALENT) for row in matrix)} equivalent to no fault.",
        f"The right kernel: accused in {len(accused)} of {len(right)}.",
    ]
    hidden = [row.fault for row in matrix if whole and row not in shown]
    lines += [f"{fault.name} cannot show on these scenarios: it needs {fault.shows}." for fault in hidden]
    lines += [f"ACCUSED: the right kernel on {r.trial.name} by {', '.join(r.caught_by)}" for r in accused]
    lines += [f"MISSED: {r.fault.name} on {r.trial.name}" for r in results if r.fault is not None and r.failed]
    return lines


def record(result: Trialled) -> dict[str, object]:
    """One fault on one trial, for JSON Lines."""
    return {
        "fault": result.fault.name if result.fault else None,
        "class": result.fault.kind if result.fault else None,
        "scenario": result.trial.scenario.name,
        "path": str(result.trial.path),
        "power": result.power.value,
        "outcomes": result.outcomes,
        "caught_by": result.caught_by,
        "failed": result.failed,
    }
