"""What the checks of one small scenario cost: every check of a suite, a cell, against the goal of the project.

The goal: all checks of one small scenario in at most 40 ms a cell on an H200 after warm-up, 300 ms on a CPU. Cells are
walked as the worker walks them, in this process; the first walks of each cell (kernels compiled, libraries loaded) are
not counted. Prints each cell's medians in milliseconds as soon as it is measured, of each check and of the whole cell;
exits 1 where a cell misses the goal or does not pass. A cell is walked `--walks` times, or fewer within `--seconds`.

Run: python benchmarks/check_cost.py [--device cuda] [--backend torch --backend flash-attn-3] [SCENARIO ...]
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pagedbench.backends.registry import find_backend
from pagedbench.results.record import CellRecord
from pagedbench.runner.cell import judge
from pagedbench.runner.protocol import Job
from pagedbench.scenario.loader import load_scenarios
from pagedbench.scenario.model import Scenario
from pagedbench.words import Verdict

SCENARIOS = ("docs-decode", "docs-varlen", "edge-first-token", "edge-block-boundaries", "edge-zero-keys")
GOAL_MS = {"cuda": 40.0, "cpu": 300.0}
_CHECK = "the check "


@dataclass(frozen=True)
class Cost:
    """A cell's name, its verdict, and medians in milliseconds: of the whole walk, and of each stage of it."""

    cell: str
    verdict: Verdict
    total: float
    stages: dict[str, float]


def measure(job: Job, warm_ups: int, walks: int, seconds: float) -> Cost:
    """Walk a cell again and again: `warm_ups` times unseen, then `walks` times, or until `seconds` have passed."""

    def walk() -> tuple[float, CellRecord]:
        begun = time.perf_counter()
        record = judge(job, lambda event, **values: None).record
        return time.perf_counter() - begun, record

    cell = f"{job.scenario.name} {job.path}"
    for _ in range(warm_ups):
        verdict = walk()[1].verdict
        if verdict is Verdict.SKIPPED:
            return Cost(cell, verdict, 0.0, {})
    gc.collect()
    gc.freeze()  # as the worker does: what was there before a cell is not looked through after it
    timed, begun = [walk()], time.perf_counter()
    while len(timed) < walks and time.perf_counter() - begun < seconds:
        timed.append(walk())
    record = timed[-1][1]
    stages = {
        name.removeprefix(_CHECK): 1e3 * statistics.median(found.durations[name] for _, found in timed)
        for name in record.durations
    }
    return Cost(cell, record.verdict, 1e3 * statistics.median(seconds for seconds, _ in timed), stages)


def cells(scenarios: Sequence[Scenario], backend: str, device: str, suite: str) -> list[Job]:
    """One job a scenario and path of the backend."""
    paths = find_backend(backend).paths
    return [Job(scenario, backend, path.value, device, suite) for scenario in scenarios for path in paths]


def row(cost: Cost, device: str) -> str:
    """One cell: in all, its share of the goal, and each stage."""
    stages = "  ".join(f"{name.removeprefix('its ')} {ms:.1f}" for name, ms in cost.stages.items())
    return f"{cost.cell:<34} {cost.total:7.1f} ms  {cost.total / GOAL_MS[device]:5.2f} of the goal   {stages}"


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", default=list(SCENARIOS), help="names, files or folders")
    parser.add_argument("--device", choices=list(GOAL_MS), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--backend", action="append", help="default: torch")
    parser.add_argument("--suite", default="full")
    parser.add_argument("--warm-ups", type=int, default=2)
    parser.add_argument("--walks", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.3, help="of counted walks a cell")
    options = parser.parse_args()
    scenarios, missed = load_scenarios(options.scenarios), 0
    for backend in options.backend or ["torch"]:
        print(f"{backend} on {options.device}: goal {GOAL_MS[options.device]:g} ms a cell", flush=True)
        for job in cells(scenarios, backend, options.device, options.suite):
            cost = measure(job, options.warm_ups, options.walks, options.seconds)
            if cost.verdict is Verdict.SKIPPED:
                continue
            print(row(cost, options.device), flush=True)
            if cost.verdict is not Verdict.PASS or cost.total > GOAL_MS[options.device]:
                print(f"  missed: {cost.verdict.value}, {cost.total:.1f} ms", flush=True)
                missed += 1
    gc.unfreeze()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
