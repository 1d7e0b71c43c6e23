"""Compare a side with itself, many times: how often is it called different from itself?

Run: python benchmarks/identical_sides.py [SIDE] [SCENARIO] [--times 20] [--json FILE]

The promise is at most one in twenty, and samples enough to tell each time. Every comparison prepares afresh and has a
seed of its own; what is timed and how it is judged are those of `pagedbench compare`, in this process. Exits 1 where
the promise is not kept.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pagedbench.results.comparison import TOO_FEW
from pagedbench.runner.common import Common
from pagedbench.runner.environment import choose_device
from pagedbench.runner.versus import versus
from pagedbench.runner.versus_job import VersusJob
from pagedbench.scenario.loader import load_scenarios
from pagedbench.timing.options import TimingOptions

ALLOWED = 1
DIFFERENT = ("faster", "slower")


def silent(event: str, **values: object) -> None:
    """Nobody watches the stages."""


def compare_with_itself(job: VersusJob, common: Common) -> dict[str, Any]:
    """The pair of one comparison. Raises `SystemExit` where the side is wrong and has no time."""
    found = versus(job, silent, common)
    if not found["pairs"]:
        raise SystemExit(f"{':'.join(job.sides[0])} has no time: {found['sides'][0]['wrong']}")
    pair: dict[str, Any] = found["pairs"][0]
    kernel = [side["timing"]["quantities"]["kernel"]["median"] / 1e3 for side in found["sides"]]
    return {**pair, "kernel_us": kernel}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side", nargs="?", default="flash-attn-3:decode", help="BACKEND:PATH")
    parser.add_argument("scenario", nargs="?", default="docs-decode")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--max-seconds", type=float, default=0.5, help="of sampling a side and comparison")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, help="also write the pairs to this file")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """All comparisons, a line each, and the count."""
    options = parse(arguments)
    backend, _, path = options.side.rpartition(":")
    scenario, device = load_scenarios([options.scenario])[0], choose_device(options.device)
    began, pairs = time.perf_counter(), []
    for seed in range(options.times):
        timing = TimingOptions(max_seconds=options.max_seconds, seed=seed)
        pair = compare_with_itself(VersusJob(scenario, ((backend, path),) * 2, device, timing), Common())
        pairs.append(pair)
        interval = f"{pair['ratio']:.4f} [{pair['low']:.4f}, {pair['high']:.4f}]"
        print(f"{seed + 1:2} {interval} {pair['pairs']} pairs: {pair['verdict']}", flush=True)
    different = sum(pair["verdict"] in DIFFERENT for pair in pairs)
    few = sum(pair["verdict"] == TOO_FEW for pair in pairs)
    seconds = (time.perf_counter() - began) / options.times
    told = f"{different} of {options.times} called different, {few} too few samples to tell; {seconds:.2f} s each"
    print(f"{options.side} on {options.scenario}: {told}")
    if options.json:
        found = {"side": options.side, "scenario": options.scenario, "different": different, "few": few, "pairs": pairs}
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return int(different > ALLOWED or few > 0)


if __name__ == "__main__":
    sys.exit(main())
