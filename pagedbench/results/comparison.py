"""The record of one comparison: several sides on one scenario, timed side by side. One line of JSON each.

No torch: reports, maps and plots are made from these records anywhere. Storing is by line, like the records of cells.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

from pagedbench.errors import UsageError
from pagedbench.timing.measurement import Measurement
from pagedbench.timing.stats import least_samples
from pagedbench.words import Verdict

SCHEMA = 1
KIND = "comparison"
_Record = TypeVar("_Record")
TOO_FEW = "too few samples"


@dataclass
class SideRecord:
    """One side: who, whether it was right, and its times (None: no time, for the reason in `message`).

    `ignores_splits`: it takes a number of splits, which changes nothing.
    """

    backend: str
    path: str
    verdict: Verdict
    message: str = ""
    worst_error: float | None = None
    version: str | None = None
    timing: dict[str, Any] | None = None
    ignores_splits: bool = False

    @property
    def target(self) -> str:
        """`backend:path`."""
        return f"{self.backend}:{self.path}"

    @property
    def measurement(self) -> Measurement | None:
        """Its times, if it has any that may be used."""
        if self.timing is None:
            return None
        measurement = Measurement.from_dict(self.timing)
        return measurement if measurement.invalid is None else None

    @property
    def kernel_us(self) -> float | None:
        """Median kernel time in microseconds."""
        measurement = self.measurement
        return measurement.kernel.median / 1e3 if measurement and measurement.kernel else None


@dataclass(frozen=True)
class PairRecord:
    """Side number `a` against `b`: `ratio` is a's kernel time over b's, `low` to `high` its interval.

    `verdict` is about a; `too few samples` says that an interval of that confidence needs more `pairs`. `difference` is
    the largest difference between the two outputs, each of which lies within its budget of the oracle.
    """

    a: int
    b: int
    ratio: float
    low: float
    high: float
    confidence: float
    margin: float
    pairs: int
    verdict: str
    difference: float | None = None

    @property
    def too_few(self) -> bool:
        """Whether there are too few samples to say anything: no tie, and no winner. Earlier records call it no
        difference; what counts is their number."""
        return self.verdict not in ("faster", "slower") and 0 < self.pairs < least_samples(self.confidence)

    @property
    def compared(self) -> str:
        """The verdict in a word or three."""
        return TOO_FEW if self.too_few else self.verdict

    @property
    def told(self) -> str:
        """The verdict in a sentence."""
        return f"{TOO_FEW} to tell ({self.pairs} pair{'s' * (self.pairs > 1)})" if self.too_few else self.verdict


@dataclass
class ComparisonRecord:
    """One scenario, its sides and their pairs.

    `facts` place it in a grid (`batch`, `keys`, `query_len`, `block_size`, what else a sweep varies); `work` has
    `bytes` and `flops`; `message` says why nothing could be compared.
    """

    scenario: str
    device: str
    facts: dict[str, Any] = field(default_factory=dict)
    sides: list[SideRecord] = field(default_factory=list)
    pairs: list[PairRecord] = field(default_factory=list)
    message: str = ""
    seed: int = 0
    work: dict[str, int] | None = None
    cache: str = ""
    heads: str = ""
    dtype: str = ""
    environment: dict[str, Any] = field(default_factory=dict)
    time: str = ""
    scenario_hash: str = ""
    kind: str = KIND
    schema: int = SCHEMA

    def pair(self, a: int = 0, b: int = 1) -> PairRecord | None:
        """The comparison of two sides, or None if either has no time."""
        return next((p for p in self.pairs if (p.a, p.b) == (a, b)), None)

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self), ensure_ascii=False, default=str)

    @classmethod
    def from_json(cls, line: str) -> ComparisonRecord:
        """The record of a line; unknown keys are dropped. Raises `UsageError` for anything else, or a newer schema."""
        try:
            data: Mapping[str, Any] = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"not a record: {line[:60]!r}") from error
        if not isinstance(data, dict) or data.get("kind") != KIND:
            hint = "give a file made by compare --json; one of run or check is shown by pagedbench report FILE"
            raise UsageError("not a record of a comparison", hint=hint)
        try:
            if data["schema"] > SCHEMA:
                newer = f"the record has schema {data['schema']}, newest known is {SCHEMA}"
                raise UsageError(newer, "update pagedbench")
            sides = [_made(SideRecord, {**side, "verdict": Verdict(side["verdict"])}) for side in data["sides"]]
            return _made(cls, {**data, "sides": sides, "pairs": [_made(PairRecord, pair) for pair in data["pairs"]]})
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"a damaged record of a comparison: {repr(error)[:60]}") from error


def _made(cls: type[_Record], data: Mapping[str, Any]) -> _Record:
    """A record from its values, those left out that this version does not know."""
    known = {f.name for f in fields(cls)}  # type: ignore[arg-type]
    return cls(**{name: value for name, value in data.items() if name in known})
