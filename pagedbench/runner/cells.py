"""Which cells a run consists of: scenario × backend × path, in the order of the command line, and what identifies each.

Judging is the worker's (`cell.py`); what `expect` makes of a verdict is in `outcome.py`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pagedbench import __version__
from pagedbench.results.record import CellRecord
from pagedbench.runner.paths import shorten_paths
from pagedbench.runner.protocol import Job, ResolvedTarget
from pagedbench.scenario.model import Scenario
from pagedbench.timing.options import TimingOptions

_NEXT_DOCUMENT = "---"
_TEXT_CAP = 20_000


@dataclass(frozen=True)
class JudgeOptions:
    """How every cell of a run is judged: the command's name, the suite of checks, timing (None: none), extras."""

    command: str
    suite: str
    device: str
    timing: TimingOptions | None = None
    floor: bool = False
    pictures: bool = False
    sanitizer: str | None = None


@dataclass(frozen=True)
class Cell:
    """One scenario on one path of one backend; `related` is the scenario that its `equals` names."""

    scenario: Scenario
    target: ResolvedTarget
    path: str
    related: Scenario | None = None

    @property
    def label(self) -> str:
        """How progress and messages call it."""
        return f"{self.scenario.name} {self.target.name}:{self.path}"

    def job(self, options: JudgeOptions) -> Job:
        """What the worker is asked to do."""
        return Job(
            scenario=self.scenario,
            backend=self.target.name,
            path=self.path,
            device=options.device,
            suite=options.suite,
            timing=options.timing,
            related=self.related,
            floor=options.floor,
            pictures=options.pictures,
        )

    def fingerprint(self, options: JudgeOptions) -> str:
        """Changes with anything that would make the cell worth judging again, what is expected of it included."""
        facts = [__version__, scenario_hash(self.scenario), self.target.name, self.target.identity, self.path]
        return _digest([*facts, asdict(options), *map(asdict, self.scenario.expect)])

    def key(self, options: JudgeOptions) -> tuple[str, str, str, str]:
        """The `key` of its records."""
        return (self.scenario.name, shorten_paths(self.target.name), self.path, options.device)

    def describe(self, record: CellRecord, options: JudgeOptions, environment: dict[str, Any], run: str) -> None:
        """Fill in what the parent knows: whose record it is, and under which circumstances it was made."""
        scenario = self.scenario
        record.backend, record.message = shorten_paths(record.backend), shorten_paths(record.message)
        record.warnings += self.target.warnings
        record.variant = dict(scenario.variant)
        record.seed = scenario.inputs.seed
        record.about = scenario.about
        record.heads, record.dtype = scenario.attention.heads_told, scenario.attention.dtype
        record.where = shorten_paths(scenario.origin.where("name"))
        record.scenario_text = source_text(scenario)
        record.scenario_hash = scenario_hash(scenario)
        record.fingerprint = self.fingerprint(options)
        record.command, record.suite, record.run = options.command, options.suite, run
        record.environment = {**environment, "backend_version": self.target.version}


def plan(scenarios: Sequence[Scenario], targets: Sequence[ResolvedTarget]) -> list[Cell]:
    """All cells, scenario by scenario; one that is asked for twice (`torch torch:decode`) is judged once."""
    by_name = {scenario.name: scenario for scenario in scenarios}
    sides = dict.fromkeys((target.name, path) for target in targets for path in target.paths)
    of_name = {target.name: target for target in targets}
    return [
        Cell(scenario, of_name[name], path, by_name.get(scenario.equals.variant) if scenario.equals else None)
        for scenario in scenarios
        for name, path in sides
    ]


def scenario_hash(scenario: Scenario) -> str:
    """Twelve hex digits that change with what is put before a kernel, not with where or how it is written down."""
    facts = asdict(scenario)
    for field in ("origin", "about", "expect"):
        del facts[field]
    return _digest(facts)


def source_text(scenario: Scenario) -> str:
    """The document that the scenario was written in, up to a length; empty for one made in code."""
    try:
        lines = Path(scenario.origin.file).read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    except OSError:
        return ""
    begins = scenario.origin.positions.get("", (1, 1))[0] - 1
    before = [number for number, line in enumerate(lines[:begins]) if line.startswith(_NEXT_DOCUMENT)]
    own = lines[before[-1] + 1 if before else 0 :]
    ends = next((number for number, line in enumerate(own) if line.startswith(_NEXT_DOCUMENT)), len(own))
    return "".join(own[:ends])[:_TEXT_CAP]


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:12]
