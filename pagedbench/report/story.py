"""What all reports say alike: who comes first, the headline, where a scenario is written, how to see a failure again.

Plain text only; each report escapes for its own form.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from pagedbench.results.record import CellRecord
from pagedbench.words import Verdict


def together(records: Sequence[CellRecord]) -> list[CellRecord]:
    """Scenario by scenario, and within one backend by backend, as they first come: workers side by side keep records as
    they are made."""
    scenarios = _first_seen(record.scenario for record in records)
    backends = _first_seen(record.backend for record in records)
    return sorted(records, key=lambda record: (scenarios[record.scenario], backends[record.backend]))


def _first_seen(names: Iterable[str]) -> dict[str, int]:
    return {name: place for place, name in enumerate(dict.fromkeys(names))}


class Standing(IntEnum):
    """Where a cell comes in a report: what needs a person first."""

    WRONG = 0
    UNDECIDED = 1
    PASSED = 2
    EXPECTED = 3
    SKIPPED = 4

    @property
    def failed(self) -> bool:
        """The cell keeps a gate from turning green."""
        return self in (Standing.WRONG, Standing.UNDECIDED)


def standing(verdict: Verdict) -> Standing:
    """The standing that a verdict gives; REFUSED counts as undecided, since nothing was learned of the kernel."""
    if verdict.is_wrong:
        return Standing.WRONG
    plain = {Verdict.PASS: Standing.PASSED, Verdict.EXPECTED: Standing.EXPECTED, Verdict.SKIPPED: Standing.SKIPPED}
    return plain.get(verdict, Standing.UNDECIDED)


def failures_first(records: Sequence[CellRecord]) -> list[CellRecord]:
    """The records by standing, otherwise in the order of the run."""
    return sorted(records, key=lambda record: standing(record.verdict))


def headline(records: Sequence[CellRecord], unmet: Sequence[str] = ()) -> str:
    """One line that answers «is it green?»: `2 of 7 cells are wrong, 1 without a verdict, 3 passed, 1 skipped`.

    `unmet` are sentences on what had to hold beyond each cell's own verdict and did not (`--require`, `--strict`, a
    baseline): no cell shows them, so every report is given them, or it would look green beside a red exit code.
    """
    told = _headline_of_cells(records)
    return f"{len(unmet)} requirement{'s' if len(unmet) > 1 else ''} not met; {told}" if unmet else told


def _headline_of_cells(records: Sequence[CellRecord]) -> str:
    counts = Counter(standing(r.verdict) for r in records)
    if not counts[Standing.WRONG] + counts[Standing.UNDECIDED] + counts[Standing.PASSED]:
        return f"nothing was checked: {_rest(counts, (Standing.EXPECTED, Standing.SKIPPED)) or 'there were no cells'}"
    total = len(records)
    if not counts[Standing.WRONG] + counts[Standing.UNDECIDED]:
        first = "the cell passed" if total == 1 else f"{counts[Standing.PASSED]} of {total} cells passed"
        rest = _rest(counts, (Standing.EXPECTED, Standing.SKIPPED))
    elif counts[Standing.WRONG]:
        verb = "is" if counts[Standing.WRONG] == 1 else "are"
        first = f"{counts[Standing.WRONG]} of {total} cell{'s' if total > 1 else ''} {verb} wrong"
        rest = _rest(counts, (Standing.UNDECIDED, Standing.PASSED, Standing.EXPECTED, Standing.SKIPPED))
    else:
        first = f"{counts[Standing.UNDECIDED]} of {total} cell{'s' if total > 1 else ''} without a verdict"
        rest = _rest(counts, (Standing.PASSED, Standing.EXPECTED, Standing.SKIPPED))
    return f"{first}, {rest}" if rest else first


_SAID = {
    Standing.UNDECIDED: "without a verdict",
    Standing.PASSED: "passed",
    Standing.EXPECTED: "as expected",
    Standing.SKIPPED: "skipped",
}


def _rest(counts: Counter[Standing], which: tuple[Standing, ...]) -> str:
    return ", ".join(f"{counts[s]} {_SAID[s]}" for s in which if counts[s])


def green(records: Sequence[CellRecord], unmet: Sequence[str] = ()) -> bool:
    """Something passed, nothing failed, and nothing is `unmet`: what exit code 0 means."""
    standings = {standing(r.verdict) for r in records}
    return not unmet and Standing.PASSED in standings and not any(s.failed for s in standings)


@dataclass(frozen=True)
class Place:
    """A place in a scenario file, lines and columns from 1."""

    file: str
    line: int
    column: int


def place(record: CellRecord) -> Place | None:
    """Where the scenario is written; None for one made in code."""
    found = re.fullmatch(r"(.+?):(\d+):(\d+)", record.where)
    return Place(found[1], int(found[2]), int(found[3])) if found else None


def reproduce(record: CellRecord) -> str:
    """A command line that judges this cell again: by name where the scenario is a shipped one, else by its file.

    By the command that judged it: `run` has fewer checks, and would let pass what only `check` finds.
    """
    where = place(record)
    shipped = where is None or "scenarios/" in where.file
    words = ["pagedbench", record.command, record.scenario if shipped or where is None else where.file]
    words += ["--backend", record.target, "--device", record.device]
    if record.suite == "full":
        words += ["--suite", "full"]
    if record.seed:
        words += ["--seed", str(record.seed)]
    return shlex.join(words)


def machine(records: Sequence[CellRecord]) -> str:
    """One line on the circumstances of the first record: chip, driver, CUDA, torch."""
    if not records:
        return ""
    environment = records[0].environment
    parts = [str(environment.get("gpu") or environment.get("cpu") or records[0].device)]
    parts += [f"{key} {environment[key]}" for key in ("driver", "cuda", "torch", "pagedbench") if environment.get(key)]
    return ", ".join(parts)
