"""`pagedbench report`: every report again from files of records, without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from pagedbench.cli.app import app
from pagedbench.errors import UsageError
from pagedbench.words import Verdict
from tests.report.records import crashed, passed, skipped, timed, wrong

REPORT_WITHOUT_TORCH = """
import sys
from pagedbench.cli.app import app
app(["report", sys.argv[1], "--html", sys.argv[2]], standalone_mode=False)
print("torch" in sys.modules, file=sys.stderr)
"""


@pytest.fixture
def records(tmp_path: Path) -> Path:
    file = tmp_path / "run.jsonl"
    lines = [r.to_json() for r in (passed(), wrong(), crashed(), skipped(), timed(12.7, scenario="fast"))]
    file.write_text("\n".join(lines) + "\n")
    return file


def test_makes_every_form_again(records: Path, tmp_path: Path) -> None:
    names = ("csv", "markdown", "junit", "html", "sarif")
    options = [word for name in names for word in (f"--{name}", str(tmp_path / "new" / name))]
    result = CliRunner().invoke(app, ["report", str(records), *options])
    assert result.exit_code == 0, result.output
    assert "5 cells" in result.stdout
    made = {name: (tmp_path / "new" / name).read_text() for name in names}
    assert made["csv"].startswith("scenario,backend,")
    assert made["markdown"].startswith("### ❌ pagedbench")
    assert ElementTree.fromstring(made["junit"]).get("name") == "pagedbench"
    assert made["html"].startswith("<!doctype html>")
    assert json.loads(made["sarif"])["version"] == "2.1.0"
    assert not [p for p in (tmp_path / "new").iterdir() if p.name.startswith(".")]


def test_a_cell_that_several_processes_judged_is_one_and_that_of_another_kernel_is_not(tmp_path: Path) -> None:
    file = tmp_path / "baseline.jsonl"
    processes = [replace(passed(), run=run, fingerprint="a") for run in ("1", "2", "3")]
    processes[1].verdict = Verdict.MISMATCH
    file.write_text("".join(r.to_json() + "\n" for r in [*processes, replace(passed(), fingerprint="b")]))
    result = CliRunner().invoke(app, ["report", str(file)])
    assert "2 cells: 1 PASS, 1 MISMATCH" in result.stdout
    assert "several processes judged a cell" in result.stderr


def test_a_picture_of_nothing_is_said_not_to_be_drawn(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    file.write_text(skipped().to_json() + "\n")
    result = CliRunner().invoke(app, ["report", str(file), "--plot", str(tmp_path / "times.svg")])
    assert result.exit_code == 0
    assert "nothing drawn: no cell has a time, and no footprint failed" in result.stderr
    assert not list(tmp_path.glob("*.svg"))


def test_requirements_said_again_show_in_the_reports(records: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = CliRunner().invoke(app, ["report", str(records), "--require", "fa9", "--html", str(page)])
    assert result.exit_code == 0
    assert "fa9 is required, but no cell was run with it" in page.read_text()
    assert result.stderr == "failure: fa9 is required, but no cell was run with it\n"


def test_a_record_that_is_cut_off_is_said_to_be_left_out(records: Path) -> None:
    records.write_text(records.read_text()[:-100])
    result = CliRunner().invoke(app, ["report", str(records)])
    assert result.exit_code == 0
    assert "4 cells" in result.stdout
    assert result.stderr == f"warning: {records}: its last record is cut off, and is left out\n"


@pytest.mark.parametrize("data", [b"", b"{", b"\x7fELF\x00\xff", b"\x7fELF\n\xff\n"], ids=repr)
def test_a_file_without_a_record_is_a_usage_error(data: bytes, records: Path) -> None:
    file = records.with_name("other.jsonl")
    file.write_bytes(data)
    result = CliRunner().invoke(app, ["report", str(records), str(file)])
    assert isinstance(result.exception, UsageError)
    assert str(file) in result.exception.message


@pytest.mark.parametrize("form", ["csv", "html", "parquet"])
def test_no_report_takes_the_place_of_the_records_it_is_made_from(records: Path, form: str) -> None:
    before = records.read_text()
    result = CliRunner().invoke(app, ["report", str(records.parent), f"--{form}", str(records)])
    assert isinstance(result.exception, UsageError)
    assert f"--{form} would overwrite" in result.exception.message
    assert records.read_text() == before


def test_reads_several_files_and_folders_of_them(records: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["report", str(records), str(tmp_path)])
    assert "10 cells" in result.stdout


def test_a_folder_without_records_is_a_usage_error(tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "pagedbench", "report", str(tmp_path)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "holds no records" in done.stderr


def test_needs_no_torch(records: Path, tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", REPORT_WITHOUT_TORCH, str(records), str(tmp_path / "page.html")]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert done.stderr.split() == ["False"]


def test_github_annotations_go_to_stdout(records: Path) -> None:
    result = CliRunner().invoke(app, ["report", str(records), "--github"])
    assert "\n::error file=scenarios/docs/decode.yaml,line=2" in result.stdout


def test_parquet_reads_back_with_its_samples(records: Path, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    file = tmp_path / "run.parquet"
    assert CliRunner().invoke(app, ["report", str(records), "--parquet", str(file)]).exit_code == 0
    assert file.stat().st_mode == records.stat().st_mode  # who may read the one may read the other
    frame = pandas.read_parquet(file)
    assert list(frame["verdict"]) == ["PASS", "MISMATCH", "CRASHED", "SKIPPED", "PASS"]
    assert len(frame["kernel_samples_ns"][4]) == 11
    assert json.loads(frame["checks"][1])[0]["verdict"] == "MISMATCH"


def test_pandas_reads_records_in_one_line(records: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_json(records, lines=True)
    assert frame.loc[4, "time_us"] == 12.7
