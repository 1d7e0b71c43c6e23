"""What the oracle costs: time and extra memory of the longest answers, alone on the card, against the project's goals.

Goals on an H200: a causal prefill of 32,768 tokens in about half a second, one query token over 1,048,576 keys in well
under 0.1 s, and extra memory that does not grow with the lengths. Inputs are drawn before the clock starts. Prints the
median of some answers and the memory they took beyond their inputs and their result; exits 1 where a goal is missed.

Run: python benchmarks/oracle_cost.py [--device cuda]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import torch

from pagedbench.layout.build import build_layout
from pagedbench.oracle.reference import Reference, reference
from pagedbench.scenario.loader import loads
from pagedbench.scenario.model import Scenario
from pagedbench.tensors.inputs import random_inputs

CASES = """\
name: prefill-{prefill}
batch: {{query_lens: [{prefill}], cached_lens: [0]}}
cache: {{block_size: 16}}
attention: {{num_heads: 32, num_kv_heads: 8, head_dim: 128}}
---
name: decode-{keys}
batch: {{query_lens: [1], cached_lens: [{cached}]}}
cache: {{block_size: 16}}
attention: {{num_heads: 32, num_kv_heads: 8, head_dim: 128}}
"""
GOAL_SECONDS = {"prefill-32768": 0.55, "decode-1048576": 0.1}


def cases(shrink: int) -> list[Scenario]:
    """The two longest answers of the goals, or of `1/shrink` of their lengths."""
    keys = (1 << 20) // shrink
    return loads(CASES.format(prefill=32768 // shrink, keys=keys, cached=keys - 1))


def measure(scenario: Scenario, device: str, times: int) -> tuple[float, float, Reference]:
    """Median seconds of an answer, MiB held beyond inputs and result at the peak (0 on a CPU), and the answer."""
    layout = build_layout(scenario)
    inputs = random_inputs(scenario, layout, torch.device(device))
    on_gpu, seconds, held = device == "cuda", [], 0.0
    for _ in range(times + 1):
        if on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        begun = time.perf_counter()
        answer = reference(inputs, layout, scenario.attention, device=device)
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
        if on_gpu:
            held = (torch.cuda.max_memory_allocated() - max(before, torch.cuda.memory_allocated())) / 2**20
    return statistics.median(seconds[1:]), held, answer


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--shrink", type=int, default=1, help="divide the lengths by this, to try it on a CPU")
    options = parser.parse_args()
    missed = 0
    for scenario in cases(options.shrink):
        seconds, held, answer = measure(scenario, options.device, options.times)
        goal = GOAL_SECONDS.get(scenario.name)
        ratio = f"  {seconds / goal:5.2f} of the goal" if goal else ""
        sampled = f"  (a sample of {len(answer.rows)} rows of {answer.total_rows})" if answer.sampled else ""
        print(f"{scenario.name:<16} {1e3 * seconds:8.1f} ms{ratio}  {held:6.0f} MiB beyond inputs and result{sampled}")
        missed += bool(goal and options.device == "cuda" and seconds > goal)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
