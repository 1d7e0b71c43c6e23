"""How the modules of this folder put a planted kernel before the tool: a scenario as YAML, then the record of its cell.

The kernel goes the way of a user's file, `--backend kernels.py:NAME`. What the command line does is asked of the
command line itself (`run_command`).
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pagedbench.results.record import CellRecord
from pagedbench.results.store import read_records
from pagedbench.runner.cell import judge
from pagedbench.runner.protocol import Job
from pagedbench.scenario.loader import loads

KERNELS = Path(__file__).parent / "kernels.py"


def scenario(name: str, batch: dict[str, Any], cache: dict[str, Any], attention: Any, **more: Any) -> str:
    """A scenario file's text. `attention` may be `"8/2 64 bfloat16"`: heads / KV heads, head dim, dtype."""
    if isinstance(attention, str):
        heads, head_dim, dtype = attention.split()
        num_heads, num_kv_heads = map(int, heads.split("/"))
        attention = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "head_dim": int(head_dim), "dtype": dtype}
    document = {"name": name, "batch": batch, "cache": cache, "attention": attention, **more}
    return yaml.safe_dump(document, sort_keys=False)


def judged(kernel: str, text: str, path: str = "decode", **job: Any) -> CellRecord:
    """The record of one cell: a kernel of `kernels.py` (or a backend's name) on the scenario of a text."""
    first, *rest = loads(text)
    if rest:
        job = {"related": first, **job}
    backend = kernel if kernel == "torch" or ".py:" in kernel else f"{KERNELS}:{kernel}"
    asked = {"scenario": rest[0] if rest else first, "device": "cpu", "suite": "quick", **job}
    return judge(Job(backend=backend, path=path, **asked), _ignore).record


def _ignore(event: str, **values: object) -> None:
    pass


def said_by(record: CellRecord, check: str) -> str:
    """Verdict, message and findings of one check, as one text."""
    result = next(c for c in record.checks if c["check"] == check)
    return "\n".join([result["verdict"], result["message"], *(f["message"] for f in result["findings"])])


def faults_named(record: CellRecord) -> list[str]:
    """The faults that the diagnosis holds for the cause, those that explain everything."""
    return [str(d["fault"]) for d in record.diagnosis if d["score"] == 1.0]


@dataclass(frozen=True)
class Ended:
    """How a command ended, and the records that it left."""

    code: int
    out: str
    err: str
    records: list[CellRecord]


def run_command(folder: Path, text: str, *arguments: object, kernel: str | None = None) -> Ended:
    """`pagedbench ARGUMENTS` on a file `scenarios.yaml` of that text in `folder`."""
    (folder / "scenarios.yaml").write_text(text)
    words = [*map(str, arguments), "scenarios.yaml", "--json", "records.jsonl", "--device", "cpu"]
    if kernel is not None:
        words += ["--backend", kernel if kernel == "torch" else f"{KERNELS}:{kernel}"]
    done = subprocess.run(
        [sys.executable, "-m", "pagedbench", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    file = folder / "records.jsonl"
    return Ended(done.returncode, done.stdout, done.stderr, read_records(file) if file.exists() else [])
