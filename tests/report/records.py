"""Records as a run would make them, for the tests of reports."""

from __future__ import annotations

from typing import Any

from pagedbench.results.record import CellRecord, CheckDict
from pagedbench.words import Verdict

ENVIRONMENT = {
    "gpu": "NVIDIA H200",
    "driver": "580.159",
    "cuda": "13.0",
    "torch": "2.11.0",
    "libraries": {"triton": "3.6.0"},
    "git": {"commit": "0123456789ab", "dirty": False},
    "backend_version": "2.8.3",
}
HOSTILE = "</script><script>alert(1)</script>\"'&<b>|`@someone #12\x00\x1b[31m"


def check(name: str = "accuracy", verdict: Verdict = Verdict.PASS, message: str = "fine", **more: Any) -> CheckDict:
    result: CheckDict = {
        "check": name,
        "verdict": verdict.value,
        "message": message,
        "findings": [],
        "metrics": {},
        "warnings": [],
    }
    result.update(more)  # type: ignore[typeddict-item]
    return result


def record(verdict: Verdict = Verdict.PASS, *, scenario: str = "docs-decode", **fields: Any) -> CellRecord:
    fields = {
        "backend": "torch",
        "path": "decode",
        "device": "cuda",
        "time": "2026-11-30T10:20:30+00:00",
        "run": "abc",
        "where": "scenarios/docs/decode.yaml:2:7",
        "environment": ENVIRONMENT,
        "durations": {"the check accuracy": 0.25, "the check cache-update": 0.5, "total": 1.0},
        **fields,
    }
    return CellRecord(scenario=scenario, verdict=verdict, **fields)


def passed(**fields: Any) -> CellRecord:
    return record(checks=[check(), check("cache-update")], worst_error=0.38, **fields)


def wrong(**fields: Any) -> CellRecord:
    """Sequence 1's new token is not seen."""
    message = "sequence 1, query token 0, head 3: error 2.63 is 129 times the budget of 0.0204"
    coordinates = {"sequence": 1, "query_token": 0, "head": 3, "key": 32, "logical_block": 1, "physical_block": 17}
    failed = check("accuracy", Verdict.MISMATCH, message, findings=[{"message": message, **coordinates}])
    given = {
        "backend": "kernel.py:my_decode",
        "message": message,
        "worst_error": 129.0,
        "checks": [failed, check("cache-update")],
        "diagnosis": [{"sentence": "matches a kernel that reads one key less", "fault": "last-key", "score": 0.9}],
        **fields,
    }
    return record(Verdict.MISMATCH, **given)


def crashed(**fields: Any) -> CellRecord:
    given = {
        "backend": "bad.py:abort_decode",
        "message": "abort() was called (SIGABRT)",
        "stderr": "Fatal Python error: Aborted\nframe",
        **fields,
    }
    return record(Verdict.CRASHED, **given)


def skipped(**fields: Any) -> CellRecord:
    return record(Verdict.SKIPPED, message="decode cannot take prefill", **fields)


def expected(**fields: Any) -> CellRecord:
    """A known mismatch."""
    known = {"outcome": "fail", "because": "known since 2.8", "verdict": "MISMATCH"}
    given = {"backend": "fa", "message": "known since 2.8 (MISMATCH: too large)", "expected": known, **fields}
    return record(Verdict.EXPECTED, checks=[check("accuracy", Verdict.MISMATCH, "too large"), check("b")], **given)


def hostile(**fields: Any) -> CellRecord:
    """Everything that a user can write holds markup of every kind."""
    given = {"scenario": f"evil[{HOSTILE}]", "backend": HOSTILE, "message": HOSTILE, "about": HOSTILE, **fields}
    finding = {"message": HOSTILE, "sequence": 0}
    return record(
        Verdict.LEAK,
        checks=[check(HOSTILE, Verdict.LEAK, HOSTILE, findings=[finding], warnings=[HOSTILE])],
        scenario_text=HOSTILE,
        error=HOSTILE,
        stderr=HOSTILE,
        diagnosis=[{"sentence": HOSTILE, "fault": HOSTILE, "score": 0.5}],
        pictures={HOSTILE: f"<svg xmlns='http://www.w3.org/2000/svg'>{HOSTILE}</svg>"},
        **given,
    )


def timed(median_us: float, **fields: Any) -> CellRecord:
    """A passing cell with eleven samples around its median, kept in ns as `timing/` does."""
    samples = [median_us * 1e3 * (1 + (i - 5) / 100) for i in range(11)]
    kernel = {
        "name": "kernel",
        "samples": samples,
        "median": median_us * 1e3,
        "low": median_us * 990,
        "high": median_us * 1010,
        "confidence": 0.95,
    }
    return passed(
        time_us=median_us,
        spread_us=median_us / 100,
        gb_per_s=3230.0,
        tflop_per_s=1.5,
        limit_share=0.83,
        timing={"device": "cuda", "quantities": {"kernel": kernel}},
        **fields,
    )


def everything() -> list[CellRecord]:
    """One of each kind."""
    return [passed(), wrong(), crashed(), skipped(), expected(), timed(12.7, scenario="fast"), hostile()]
