"""Does the gate of `check --baseline` hold? Identical code must raise no alarm, a slow-down of 5 % must be found.

Run: python benchmarks/baseline_gate.py [--runs 20] [--slow-runs 5] [--seconds 560] [--json FILE]

Saves a baseline of `slowed.py` in so many processes, then runs `pagedbench check --baseline`, each run in fresh
processes, as its user would: with the same code, and now and then with a kernel slower by SLOWDOWN. Exit code 4 is an
alarm. On a CPU the noise of the machine may hide a slow-down, which is told; on a GPU it must be found.
Exits 1 where the promise is not kept, 2 where no baseline could be made.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from pagedbench.results.baseline import FOLDER, CellChange, compare_records, load_baseline
from pagedbench.results.record import CellRecord
from pagedbench.results.store import read_records

ROOT = Path(__file__).resolve().parent.parent
NAME = "gate"
SLOWER = 4
# About 100 us on an H200, and many times its L2.
ON_GPU = """
name: gate
batch: {spec: 16q1s6k}
cache: {block_size: 16}
attention: {num_heads: 32, num_kv_heads: 8, head_dim: 128, dtype: bfloat16}
"""


@dataclass(frozen=True)
class Run:
    """One run of the gate: `exit` is its exit code, `ratio` new time over old with its interval."""

    slowed: bool
    exit: int
    change: str
    reason: str
    median_us: float
    ratio: float | None
    low: float | None
    high: float | None
    seconds: float

    def line(self) -> str:
        """For a person."""
        code = "slowed" if self.slowed else "same"
        return f"{code:6} {self.median_us:9.1f} us, {self.reason}; exit {self.exit} ({self.seconds:.1f} s)"


@dataclass(frozen=True)
class Gate:
    """Where and on what the runs happen."""

    folder: Path
    scenario: str
    device: str

    def pagedbench(self, *words: object, slowdown: float = 1.0) -> subprocess.CompletedProcess[str]:
        """Run a command in a process of its own."""
        target = f"{ROOT / 'benchmarks' / 'slowed.py'}:decode"
        command = [sys.executable, "-m", "pagedbench", *map(str, words), "--backend", target, "--device", self.device]
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "SLOWDOWN": str(slowdown)}
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False, timeout=600
        )

    def save(self, processes: int) -> None:
        """Make the baseline. Raises `SystemExit`."""
        done = self.pagedbench("baseline", "save", NAME, self.scenario, "--processes", processes)
        if done.returncode:
            print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
            raise SystemExit(2)

    def check(self, number: int, slowdown: float) -> Run:
        """One run of the gate."""
        began, file = time.perf_counter(), self.folder / f"run-{number}.jsonl"
        words = ("check", self.scenario, "--suite", "quick", "--baseline", NAME, "--json", file, "--no-github")
        done = self.pagedbench(*words, slowdown=slowdown)
        seconds = time.perf_counter() - began
        if done.returncode not in (0, SLOWER):
            print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
        records = read_records(file) if file.exists() else []
        change = self._change(records) if records else None
        told = (change.ratio, change.low, change.high) if change else (None, None, None)
        said = change.reason if change else "no records"
        name = change.change if change else ""
        return Run(slowdown > 1, done.returncode, name, said, median_us(records), *told, seconds)

    def _change(self, records: Sequence[CellRecord]) -> CellChange:
        """What the gate saw: the records against the baseline once more."""
        return compare_records(records, load_baseline(NAME, self.folder / FOLDER)).changes[0]


def median_us(records: Sequence[CellRecord]) -> float:
    """The median of the processes' medians."""
    return median([record.time_us or 0.0 for record in records] or [0.0])


def in_turn(runs: int, slow_runs: int) -> list[bool]:
    """Which runs are slowed: spread evenly among the others, so that an early end keeps some of both."""
    places = [(place + 0.5) / runs for place in range(runs)]
    slow = [(place + 0.5) / slow_runs for place in range(slow_runs)]
    return [slowed for _, slowed in sorted([(p, False) for p in places] + [(p, True) for p in slow])]


def all_runs(gate: Gate, options: argparse.Namespace, began: float, old_us: float) -> list[Run]:
    """The runs that the time holds, a line each; the file is written after each, so that an early end keeps them."""
    done: list[Run] = []
    for slowed in in_turn(options.runs, options.slow_runs):
        longest = max((run.seconds for run in done), default=0.0)
        if time.perf_counter() - began + longest > options.seconds:
            print(f"stopped after {time.perf_counter() - began:.0f} s")
            break
        done.append(gate.check(len(done) + 1, options.slowdown if slowed else 1.0))
        print(f"{len(done):2} {done[-1].line()}", flush=True)
        if options.json:
            told: dict[str, Any] = {"device": gate.device, "scenario": gate.scenario, "baseline_us": old_us}
            told |= {"slowdown": options.slowdown, "summary": asdict(Summary.of(done)), "runs": list(map(asdict, done))}
            options.json.write_text(json.dumps(told, indent=1), encoding="utf-8")
    return done


@dataclass(frozen=True)
class Summary:
    """How many runs of each kind were done, and how many raised an alarm or were ambiguous."""

    same: int
    false_alarms: int
    same_ambiguous: int
    slowed: int
    found: int
    failed: int

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Summary:
        """The counts."""
        same, slowed = ([run for run in runs if run.slowed is kind] for kind in (False, True))
        alarms = [sum(run.exit == SLOWER for run in kind) for kind in (same, slowed)]
        ambiguous = sum(run.change == "ambiguous" for run in same)
        failed = sum(run.exit not in (0, SLOWER) for run in runs)
        return cls(len(same), alarms[0], ambiguous, len(slowed), alarms[1], failed)

    def line(self, slowdown: float) -> str:
        """For a person."""
        text = (
            f"{self.false_alarms} false alarms in {self.same} runs of identical code ({self.same_ambiguous} ambiguous)"
        )
        text += f"; a kernel slower by {slowdown - 1:.0%} found in {self.found} of {self.slowed} runs"
        return f"{text}; {self.failed} runs failed" if self.failed else text

    def kept(self, device: str) -> bool:
        """Whether the promise is kept: on a CPU the noise may hide a slow-down."""
        return not self.false_alarms and not self.failed and (device == "cpu" or self.found == self.slowed)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", nargs="?", help="default: a batch of about 100 us on an H200; docs-decode on a CPU")
    parser.add_argument("--runs", type=int, default=20, help="of identical code")
    parser.add_argument("--slow-runs", type=int, default=5)
    parser.add_argument("--slowdown", type=float, default=1.05)
    parser.add_argument("--processes", type=int, default=3, help="that the baseline holds")
    parser.add_argument("--seconds", type=float, default=560.0, help="no run begins that would end after that many")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the records of all runs there")
    parser.add_argument("--json", type=Path, help="also write the runs to this file")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """The baseline, all runs, and the count."""
    from pagedbench.runner.environment import choose_device

    options, began = parse(arguments), time.perf_counter()
    device = choose_device(options.device)
    with tempfile.TemporaryDirectory() as name:
        folder = (options.keep or Path(name)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "gate.yaml").write_text(ON_GPU, encoding="utf-8")
        gate = Gate(folder, options.scenario or ("gate.yaml" if device == "cuda" else "docs-decode"), device)
        gate.save(options.processes)
        old = median_us(load_baseline(NAME, folder / FOLDER))
        print(
            f"baseline of {options.processes} processes: {old:.1f} us ({time.perf_counter() - began:.1f} s)", flush=True
        )
        runs = all_runs(gate, options, began, old)
    summary = Summary.of(runs)
    print(summary.line(options.slowdown))
    return int(not summary.kept(device))


if __name__ == "__main__":
    sys.exit(main())
