"""The record of one cell: everything that was learned about it, as one line of JSON. All reports are made from these.

No torch and no pandas here: reports, baselines and the parent process read records on machines that have no GPU. A
record holds no host name, no user name and no absolute path, so that it can be published. Storing them is `store.py`'s.

The first level is flat, so that `pandas.read_json("records.jsonl", lines=True)` is a table to work with at once:
`scenario`, `backend`, `path`, `verdict`, `worst_error`, `time_us`, `gb_per_s`, `tflop_per_s` are columns; the rest is
nested under them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypedDict

from pagedbench.errors import UsageError
from pagedbench.words import Verdict

SCHEMA = 1
"""Version of the record's form: it goes up when a key is renamed, removed or changes its meaning, not for a new key."""
REQUIRED = frozenset({"scenario", "backend", "path", "device", "verdict", "schema"})


class FindingDict(TypedDict, total=False):
    """One finding: a whole sentence, and where it is worst (absent coordinates do not apply; all count from 0)."""

    message: str
    sequence: int | None
    query_token: int | None
    head: int | None
    key: int | None
    logical_block: int | None
    physical_block: int | None
    array: str | None


class CheckDict(TypedDict):
    """The outcome of one check. `metrics` are plain numbers; a non-finite one is written as "nan", "inf" or "-inf"."""

    check: str
    verdict: str
    message: str
    findings: list[FindingDict]
    metrics: dict[str, float]
    warnings: list[str]


class DiagnosisDict(TypedDict, total=False):
    """One explanation of a failure: a sentence, the catalogue's name of the fault, how well it fits (0 to 1)."""

    sentence: str
    fault: str | None
    score: float | None


class ExpectedDict(TypedDict):
    """What the scenario's `expect` says of this cell, and what the cell would have been called without it."""

    outcome: str
    because: str
    verdict: str


@dataclass
class CellRecord:
    """One cell (scenario, backend, path, device) of one run.

    Identity: `scenario` (with its variant in brackets), `variant` (the matrix fields of it), `backend`, `path`,
    `device` (`cpu` or `cuda`), `seed`; `run` names the process run that made it (a baseline needs several), `time` is
    UTC in ISO 8601, `command` is `run` or `check`, `suite` the suite of checks; `fingerprint` changes with anything
    that would make the cell worth judging again (`--resume` goes by it).
    Verdict: `verdict`, `message` (one sentence: why), `checks`, `warnings` (BLIND and others, not tied to one check),
    `diagnosis` (best first), `expected`, `error` (exception and traceback, paths shortened), `stderr` (the tail of what
    the worker printed during this cell), `sampled_rows` (the oracle checked so many of `total_rows`; None: all).
    `worst_error` is the worst row's error as a share of its budget: above 1 is a mismatch. `floor` is the smallest
    fault that the accuracy check would have caught, a sentence, where that was asked for.
    Speed: `timing` (what `timing/` measured: `Measurement.to_dict()` with raw samples in ns, intervals, method),
    `time_us` the median of the kernel time, `spread_us` its median absolute deviation, `work` (`bytes` that must be
    moved, `flops` that must be done), `gb_per_s`, `tflop_per_s`, `limit_share` (of the limit that binds).
    Circumstances: `heads` and `dtype` of the attention, `environment`, `scenario_text`, `scenario_hash`, `where`
    (file:line), `memory` (`need` and `have` in bytes), `durations` (seconds by stage), `pictures` (name to SVG text).
    """

    scenario: str
    backend: str
    path: str
    device: str
    verdict: Verdict
    message: str = ""
    variant: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    run: str = ""
    time: str = ""
    command: str = "run"
    suite: str = "run"
    fingerprint: str = ""
    worst_error: float | None = None
    time_us: float | None = None
    spread_us: float | None = None
    gb_per_s: float | None = None
    tflop_per_s: float | None = None
    limit_share: float | None = None
    checks: list[CheckDict] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    floor: str = ""
    diagnosis: list[DiagnosisDict] = field(default_factory=list)
    expected: ExpectedDict | None = None
    error: str | None = None
    stderr: str = ""
    sampled_rows: int | None = None
    total_rows: int | None = None
    timing: dict[str, Any] | None = None
    work: dict[str, float] | None = None
    environment: dict[str, Any] = field(default_factory=dict)
    about: str = ""
    heads: str = ""
    dtype: str = ""
    scenario_text: str = ""
    scenario_hash: str = ""
    where: str = ""
    memory: dict[str, int] | None = None
    durations: dict[str, float] = field(default_factory=dict)
    pictures: dict[str, str] = field(default_factory=dict)
    schema: int = SCHEMA

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What makes a cell the same cell in another run."""
        return (self.scenario, self.backend, self.path, self.device)

    @property
    def target(self) -> str:
        """`backend:path`, as `--backend` takes it."""
        return f"{self.backend}:{self.path}"

    @property
    def all_warnings(self) -> list[str]:
        """The cell's own warnings, then those of its checks, each once."""
        found = [*self.warnings, *(w for check in self.checks for w in check["warnings"])]
        return list(dict.fromkeys(found))

    @property
    def failed_checks(self) -> list[CheckDict]:
        """The checks that neither passed nor were skipped."""
        return [c for c in self.checks if c["verdict"] not in (Verdict.PASS.value, Verdict.SKIPPED.value)]

    def to_json(self) -> str:
        """One line of strict JSON, which UTF-8 can hold: half a character, as in the name of a file, becomes `?`."""
        data = _strict({**asdict(self), "verdict": self.verdict.value})
        line = json.dumps(data, ensure_ascii=False, allow_nan=False)
        return line.encode(errors="replace").decode()

    @classmethod
    def from_json(cls, line: str) -> CellRecord:
        """A record from its line; unknown keys are dropped. Raises `UsageError` for no record, one that is damaged, or
        that has a newer schema.
        """
        try:
            data = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"not a record: {line[:60]!r}", "records are JSON Lines, one cell a line") from error
        if isinstance(data, dict) and data.get("kind") == "comparison":
            raise UsageError("a record of compare, not of a run", "show it by itself: pagedbench compare FILE")
        if isinstance(data, dict) and data.keys() >= {"fault", "class", "caught_by"}:
            raise UsageError("a record of selftest, which has a table of its own: the one that it printed", _MADE_BY)
        if not isinstance(data, dict) or not data.keys() >= REQUIRED:
            raise UsageError(f"not a record of pagedbench: {line[:60]!r}", _MADE_BY)
        if isinstance(data["schema"], int) and data["schema"] > SCHEMA:
            raise UsageError(f"the record has schema {data['schema']}, newest known is {SCHEMA}", "update pagedbench")
        for f in fields(cls):
            if f.name in data and not _fits(data[f.name], str(f.type)):
                raise UsageError(f"a damaged record: {f.name} is {repr(data[f.name])[:60]}", _DAMAGED)
        try:
            return cls._from_data(data)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise UsageError(f"a damaged record: {repr(error)[:60]}", _DAMAGED) from error

    @classmethod
    def _from_data(cls, data: Mapping[str, Any]) -> CellRecord:
        known = {f.name for f in fields(cls)}
        record = cls(**{k: v for k, v in data.items() if k in known})
        record.verdict = Verdict(data["verdict"])
        for name in (f.name for f in fields(cls) if f.type == "float | None"):
            value = getattr(record, name)
            number = None if value is None else float(value)
            if number is not None and not number >= 0:
                raise ValueError(f"{name} is {value}")
            setattr(record, name, number)
        for check in record.checks:
            check["metrics"] = {name: float(value) for name, value in check["metrics"].items()}
        return record


_MADE_BY = "give a file made by --json, run or check"
_DAMAGED = "take the line out of the file, or make the records again"
_KINDS: Mapping[str, type | tuple[type, ...]] = {
    "str": str,
    "Verdict": str,
    "int": int,
    "float": (int, float, str),  # a non-finite number is spelled out
    "list": list,
}


def _fits(value: Any, annotation: str) -> bool:
    """Whether a value out of a line can be what its field holds: reports do not look again."""
    if value is None:
        return annotation.endswith("None")
    return isinstance(value, _KINDS.get(re.split(r"\W", annotation)[0], dict))


def _strict(value: Any) -> Any:
    """`value` with non-finite numbers spelled out: JSON has none, and `pandas` refuses Python's spelling of them."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, Mapping):
        return {str(k): _strict(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(v) for v in value]
    return value
