"""What the checks of one small scenario cost: every check of a suite, a cell, against the goal of the project.

The goal: all checks of one small scenario in at most 40 ms a cell on an H200 after warm-up, 300 ms on a CPU. Cells are
walked as the worker walks them, in this process: the paths of a scenario after each other, the first of which makes the
inputs and the oracle's answer for all (`alone` counts them to every cell). The first walks (kernels compiled, libraries
loaded) are not counted. Then the scenarios are walked in turn, `--walks` times or for `--seconds` each: a machine that
others use as well has phases of a second or more in which the same walk takes half as long again. So the lower quartile
of a scenario's walks is held against the goal; the median stands beside it, and below it that of each cell with its
checks, all in milliseconds. Exits 1 where a scenario misses the goal or a cell does not pass.

Run: python benchmarks/check_cost.py [--device cuda] [--backend torch --backend flash-attn-3] [SCENARIO ...]
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from pagedbench.backends.registry import find_backend
from pagedbench.results.record import CellRecord
from pagedbench.runner.cell import judge
from pagedbench.runner.common import Common
from pagedbench.runner.protocol import Job
from pagedbench.scenario.loader import load_scenarios
from pagedbench.scenario.model import Scenario
from pagedbench.words import Verdict

SCENARIOS = ("docs-decode", "docs-varlen", "edge-first-token", "edge-block-boundaries", "edge-zero-keys")
GOAL_MS = {"cuda": 40.0, "cpu": 300.0}
_CHECK = "the check "


@dataclass(frozen=True)
class Cost:
    """A cell's path, its verdict, and medians in milliseconds: of all of it, and of each of its stages."""

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


@dataclass
class Measured:
    """A scenario's cells that are not skipped, and the walks over them that count."""

    scenario: Scenario
    jobs: list[Job]
    walks: list[Walk] = field(default_factory=list)

    @classmethod
    def warmed_up(cls, scenario: Scenario, jobs: Sequence[Job], warm_ups: int, *, alone: bool) -> Measured:
        """After so many walks that do not count, which show what is skipped."""
        for _ in range(warm_ups):
            verdicts = [record.verdict for _, record in walked(jobs, alone=alone)]
        pairs = zip(jobs, verdicts, strict=True)
        return cls(scenario, [job for job, verdict in pairs if verdict is not Verdict.SKIPPED])

    def totals(self) -> list[float]:
        """Milliseconds a cell of each walk, ascending."""
        return sorted(1e3 * statistics.mean(seconds for seconds, _ in walk) for walk in self.walks)

    def costs(self) -> list[Cost]:
        """Each cell's."""
        return [_cost(job, [walk[number] for walk in self.walks]) for number, job in enumerate(self.jobs)]


def measure(scenarios: Sequence[Scenario], backend: str, options: argparse.Namespace) -> list[Measured]:
    """Warm up, then walk the scenarios in turn."""
    paths, found = find_backend(backend).paths, []
    for scenario in scenarios:
        jobs = [Job(scenario, backend, path.value, options.device, options.suite) for path in paths]
        found.append(Measured.warmed_up(scenario, jobs, options.warm_ups, alone=options.alone))
    gc.collect()
    gc.freeze()  # as the worker does: what was there before a cell is not looked through after it
    found, begun = [measured for measured in found if measured.jobs], time.perf_counter()
    for _ in range(options.walks):
        for measured in found:
            measured.walks.append(walked(measured.jobs, alone=options.alone))
        if time.perf_counter() - begun > options.seconds * len(found):
            break
    gc.unfreeze()
    return found


def _cost(job: Job, walks: Walk) -> Cost:
    record = walks[-1][1]
    stages = {
        name.removeprefix(_CHECK): 1e3 * statistics.median(found.durations[name] for _, found in walks)
        for name in record.durations
    }
    return Cost(job.path, record.verdict, 1e3 * statistics.median(seconds for seconds, _ in walks), stages)


def told(measured: Measured, goal: float) -> bool:
    """Print a scenario; whether it keeps the goal and all its cells pass."""
    totals, costs = measured.totals(), measured.costs()
    cost, middle = totals[len(totals) // 4], statistics.median(totals)
    bad = [cell for cell in costs if cell.verdict is not Verdict.PASS]
    wrong = "".join(f"  {cell.path} {cell.verdict.value}" for cell in bad)
    figures = f"{cost:6.1f} ms a cell  {cost / goal:5.2f} of the goal  (median {middle:.1f})"
    print(f"{measured.scenario.name:<24} {figures}{wrong}", flush=True)
    for cell in costs:
        stages = "  ".join(f"{name.removeprefix('its ')} {ms:.1f}" for name, ms in cell.stages.items())
        print(f"  {cell.path:<13} {cell.total:6.1f}: {stages}", flush=True)
    return cost <= goal and not bad


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", default=list(SCENARIOS), help="names, files or folders")
    parser.add_argument("--device", choices=list(GOAL_MS), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--backend", action="append", help="default: torch")
    parser.add_argument("--suite", default="full")
    parser.add_argument("--alone", action="store_true", help="each cell makes its own inputs and oracle's answer")
    parser.add_argument("--warm-ups", type=int, default=2)
    parser.add_argument("--walks", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1.0, help="of counted walks a scenario, in the mean")
    options = parser.parse_args()
    scenarios, kept, goal = load_scenarios(options.scenarios), True, GOAL_MS[options.device]
    for name in options.backend or ["torch"]:
        print(f"{name} on {options.device}: goal {goal:g} ms a cell", flush=True)
        within = [told(measured, goal) for measured in measure(scenarios, name, options)]
        kept = kept and all(within)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
