"""The package's own exceptions: what a user did wrong or what a machine cannot do, with where, what and how to mend it.

The command line prints these without a traceback; anything else that escapes is a bug of pagedbench.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches


class PagedbenchError(Exception):
    """Base of all errors meant for a person. `hint` says how to mend it."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(PagedbenchError):
    """The command line asks for something that does not exist or does not fit together (exit 2)."""


class CannotWrite(UsageError):
    """A file that was asked for cannot be written; `reason` is the system's word for why."""

    def __init__(self, file: object, reason: str | None) -> None:
        super().__init__(f"cannot write {file}: {reason}", "name a file where you may write, with room left")


class RecordsLost(PagedbenchError):
    """A run's records cannot be written any more: it ends (exit 5), since what is not kept was not judged."""

    def __init__(
        self, file: object, reason: str | None, hint: str = "make room; --resume goes on from what is in it"
    ) -> None:
        super().__init__(f"cannot write {file}: {reason}", hint)


class NotWhole(UsageError):
    """A file of records holds none, or its last one is cut off: what is missing cannot be told from the rest."""


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a scenario.

    `field` is a dotted path as a user writes it (`cache.block_table[1][0]`), `where` is `file:line:column` (empty for
    scenarios made in code), `found` what stands there and `needed` what should.
    """

    field: str
    found: str
    needed: str
    hint: str | None = None
    where: str = ""

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{place}{self.field}: found {self.found}, needed {self.needed}{hint}"


class ScenarioError(PagedbenchError):
    """One or more scenarios are invalid (exit 2; nothing runs)."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(p) for p in self.problems))


def said(error: BaseException) -> str:
    """What somebody else's exception says; where it cannot say it, that."""
    try:
        return str(error)
    except (Exception, SystemExit) as other:
        return f"its message cannot be shown, that raises {type(other).__name__}"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """«did you mean …?» for the known word that is nearest, or None: a hint for an error about an unknown one."""
    match = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean {match[0]}?" if match else None
