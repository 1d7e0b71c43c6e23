"""Compare sides scenario by scenario: each is judged as a cell, then those that passed are timed in one worker.

This is the parent's part. Which words of the command line are sides is `sides.py`'s; what comes of the records is
`report/`'s.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol

from pagedbench.results.comparison import ComparisonRecord, PairRecord, SideRecord
from pagedbench.runner.cells import scenario_hash
from pagedbench.runner.environment import git_state
from pagedbench.runner.pool import Workers
from pagedbench.runner.process import WorkerGone
from pagedbench.runner.protocol import Job, ResolvedTarget
from pagedbench.runner.signals import interruptible
from pagedbench.runner.versus_job import VersusJob
from pagedbench.scenario.model import Scenario
from pagedbench.timing.options import HARD_SECONDS, TimingOptions
from pagedbench.words import Verdict

SUITE = "run"
"""The checks that a side must pass before it gets a time."""


@dataclass(frozen=True)
class SideChoice:
    """One side as resolved: a backend and one of its paths."""

    target: ResolvedTarget
    path: str


class Watcher(Protocol):
    """Is told how the comparison gets on."""

    def begin(self, label: str) -> None:
        """A scenario begins."""

    def stage(self, name: str) -> None:
        """A stage of it begins."""

    def end(self, record: ComparisonRecord) -> None:
        """Its record is there."""


@dataclass
class Compared:
    """All records, in order; `interrupted_by` is the signal that ended the comparison early."""

    planned: int
    records: list[ComparisonRecord] = field(default_factory=list)
    interrupted_by: signal.Signals | None = None


def compare_scenarios(
    scenarios: Sequence[Scenario],
    groups: Sequence[Sequence[SideChoice]],
    workers: Workers,
    timing: TimingOptions,
    watcher: Watcher,
) -> Compared:
    """A record for each scenario and group of sides."""
    result = Compared(planned=len(scenarios) * len(groups))
    environment = {**workers.environment, "git": git_state(Path.cwd())}
    facts = distinct_facts(scenarios)
    with interruptible() as interruption:
        for scenario in scenarios:
            for group in groups:
                watcher.begin(f"{scenario.name} {' '.join(f'{s.target.name}:{s.path}' for s in group)}")
                record = _compare(scenario, group, workers, timing, watcher)
                record.facts = facts[scenario.name]
                record.environment = environment
                result.records.append(record)
                watcher.end(record)
    result.interrupted_by = interruption.by
    return result


def _compare(
    scenario: Scenario, group: Sequence[SideChoice], workers: Workers, timing: TimingOptions, watcher: Watcher
) -> ComparisonRecord:
    attention = scenario.attention
    record = ComparisonRecord(
        scenario=scenario.name,
        device=workers.device,
        seed=scenario.inputs.seed,
        cache=timing.cache if workers.device != "cpu" else "warm",
        heads=attention.heads_told,
        dtype=attention.dtype,
        time=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        scenario_hash=scenario_hash(scenario),
    )
    there = [choice for choice in group if choice.target.available]
    if len(there) < min(2, len(group)):
        # What is left has nothing to be compared with: judging and timing it would only take time.
        record.sides = [_unjudged(choice, group, workers.device) for choice in group]
        return record
    record.sides = [_judged(scenario, choice, workers, watcher) for choice in group]
    passed = [index for index, side in enumerate(record.sides) if side.verdict is Verdict.PASS]
    if passed:
        _time(record, scenario, passed, group, workers, timing, watcher)
    return record


def _unjudged(choice: SideChoice, group: Sequence[SideChoice], device: str) -> SideRecord:
    """A side of a comparison that there cannot be: one that is not there, or the one beside it."""
    target = choice.target
    if target.available:
        absent = " and ".join(dict.fromkeys(c.target.name for c in group if not c.target.available))
        reason = f"not judged, since there is nothing to compare it with: {absent} is not available"
    else:
        reason = target.reason or f"{target.name} is not available on {device}"
    return SideRecord(target.name, choice.path, Verdict.SKIPPED, reason, None, target.version)


def _judged(scenario: Scenario, choice: SideChoice, workers: Workers, watcher: Watcher) -> SideRecord:
    """The side as a cell: right, or why it gets no time."""
    job = Job(scenario, choice.target.name, choice.path, workers.device, SUITE, diagnose=False)
    cell = workers.judge(job, choice.target.compile_seconds, watcher.stage)
    return SideRecord(
        choice.target.name, choice.path, cell.verdict, cell.message, cell.worst_error, choice.target.version
    )


def _time(
    record: ComparisonRecord,
    scenario: Scenario,
    passed: Sequence[int],
    group: Sequence[SideChoice],
    workers: Workers,
    timing: TimingOptions,
    watcher: Watcher,
) -> None:
    """Fill in the times of the sides that passed, and their pairs."""
    sides = tuple((record.sides[i].backend, record.sides[i].path) for i in passed)
    sampling = 2 * len(passed) * timing.max_seconds + HARD_SECONDS
    seconds = sum(group[i].target.compile_seconds for i in passed) + sampling
    try:
        reply = workers.ask(VersusJob(scenario, sides, workers.device, timing).to_message(), seconds, watcher.stage)
    except WorkerGone as gone:
        record.message = f"no times: {gone.reason}"
        return
    if reply["event"] == "failed":
        record.message = f"no times: {reply['message']}"
        return
    _fill_in(record, passed, reply["found"])


def _fill_in(record: ComparisonRecord, passed: Sequence[int], found: dict[str, Any]) -> None:
    record.work = found["work"]
    for index, told in zip(passed, found["sides"], strict=True):
        side = record.sides[index]
        side.timing, side.ignores_splits = told["timing"], told["ignores_splits"]
        invalid = told["wrong"] or (side.timing or {}).get("invalid")
        if invalid:
            side.message = invalid
            side.verdict = Verdict(told["verdict"])
    record.pairs = [PairRecord(**{**p, "a": passed[p["a"]], "b": passed[p["b"]]}) for p in found["pairs"]]


def distinct_facts(scenarios: Sequence[Scenario]) -> dict[str, dict[str, Any]]:
    """The facts of each scenario by its name.

    Where they do not tell the variants of one scenario apart (lengths with the same longest one), those have what they
    set in the batch as facts too: else they would share a place in a map.
    """
    facts = {scenario.name: facts_of(scenario) for scenario in scenarios}
    for family in {scenario.name.partition("[")[0] for scenario in scenarios}:
        own = [s for s in scenarios if s.name.partition("[")[0] == family]
        if len({str(facts[s.name]) for s in own}) < len(own):
            for scenario in own:
                facts[scenario.name] |= {p: str(v) for p, v in scenario.variant.items() if p.startswith("batch.")}
    return facts


def facts_of(scenario: Scenario) -> dict[str, Any]:
    """What places a scenario in a grid: its shape in numbers, and whatever else its variant changes.

    `keys` and `query_len` are the longest of the batch; keys count the new tokens where they are appended.
    """
    batch = scenario.batch
    keys = [c + q if batch.append else c for q, c in zip(batch.query_lens, batch.cached_lens, strict=True)]
    facts: dict[str, Any] = {
        "batch": batch.size,
        "keys": max(keys, default=0),
        "query_len": max(batch.query_lens, default=0),
        "block_size": scenario.cache.block_size,
        "placement": scenario.cache.placement if scenario.cache.block_table is None else "as written",
        "num_splits": scenario.attention.num_splits or "auto",
    }
    covered = ("batch.", "cache.block_size", "cache.placement", "attention.num_splits")
    facts |= {path: value for path, value in scenario.variant.items() if not path.startswith(covered)}
    return facts
