"""GitHub Actions: annotations at the line of the scenario file, and the job's step summary.

GitHub shows ten errors and ten warnings a step and drops the rest silently, so the tenth here says how many more there
are. What an annotation may hold is in GitHub's «Workflow commands»; escaping follows its toolkit.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pagedbench.errors import CannotWrite
from pagedbench.report.markdown import markdown
from pagedbench.report.story import failures_first, headline, place, standing
from pagedbench.report.table import failure_lines
from pagedbench.results.record import CellRecord

MOST_ANNOTATIONS = 10
MOST_SUMMARY = 900_000


def on_github(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this runs in a GitHub Actions job."""
    return environment.get("GITHUB_ACTIONS") == "true"


def workflow_commands(records: Sequence[CellRecord], unmet: Sequence[str] = ()) -> str:
    """One a line: an error for each thing unmet and each failed cell, a warning for each warning, the headline.

    `unmet`: see `story.headline`.
    """
    failed = [r for r in failures_first(records) if standing(r.verdict).failed]
    errors = [f"::error title=pagedbench%3A not met::{_data(sentence)}" for sentence in unmet]
    errors += [
        _command("error", r, f"{r.verdict}: {r.scenario} {r.target}", "\n".join(failure_lines(r))) for r in failed
    ]
    warnings = [
        _command("warning", r, f"{r.scenario} {r.target}", warning) for r in records for warning in r.all_warnings
    ]
    notice = f"::notice title=pagedbench::{_data(headline(records, unmet))}"
    lines = [*_at_most("error", errors), *_at_most("warning", warnings), notice]
    return "\n".join(lines) + "\n"


def _at_most(level: str, commands: list[str]) -> list[str]:
    if len(commands) <= MOST_ANNOTATIONS:
        return commands
    left = len(commands) - MOST_ANNOTATIONS + 1
    return [*commands[: MOST_ANNOTATIONS - 1], f"::{level} title=pagedbench::and {left} more: see the job's summary"]


def _command(level: str, record: CellRecord, title: str, message: str) -> str:
    properties = {"title": title}
    where = place(record)
    if where is not None:
        properties = {"file": where.file, "line": str(where.line), "col": str(where.column), **properties}
    told = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::{level} {told}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def write_summary(
    records: Sequence[CellRecord], unmet: Sequence[str] = (), environment: Mapping[str, str] = os.environ
) -> bool:
    """Append the Markdown report to the job's summary; False where there is none to append to.

    Appends, as GitHub asks for: the file belongs to all commands of the step.
    """
    file = environment.get("GITHUB_STEP_SUMMARY")
    if not file:
        return False
    try:
        with Path(file).open("a", encoding="utf-8", errors="replace") as stream:
            stream.write(markdown(records, unmet, MOST_SUMMARY) + "\n")
    except OSError as error:
        raise CannotWrite(f"the step summary {file}", error.strerror) from error
    return True
