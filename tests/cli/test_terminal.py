"""What the output's reader or encoding cannot take is no failure of the program, and never a verdict."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pagedbench.cli.terminal import forgiving
from pagedbench.results.store import read_records

ROOT = Path(__file__).parents[2]


def into_a_closed_pipe(*words: str) -> subprocess.CompletedProcess[bytes]:
    """The command, with nobody to read its output."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [sys.executable, "-m", "pagedbench", *words]
        return subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writer)


@pytest.mark.parametrize("words", [("scenarios",), ("show", "edge-block-sizes"), ("schema",), ("--help",)], ids=str)
def test_a_command_that_only_prints_is_no_failure_where_nobody_reads(words: tuple[str, ...]) -> None:
    done = into_a_closed_pipe(*words)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("words", [("show", "docs-decode"), ("scenarios",), ("--help",)], ids=str)
def test_a_full_device_is_said_once_and_is_exit_5(words: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "pagedbench", *words]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (5, b"error: cannot write the output: No space left on device\n")


@pytest.mark.parametrize(("kernel", "code"), [("torch:decode", 0), (f"{ROOT}/examples/my_kernel.py:my_decode", 1)])
def test_the_exit_code_is_the_verdicts_where_nobody_reads(kernel: str, code: int, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    records = tmp_path / "records.jsonl"
    done = into_a_closed_pipe("check", "docs-decode", "-b", kernel, "--json", str(records), "--csv", str(table))
    assert (done.returncode, done.stderr) == (code, b"")
    assert len(read_records(records)) == 1
    assert "docs-decode" in table.read_text()


@pytest.mark.parametrize(
    ("encoding", "told"),
    [
        ("ascii", "1.5 ~0.2 us, 31 <= 32 ? ?"),
        ("latin-1", "1.5 ±0.2 µs, 31 <= 32 ? ?"),
        ("utf-8", "1.5 ±0.2 µs, 31 ≤ 32 大 ?"),
    ],
)
def test_signs_that_an_encoding_lacks_are_told_in_others(encoding: str, told: str, tmp_path: Path) -> None:
    """In the POSIX locale an output's errors are «surrogateescape», not strict, and yet it raises."""
    with (tmp_path / "out").open("w", encoding=encoding, errors="surrogateescape") as stream:
        print("1.5 ±0.2 µs, 31 ≤ 32 大 \ud800", file=forgiving(stream), end="", flush=True)
    assert (tmp_path / "out").read_text(encoding) == told


def test_what_is_no_output_of_a_system_stays_as_it_is() -> None:
    stand_in = io.StringIO()
    assert forgiving(stand_in) is stand_in
