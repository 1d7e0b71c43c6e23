"""compute-sanitizer around a worker: the command to run it under, and what its output means for a cell's verdict.

The sanitizer prints a report when the device synchronises, which every check's end does; so a report between the start
and the end of a cell is that cell's. Parsing is by the report's first line and the kernel's name below it.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass

from pagedbench.errors import UsageError
from pagedbench.results.record import CellRecord, CheckDict
from pagedbench.words import Verdict, worst

TOOLS = ("memcheck", "initcheck", "racecheck")
SLOWDOWN = 20.0
"""How much longer a stage may take under the sanitizer."""


@dataclass(frozen=True)
class _Pattern:
    """A report's first line, and the verdict it stands for."""

    text: re.Pattern[str]
    verdict: Verdict


# What NVIDIA documents as report headings: "Invalid __global__ read of size 4 bytes", "Program hit ... misaligned",
# "Uninitialized __global__ memory read", "Error: Race reported between Write access ... and Read access".
_PATTERNS = (
    _Pattern(re.compile(r"Invalid __\w+__ (write|atomic)"), Verdict.CORRUPTED),
    _Pattern(re.compile(r"Invalid __\w+__ read|Address .* is (out of bounds|misaligned)"), Verdict.FOOTPRINT),
    _Pattern(re.compile(r"Uninitialized __\w+__ memory read"), Verdict.LEAK),
    _Pattern(re.compile(r"Error: .*[Rr]ace reported|Warning: .*[Rr]ace reported"), Verdict.UNSTABLE),
)
_PREFIX = "========="
_KERNEL = re.compile(r"^\s*at (.+?)\+0x|^\s*at 0x[0-9a-f]+ in (.+)$")
_SHOWN = 5


def sanitizer_command(tool: str) -> tuple[str, ...]:
    """The wrapper for a worker. Raises `UsageError` for an unknown tool, or where the sanitizer is not installed."""
    if tool not in TOOLS:
        raise UsageError(f"there is no sanitizer tool {tool!r}", f"there are {', '.join(TOOLS)}")
    program = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if program is None:
        raise UsageError("compute-sanitizer is not installed", "it comes with the CUDA toolkit; put it on PATH")
    return (program, "--tool", tool, "--target-processes", "application-only")


def fold_findings(record: CellRecord, output: str, tool: str) -> None:
    """Add the sanitizer's findings to a cell's record as one more check, and let them count in its verdict."""
    if record.verdict is Verdict.SKIPPED:
        return
    reports = _reports(output)
    verdict = worst([v for v, _ in reports] or [Verdict.PASS])
    sentences = list(dict.fromkeys(sentence for _, sentence in reports))
    check: CheckDict = {
        "check": f"sanitizer {tool}",
        "verdict": verdict.value,
        "message": f"{len(reports)} reports, the first: {sentences[0]}" if reports else f"no {tool} report",
        "findings": [{"message": sentence} for sentence in sentences[:_SHOWN]],
        "metrics": {"reports": float(len(reports))},
        "warnings": [],
    }
    record.checks.append(check)
    if reports:
        before = record.verdict
        record.verdict = worst([before, verdict])
        record.message = record.message if record.verdict is before else check["message"]


def _reports(output: str) -> list[tuple[Verdict, str]]:
    """Each report as its verdict and a sentence with the kernel's name, in the order printed."""
    lines = [line[len(_PREFIX) :] for line in output.splitlines() if line.startswith(_PREFIX)]
    found = []
    for number, line in enumerate(lines):
        pattern = next((p for p in _PATTERNS if p.text.search(line)), None)
        if pattern is not None:
            found.append((pattern.verdict, line.strip() + _kernel_of(lines[number + 1 : number + 4])))
    return found


def _kernel_of(following: list[str]) -> str:
    for line in following:
        match = _KERNEL.match(line)
        if match:
            return f" in {next(name for name in match.groups() if name)}"
    return ""
