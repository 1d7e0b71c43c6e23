"""What the checks of one small scenario cost: every check of a suite, a cell, against the goal of the project.

The goal: all checks of one small scenario in at most 40 ms a cell on an H200 after warm-up, 300 ms on a CPU. Cells are
walked as the worker walks them, in this process: the paths of a scenario after each other, the first of which makes the
inputs and the oracle's answer for all (`alone` counts them to every cell). The first walks (kernels compiled, libraries
loaded) are not counted. Prints medians in milliseconds as soon as they are measured: of a scenario's cells in the mean,
which is what is held against the goal, and below it of each cell with its checks. Exits 1 where a scenario misses the
goal or a cell does not pass. A scenario is walked `--walks` times, or fewer within `--seconds`.

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
from pagedbench.runner.common import Common
from pagedbench.runner.protocol import Job
from pagedbench.scenario.loader import load_scenarios
from pagedbench.words import Verdict

SCENARIOS = ("docs-decode", "docs-varlen", "edge-first-token", "edge-block-boundaries", "edge-zero-keys")
GOAL_MS = {"cuda": 40.0, "cpu": 300.0}
_CHECK = "the check "


@dataclass(frozen=True)
class Cost:
    """A cell's path, its verdict, and medians in milliseconds: of the whole walk, and of each stage of it."""

    path: str
    verdict: Verdict
    total: float
    stages: dict[str, float]


Walk = list[tuple[float, CellRecord]]


def walked(jobs: Sequence[Job], *, alone: bool) -> Walk:
    """Seconds and record of each job, one after the other, nothing made before."""
    common, walk = Common(), []
    for job in jobs:
        begun = time.perf_counter()
        record = judge(job, lambda event, **values: None, common=Common() if alone else common).record
        walk.append((time.perf_counter() - begun, record))
    return walk


def measure(jobs: Sequence[Job], warm_ups: int, walks: int, seconds: float, *, alone: bool) -> list[Cost]:
    """Walk a scenario's cells again and again: `warm_ups` times unseen, then `walks` times, or until `seconds` have
    passed. Cells that are skipped are left out."""
    for _ in range(warm_ups):
        verdicts = [record.verdict for _, record in walked(jobs, alone=alone)]
    jobs = [job for job, verdict in zip(jobs, verdicts, strict=True) if verdict is not Verdict.SKIPPED]
    gc.collect()
    gc.freeze()  # as the worker does: what was there before a cell is not looked through after it
    timed, begun = [walked(jobs, alone=alone)], time.perf_counter()
    while len(timed) < walks and time.perf_counter() - begun < seconds:
        timed.append(walked(jobs, alone=alone))
    return [_cost(job, [walk[number] for walk in timed]) for number, job in enumerate(jobs)]


def _cost(job: Job, walks: Walk) -> Cost:
    record = walks[-1][1]
    stages = {
        name.removeprefix(_CHECK): 1e3 * statistics.median(found.durations[name] for _, found in walks)
        for name in record.durations
    }
    return Cost(job.path, record.verdict, 1e3 * statistics.median(seconds for seconds, _ in walks), stages)


def told(cost: Cost) -> str:
    """One cell: in all, and each stage."""
    stages = "  ".join(f"{name.removeprefix('its ')} {ms:.1f}" for name, ms in cost.stages.items())
    return f"  {cost.path:<13} {cost.total:6.1f}: {stages}"


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", default=list(SCENARIOS), help="names, files or folders")
    parser.add_argument("--device", choices=list(GOAL_MS), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--backend", action="append", help="default: torch")
    parser.add_argument("--suite", default="full")
    parser.add_argument("--alone", action="store_true", help="each cell makes its own inputs and oracle's answer")
    parser.add_argument("--warm-ups", type=int, default=2)
    parser.add_argument("--walks", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="of counted walks a scenario")
    options = parser.parse_args()
    scenarios, missed, goal = load_scenarios(options.scenarios), 0, GOAL_MS[options.device]
    for name in options.backend or ["torch"]:
        print(f"{name} on {options.device}: goal {goal:g} ms a cell", flush=True)
        paths = find_backend(name).paths
        for scenario in scenarios:
            jobs = [Job(scenario, name, path.value, options.device, options.suite) for path in paths]
            costs = measure(jobs, options.warm_ups, options.walks, options.seconds, alone=options.alone)
            if not costs:
                continue
            mean = statistics.mean(cost.total for cost in costs)
            bad = [cost for cost in costs if cost.verdict is not Verdict.PASS]
            missed += bool(mean > goal or bad)
            wrong = "".join(f"  {cost.path} {cost.verdict.value}" for cost in bad)
            print(f"{scenario.name:<24} {mean:6.1f} ms a cell  {mean / goal:5.2f} of the goal{wrong}", flush=True)
            print("\n".join(told(cost) for cost in costs), flush=True)
    gc.unfreeze()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
