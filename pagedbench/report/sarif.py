"""SARIF 2.1.0 for code scanning: one result a failed cell, at the line of its scenario file, one rule a verdict."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from pagedbench import __version__
from pagedbench.report.story import Standing, failures_first, place, reproduce, standing
from pagedbench.report.table import failure_lines
from pagedbench.results.record import CellRecord
from pagedbench.words import Verdict

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_NOT_MET = "not-met"
_MEANINGS = {
    Verdict.MISMATCH: "The output differs from the fp64 oracle by more than the row's budget.",
    Verdict.FOOTPRINT: "The kernel read other slots than the row sees.",
    Verdict.LEAK: "Memory that must not be read shows in the output.",
    Verdict.NOT_WRITTEN: "A row or a slot was not written.",
    Verdict.NON_FINITE: "The output has a NaN or an infinity that the oracle has not.",
    Verdict.CORRUPTED: "A slot, a guard or an input changed that must not.",
    Verdict.UNSTABLE: "Equal calls gave different results.",
    Verdict.ERROR: "The backend raised an exception.",
    Verdict.CRASHED: "The process that ran the kernel died.",
    Verdict.TIMED_OUT: "The kernel did not come back in time.",
    Verdict.NO_REFERENCE: "The oracle could not be made, so nothing was judged.",
    Verdict.REFUSED: "The scenario is invalid.",
}


def sarif(records: Sequence[CellRecord], unmet: Sequence[str] = ()) -> str:
    """The log as JSON. `unmet` (see `story.headline`) comes after the cells, under a rule of its own."""
    failed = [r for r in failures_first(records) if standing(r.verdict).failed]
    verdicts = list(dict.fromkeys(r.verdict for r in failed))
    driver: dict[str, Any] = {
        "name": "pagedbench",
        "version": __version__,
        "rules": [{"id": _rule(v), "shortDescription": {"text": _MEANINGS[v]}} for v in verdicts],
    }
    if unmet:
        driver["rules"].append({"id": _NOT_MET, "shortDescription": {"text": "A requirement on the run is not met."}})
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [
            *(_result(record, verdicts.index(record.verdict)) for record in failed),
            *(_unmet_result(sentence, len(verdicts)) for sentence in unmet),
        ],
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2, ensure_ascii=False) + "\n"


def _unmet_result(sentence: str, rule: int) -> dict[str, Any]:
    fingerprint = hashlib.sha256(sentence.encode()).hexdigest()
    return {
        "ruleId": _NOT_MET,
        "ruleIndex": rule,
        "level": "error",
        "message": {"text": sentence},
        "partialFingerprints": {"requirement/v1": fingerprint},
    }


def _rule(verdict: Verdict) -> str:
    return verdict.value.lower().replace(" ", "-")


def _result(record: CellRecord, rule: int) -> dict[str, Any]:
    lines = [f"{record.scenario} {record.target}", *failure_lines(record), f"again: {reproduce(record)}"]
    result: dict[str, Any] = {
        "ruleId": _rule(record.verdict),
        "ruleIndex": rule,
        "level": "error" if standing(record.verdict) is Standing.WRONG else "warning",
        "message": {"text": "\n".join(lines)},
        "partialFingerprints": {"cell/v1": hashlib.sha256("\0".join(record.key).encode()).hexdigest()},
    }
    where = place(record)
    if where is not None:
        region = {"startLine": where.line, "startColumn": where.column}
        location = {"artifactLocation": {"uri": where.file.replace("\\", "/")}, "region": region}
        result["locations"] = [{"physicalLocation": location}]
    return result
