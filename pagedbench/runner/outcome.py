"""From a judged cell to the verdict that counts: `expect`, `--strict` and `--require`, and the exit code.

Works on records alone, so that a resumed or merged run is judged by the same rules as a fresh one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pagedbench.results.record import CellRecord
from pagedbench.runner.paths import plain_target
from pagedbench.scenario.model import Expectation
from pagedbench.words import ExitCode, Verdict, exit_code

_WANT_OF_MEMORY = ("out of memory", "gib of memory", "cuda_error_out_of_memory")
NOW_PASSES = "now passes: remove the expectation"


def expectation_of(backend: str, path: str, expectations: Sequence[Expectation]) -> Expectation | None:
    """The most specific expectation of a cell (`backend:path` before `backend`)."""
    applying = {plain_target(e.target): e for e in expectations}
    return applying.get(plain_target(f"{backend}:{path}")) or applying.get(plain_target(backend))


def apply_expectation(record: CellRecord, expectations: Sequence[Expectation]) -> None:
    """Turn a known outcome into EXPECTED, and say so when it no longer happens.

    A cell that was skipped cannot tell whether a failure still happens, and stays SKIPPED.
    """
    expected = expectation_of(record.backend, record.path, expectations)
    if expected is None:
        return
    if _matches(expected.outcome, record.verdict):
        record.expected = {
            "outcome": expected.outcome,
            "because": expected.because,
            "verdict": record.verdict.value,
        }
        record.message = (
            f"{expected.because} ({record.verdict}: {record.message})" if record.message else expected.because
        )
        record.verdict = Verdict.EXPECTED
    elif record.verdict is Verdict.PASS:
        record.warnings.append(f"{NOW_PASSES} (expected: {expected.outcome}, {expected.because})")
    elif record.verdict is not Verdict.SKIPPED:
        record.warnings.append(f"expected {expected.outcome} ({expected.because}), but this is {record.verdict}")


def wants_memory(record: CellRecord) -> bool:
    """Whether a cell had no verdict, or no pass, for want of memory, in the words of the tool and of its libraries."""
    undecided = record.verdict in (Verdict.SKIPPED, Verdict.ERROR, Verdict.CRASHED, Verdict.NO_REFERENCE)
    words = record.message.lower()
    return undecided and any(phrase in words for phrase in _WANT_OF_MEMORY)


def _matches(outcome: str, verdict: Verdict) -> bool:
    if outcome == "skip":
        return verdict is Verdict.SKIPPED
    if outcome == "raises":
        return verdict in (Verdict.ERROR, Verdict.CRASHED)
    return verdict.is_wrong


def unmet_requirements(records: Sequence[CellRecord], required: Iterable[str]) -> list[str]:
    """A sentence for each scenario that a required target left unjudged.

    A backend meets the requirement on any of its paths, since a batch need not fit all; `backend:path` on that path.
    """
    sentences = []
    for target in required:
        plain = plain_target(target)
        own = [r for r in records if plain in (plain_target(r.backend), plain_target(r.target))]
        if not own:
            sentences.append(f"{target} is required, but no cell was run with it")
        for scenario in dict.fromkeys(r.scenario for r in own):
            cells = [r for r in own if r.scenario == scenario]
            if all(r.verdict is Verdict.SKIPPED for r in cells):
                sentences.append(f"{target} is required, but {scenario} was skipped: {cells[0].message}")
    return sentences


def strict_failures(records: Iterable[CellRecord]) -> list[str]:
    """What `--strict` does not let through: passes that could not have failed, and expectations out of date."""
    return [
        f"{r.scenario} {r.target}: {warning}"
        for r in records
        if r.verdict is Verdict.PASS
        for warning in r.all_warnings
        if warning.startswith(("BLIND", NOW_PASSES))
    ]


def final_exit_code(records: Sequence[CellRecord], *, undecided: bool, slower: bool = False) -> ExitCode:
    """The exit code of a run. `undecided`: something that had to be judged was not (`--require`, `--strict`)."""
    verdicts = [r.verdict for r in records]
    if undecided:
        verdicts.append(Verdict.NO_REFERENCE)
    return exit_code(verdicts, slower=slower)
