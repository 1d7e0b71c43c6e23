"""Tables of backends: what is here, what each can do, what a probe found. At most 100 columns; nothing is judged here.

The data come from `backends/features.py` and `backends/probe.py` as the dataclasses below, which are also what `--json`
prints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

MAX_COLUMNS = 100
LETTERS = {"varlen": "v", "decode": "d", "paged-varlen": "p"}


@dataclass(frozen=True)
class Ability:
    """One feature on one path: the reason not to (None if claimed), and if probed, whether it works, with the message.

    `hint`: ignoring the feature leaves the numbers right, so that working proves nothing.
    """

    feature: str
    path: str
    refused: str | None
    works: bool | None = None
    found: str = ""
    hint: bool = False

    @property
    def broken(self) -> bool:
        """Claimed, and fails."""
        return self.refused is None and self.works is False

    @property
    def unclaimed(self) -> bool:
        """Works without being claimed."""
        return self.refused is not None and self.works is True and not self.hint


@dataclass(frozen=True)
class BackendReport:
    """One backend on one device. `reason` is why it is not available; `traits` are sentences."""

    name: str
    about: str
    version: str | None
    available: bool
    reason: str | None
    note: str | None
    paths: tuple[str, ...]
    traits: Mapping[str, str] = field(default_factory=dict)
    abilities: tuple[Ability, ...] = ()


def overview(reports: Sequence[BackendReport], device: str) -> RenderableType:
    """One row a backend: version, paths, or why not; then the matrix of those that are here."""
    table = _table()
    table.add_column("#", justify="right")
    table.add_column("backend", no_wrap=True)
    table.add_column("version", no_wrap=True, max_width=14)
    table.add_column("paths", no_wrap=True)
    table.add_column(f"on {device}", ratio=1)
    for number, report in enumerate(reports, 1):
        table.add_row(str(number), report.name, report.version or "-", _letters(report.paths), _state(report))
    here = [(number, report) for number, report in enumerate(reports, 1) if report.available and report.abilities]
    matrix: tuple[RenderableType, ...] = (_matrix(here), _legend(reports)) if here else ()
    return Group(table, *matrix)


def detail(report: BackendReport) -> RenderableType:
    """All about one backend: traits, and each feature with the reason where it is refused."""
    facts = _table(header=False)
    facts.add_column(no_wrap=True)
    facts.add_column(ratio=1)
    facts.add_row("backend", f"{report.name}: {report.about}")
    facts.add_row("version", report.version or "-")
    facts.add_row("state", _state(report))
    facts.add_row("paths", ", ".join(report.paths) or "-")
    for name, sentence in report.traits.items():
        facts.add_row(name, sentence)
    if not report.abilities:
        return facts
    table = _table()
    table.add_column("feature", no_wrap=True)
    table.add_column("paths", no_wrap=True)
    table.add_column("why not", ratio=1)
    for feature, abilities in _by_feature(report).items():
        table.add_row(feature, _cell(abilities), "; ".join(dict.fromkeys(filter(None, map(_said, abilities)))))
    return Group(facts, table, _legend([report]))


def print_out(renderable: RenderableType) -> None:
    """To stdout, no wider than `MAX_COLUMNS`."""
    import shutil

    width = min(MAX_COLUMNS, shutil.get_terminal_size((MAX_COLUMNS, 24)).columns)
    Console(width=width, highlight=False, markup=False).print(renderable)


def _matrix(here: Sequence[tuple[int, BackendReport]]) -> Table:
    table = _table()
    table.add_column("feature", no_wrap=True)
    for number, _ in here:
        table.add_column(str(number), no_wrap=True, justify="center")
    columns = [_by_feature(report) for _, report in here]
    for feature in dict.fromkeys(name for column in columns for name in column):
        table.add_row(feature, *(_cell(column.get(feature, ())) for column in columns))
    return table


def _by_feature(report: BackendReport) -> dict[str, list[Ability]]:
    found: dict[str, list[Ability]] = {}
    for ability in report.abilities:
        found.setdefault(ability.feature, []).append(ability)
    return found


def _cell(abilities: Sequence[Ability]) -> Text:
    text = Text()
    for ability in abilities:
        letter = LETTERS[ability.path]
        if ability.broken:
            text.append(f"{letter}!", style="bold red")
        elif ability.unclaimed:
            text.append(f"{letter}+", style="yellow")
        elif ability.refused is None:
            text.append(letter, style="green" if ability.works else "")
    return text if text else Text("·", style="dim")


def _said(ability: Ability) -> str | None:
    if ability.broken:
        return f"{ability.path} is claimed, and fails: {ability.found}"
    return ability.refused


def _letters(paths: Sequence[str]) -> str:
    return "".join(LETTERS[path] for path in paths) or "-"


def _state(report: BackendReport) -> str:
    if report.available:
        return f"available; {report.note}" if report.note else "available"
    return report.reason or "not available"


def _legend(reports: Sequence[BackendReport]) -> Text:
    text = "v varlen, d decode, p paged-varlen, · on no path"
    if any(ability.works is not None for report in reports for ability in report.abilities):
        text += "; probed: ! claimed but fails, + works unclaimed"
    return Text(text, style="dim")


def _table(*, header: bool = True) -> Table:
    return Table(box=box.SIMPLE_HEAD, show_header=header, pad_edge=False, padding=(0, 1, 0, 0))
