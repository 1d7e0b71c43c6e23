"""`pagedbench compare` as a user types it: sweeps, files, errors; and one whole comparison on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pagedbench.cli.comparing import are_records, is_scenario, parse_sweep, parse_sweeps
from pagedbench.cli.progress import time_left
from pagedbench.errors import UsageError
from pagedbench.results.comparison import ComparisonRecord
from tests.report.comparisons import comparison

SMALL = """
name: small
batch: {query_lens: [1, 1], cached_lens: [5, 9]}
cache: {block_size: 4}
attention: {num_heads: 4, num_kv_heads: 2, head_dim: 16}
"""


def pagedbench(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from pagedbench.cli.app import main; main()", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=100, check=False)


class TestSweep:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("cache.block_size=16,32,64", ("cache.block_size", [16, 32, 64])),
            ("attention.num_splits=auto,1,2", ("attention.num_splits", ["auto", 1, 2])),
            ("batch.cached_lens=[30, 32],[400, 1]", ("batch.cached_lens", [[30, 32], [400, 1]])),
            ("batch.spec=1q1s128,64q1s8k", ("batch.spec", ["1q1s128", "64q1s8k"])),
        ],
    )
    def test_values_are_written_as_in_a_scenario(self, text, expected):
        assert parse_sweep(text) == expected

    @pytest.mark.parametrize("text", ["cache.block_size", "=1,2", "cache.block_size=", "cache.block_size=[1"])
    def test_what_is_no_sweep_is_refused(self, text):
        with pytest.raises(UsageError, match="--sweep"):
            parse_sweep(text)

    def test_a_field_given_twice_is_refused_and_not_half_lost(self):
        with pytest.raises(UsageError, match=r"--sweep cache\.block_size is given twice"):
            parse_sweeps(["cache.block_size=16", "cache.block_size=32"])
        assert parse_sweeps(["a.b=1", "a.c=2,3"]) == {"a.b": [1], "a.c": [2, 3]}

    def test_a_refusal_says_that_the_value_is_the_sweeps(self, tmp_path):
        """The file and line are the scenario's, where block size 32 stands."""
        done = pagedbench("compare", "varlen", "decode", "docs-decode", "--sweep", "cache.block_size=16", cwd=tmp_path)
        assert done.returncode == 2
        assert "found 4 columns, needed at least 5" in done.stderr
        assert "hint: --sweep sets cache.block_size" in done.stderr


def test_two_files_of_records_are_told_from_sides():
    assert are_records(["new.jsonl", "old.jsonl"])
    assert not are_records(["varlen", "decode", "docs-decode"])
    with pytest.raises(UsageError, match="two files at a time"):
        are_records(["new.jsonl", "decode"])


def test_scenarios_are_known_by_name_and_file(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("name: [broken")
    assert is_scenario("docs-decode")
    assert is_scenario(str(file))  # it is one, though not a valid one
    assert not is_scenario("flash-attn-3")


def test_a_whole_comparison_with_a_sweep(tmp_path):
    (tmp_path / "small.yaml").write_text(SMALL)
    done = pagedbench(
        "compare", "varlen", "decode", "small.yaml", "--sweep", "cache.block_size=4,8", "--device", "cpu",
        "--max-seconds", 0.05, "--json", "out.jsonl", "--csv", "out.csv", "--markdown", "out.md",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    records = [ComparisonRecord.from_json(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [record.facts["block_size"] for record in records] == [4, 8]
    assert all(record.pair() is not None and record.message == "" for record in records)
    assert "crossover" in done.stdout
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 1 + 2 * 2
    assert (tmp_path / "out.md").read_text().startswith("**")
    assert json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])["environment"]["torch"]


def test_bare_numbers_for_a_field_of_lists_are_refused_with_the_form_that_is_meant(tmp_path):
    (tmp_path / "small.yaml").write_text(SMALL)
    done = pagedbench("compare", "varlen", "decode", "small.yaml", "--sweep", "batch.cached_lens=5,9", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--sweep 'batch.cached_lens=[30],[4000]'" in done.stderr


def test_a_sweep_of_splits_says_who_ignores_them(tmp_path):
    (tmp_path / "small.yaml").write_text(SMALL)
    done = pagedbench(
        "compare", "varlen", "decode", "small.yaml", "--sweep", "attention.num_splits=auto,2", "--device", "cpu",
        "--max-seconds", 0.02, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "torch:decode ignores the number of splits" in done.stdout
    assert "own number of splits" not in done.stdout


def test_a_side_that_is_wrong_gets_no_time_and_exit_code_1(tmp_path):
    (tmp_path / "small.yaml").write_text(SMALL)
    (tmp_path / "mine.py").write_text(
        "def zero_decode(q, k_cache, block_table, total_seqlens, softmax_scale):\n    return q * 0\n"
    )
    done = pagedbench("compare", "torch:decode", "mine.py:zero_decode", "small.yaml", "--device", "cpu",
                      "--max-seconds", 0.05, cwd=tmp_path)  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "MISMATCH" in done.stdout


def test_a_wrong_command_line_exits_with_2(tmp_path):
    done = pagedbench("compare", "varlen", "decode", "no-such-thing", "--device", "cpu", cwd=tmp_path)
    assert done.returncode == 2
    assert "'no-such-thing' is neither a side nor a scenario" in done.stderr


def test_what_is_left_is_told_at_the_pace_so_far():
    """10 of 40 in 20 s: 2 s each, 30 to go."""
    assert time_left(10, 40, 20.0) == "about 60 s left"
    assert time_left(0, 40, 1.0) == ""


def test_a_picture_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path):
    (tmp_path / "small.yaml").write_text(SMALL)
    done = pagedbench("compare", "varlen", "decode", "small.yaml", "--plot", "x.bmp", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "a picture cannot be written as '.bmp'" in done.stderr


def test_folders_of_files_are_made(tmp_path):
    (tmp_path / "small.yaml").write_text(SMALL)
    done = pagedbench(
        "compare", "varlen", "decode", "small.yaml", "--device", "cpu", "--max-seconds", 0.02,
        "--json", "new/out.jsonl", "--csv", "new/out.csv", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {file.name for file in (tmp_path / "new").iterdir()} == {"out.jsonl", "out.csv"}


def test_the_file_that_compare_wrote_is_shown_and_drawn_again_anywhere(tmp_path):
    """On a machine without the GPU that it was measured on."""
    records = [comparison(300, 100, name=f"batch[keys={keys}]", batch=1, keys=keys) for keys in (128, 1024)]
    (tmp_path / "out.jsonl").write_text("".join(record.to_json() + "\n" for record in records))
    done = pagedbench("compare", "out.jsonl", "--csv", "out.csv", "--plot", "map.svg", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "decode wins all 2 cells" in done.stdout
    assert (tmp_path / "map-crossover.svg").exists()
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 5


def test_a_file_of_something_else_is_refused(tmp_path):
    (tmp_path / "cells.jsonl").write_text('{"scenario": "docs-decode", "verdict": "PASS"}\n')
    done = pagedbench("compare", "cells.jsonl", cwd=tmp_path)
    assert done.returncode == 2
    assert "not a record of a comparison" in done.stderr


@pytest.mark.parametrize(
    ("given", "idle"),
    [
        (("out.jsonl",), ("--json", "new.jsonl")),
        (("out.jsonl",), ("--sweep", "cache.block_size=16,32")),
        (("out.jsonl", "old.jsonl"), ("--csv", "new.csv")),
        (("out.jsonl", "old.jsonl"), ("--plot", "new.png")),
    ],
)
def test_an_option_that_records_make_nothing_of_is_refused(tmp_path, given, idle):
    """A file asked for would never appear, with exit code 0."""
    for file in given:
        (tmp_path / file).write_text(comparison(300, 100).to_json() + "\n")
    done = pagedbench("compare", *given, *idle, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{idle[0]} does nothing with " in done.stderr


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder in which nobody makes files")
def test_a_file_of_records_that_cannot_be_made_is_refused_by_name(tmp_path):
    (tmp_path / "small.yaml").write_text(SMALL)
    done = pagedbench(
        "compare", "varlen", "decode", "small.yaml", "--device", "cpu", "--json", "/proc/out.jsonl", cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot write /proc/out.jsonl: " in done.stderr


@pytest.mark.parametrize("option", ["--csv", "--plot"])
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder in which nobody makes files")
def test_a_report_that_cannot_be_written_is_said_after_the_table_and_is_exit_5(tmp_path, option):
    (tmp_path / "small.yaml").write_text(SMALL)
    done = pagedbench(
        "compare", "varlen", "decode", "small.yaml", "--device", "cpu", "--max-seconds", 0.05, option, "/proc/x.svg",
        cwd=tmp_path,
    )  # fmt: skip
    assert "decode" in done.stdout
    assert "failure: cannot write /proc/x" in done.stderr
    assert done.returncode == 5


def test_a_damaged_line_of_comparisons_is_named(tmp_path):
    (tmp_path / "out.jsonl").write_text(comparison(300, 100).to_json() + "\n{")
    done = pagedbench("compare", "out.jsonl", cwd=tmp_path)
    assert (done.returncode, "out.jsonl:2: not a record" in done.stderr) == (2, True)


def test_an_earlier_file_of_records_stays_until_there_is_another(tmp_path):
    (tmp_path / "small.yaml").write_text(SMALL)
    (tmp_path / "out.jsonl").write_text(comparison(300, 100).to_json() + "\n")
    before = (tmp_path / "out.jsonl").read_text()
    done = pagedbench(
        "compare", "varlen", "decode", "small.yaml", "--device", "cpu", "--json", "out.jsonl",
        "--backend", "nosuch", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 2
    assert (tmp_path / "out.jsonl").read_text() == before


def test_where_no_pair_could_be_compared_nothing_was_checked(tmp_path):
    """Decode cannot take queries of different lengths: one side has no time."""
    done = pagedbench("compare", "varlen", "decode", "docs-varlen", "--device", "cpu", cwd=tmp_path)
    assert "decode cannot take prefill" in done.stdout
    assert done.returncode == 3


@pytest.mark.parametrize("option", ["--max-seconds", "--timeout"])
def test_seconds_without_end_are_refused(tmp_path, option):
    done = pagedbench("compare", "varlen", "decode", "docs-decode", option, "inf", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert option in done.stderr
