"""Does the gate's rule hold on many samples? Runs of three processes, every one held against every other.

Run: python benchmarks/baseline_groups.py [--same 11] [--slowed 5] [--json FILE] [--keep FOLDER]

`baseline_gate.py` runs the gate as its user would, most of which is process starts. Here the processes of all runs are
started a few at a time, timed one after the other, and put into runs by threes in the order in which they were made:
each run of identical code is the baseline of all others, and of all that are slower by `--slowdown`. Prints how many of
the comparisons called identical code slower, and how many found the slow-down; exits 1 where the first is not 0, or, on
a GPU, the second not all.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from baseline_gate import ON_GPU, Gate, median_us

from pagedbench.results.baseline import FOLDER, CellChange, compare_records, load_baseline
from pagedbench.results.record import CellRecord

RUN = 3
AT_A_TIME = 12  # processes: they hold a CUDA context each while they wait for their turn

Records = Sequence[CellRecord]


def runs_of(gate: Gate, name: str, runs: int, slowdown: float) -> list[Records]:
    """So many runs of three processes each."""
    left, found = runs * RUN, list[CellRecord]()
    while left:
        processes = min(left, AT_A_TIME)
        part = f"{name}-{left}"
        done = gate.pagedbench("baseline", "save", part, gate.scenario, "--processes", processes, slowdown=slowdown)
        if done.returncode:
            print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
            raise SystemExit(2)
        found += load_baseline(part, gate.folder / FOLDER)
        left -= processes
        print(f"{name}: {len(found)} of {runs * RUN} processes, {median_us(found):.1f} us", flush=True)
    return [found[start : start + RUN] for start in range(0, len(found), RUN)]


def changes(pairs: Iterable[tuple[Records, Records]]) -> list[CellChange]:
    """What the rule says of each pair of (new, old)."""
    return [compare_records(new, old).changes[0] for new, old in pairs]


def counted(found: Iterable[CellChange]) -> Counter[str]:
    """How often it says what."""
    return Counter(change.change for change in found)


def told(found: Sequence[CellChange], title: str) -> None:
    """Print the counts, and why what is undecided is."""
    print(f"{len(found)} {title}:", ", ".join(f"{n} {change}" for change, n in counted(found).most_common()))
    for change in found:
        if change.change == "ambiguous":
            print(f"  {change.reason}")


def main() -> int:
    """Measure, compare, judge."""
    from pagedbench.runner.environment import choose_device

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--same", type=int, default=11, help="runs of identical code")
    parser.add_argument("--slowed", type=int, default=5, help="runs of slower code")
    parser.add_argument("--slowdown", type=float, default=1.05)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the records there")
    parser.add_argument("--json", type=Path, help="also write the counts and medians to this file")
    options = parser.parse_args()
    device = choose_device(options.device)
    with tempfile.TemporaryDirectory() as name:
        folder = (options.keep or Path(name)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "gate.yaml").write_text(ON_GPU, encoding="utf-8")
        gate = Gate(folder, "gate.yaml" if device == "cuda" else "docs-decode", device)
        same = runs_of(gate, "same", options.same, 1.0)
        slowed = runs_of(gate, "slowed", options.slowed, options.slowdown)
    identical = changes((new, old) for new in same for old in same if new is not old)
    slower = changes((new, old) for new in slowed for old in same)
    told(identical, "comparisons of identical code")
    told(slower, f"with code slower by {options.slowdown - 1:.0%}")
    alarms, caught = counted(identical), counted(slower)
    if options.json:
        kept: dict[str, Any] = {"device": device, "slowdown": options.slowdown, "processes_a_run": RUN}
        kept |= {"identical": dict(alarms), "slower": dict(caught)}
        kept |= {"same_us": [[r.time_us for r in run] for run in same]}
        kept |= {"slowed_us": [[r.time_us for r in run] for run in slowed]}
        options.json.write_text(json.dumps(kept, indent=1), encoding="utf-8")
    return int(alarms["slower"] > 0 or (device == "cuda" and caught["slower"] < len(slower)))


if __name__ == "__main__":
    sys.exit(main())
