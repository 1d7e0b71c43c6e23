"""The exit codes of `run` and `check`, one by one; nothing passes by default."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from pagedbench.errors import CannotWrite
from pagedbench.results.store import read_records, write_text

from .conftest import SCENARIO, Command

COMMANDS = pytest.mark.parametrize("name", ["run", "check"])


@COMMANDS
def test_0_every_cell_that_was_not_skipped_passed(command: Command, name: str) -> None:
    ended = command(name, scenarios=["right", "skipped"])
    assert ended.code == 0, ended.err
    assert "2 cells: 1 PASS, 1 SKIPPED" in ended.out


@COMMANDS
@pytest.mark.parametrize(
    "wrong",
    ["mismatch", "footprint", "leak", "not-written", "corrupted", "unstable"],
)
def test_1_a_kernel_is_wrong(command: Command, name: str, wrong: str) -> None:
    assert command(name, scenarios=["right", wrong, "crashed"]).code == 1


def test_2_the_command_line_is_wrong(command: Command) -> None:
    assert command("run").code == 2
    assert command("run", "--no-such-option", scenarios=["right"]).code == 2
    both = command("check", "--baseline", "main", "--jobs", "2", scenarios=["right"])
    assert (both.code, "wants the machine to itself" in both.err) == (2, True)
    unknown = command("check", "docs-decoed")
    assert unknown.code == 2
    assert "hint: did you mean docs-decode?" in unknown.err


def test_2_an_unknown_backend_with_the_nearest_name(command: Command) -> None:
    ended = command("check", "--backend", "torhc", scenarios=["right"])
    assert ended.code == 2
    assert "error: there is no backend 'torhc'" in ended.err
    assert "hint: did you mean torch?" in ended.err


@pytest.mark.parametrize(
    "words",
    [
        ("shrink", "docs-decode", "--backend", "torch:decode", "--output", "file/x.yaml"),
        ("repro", "docs-decode", "--backend", "torch:decode", "--output", "file/x.py"),
        ("selftest", "--fault", "first-key-missed", "--jobs", "1", "--json", "file/x.jsonl"),
        ("check", "docs-decode", "--csv", "file/x.csv"),
    ],
)
def test_2_a_file_that_cannot_be_written(command: Command, words: tuple[str, ...]) -> None:
    Path("file").write_text("no folder")
    ended = command(*words)
    assert (ended.code, ended.out) == (2, "")
    assert f"error: cannot write {words[-1]}: " in ended.err
    assert Path("file").read_text() == "no folder"


@pytest.mark.parametrize("name", ["shrink", "repro"])
def test_2_an_output_that_would_replace_the_scenario(command: Command, name: str) -> None:
    command("check", scenarios=["right"])
    (scenario,) = Path().glob("right.y*ml")
    before = scenario.read_text()
    ended = command(name, str(scenario), "--backend", "torch:decode", "--output", str(scenario))
    assert ended.code == 2
    assert "would overwrite" in ended.err
    assert scenario.read_text() == before


@pytest.mark.parametrize(
    ("words", "file"),
    [
        *(
            (("check", "-b", "kernel.py:my_decode", f"--{form}", "./kernel.py"), "kernel.py")
            for form in ("csv", "json")
        ),
        (("check", "-b", "kernel.py:my_decode", "--csv", "not-there/../kernel.py"), "not-there/../kernel.py"),
        (("run", "--markdown", "helper.py"), "helper.py"),
        (("run", "--markdown", "HELPER.PY"), "HELPER.PY"),
        (("check", "--json", "other.yaml"), "other.yaml"),
        (("compare", "kernel.py:my_decode", "torch:decode", "--csv", "kernel.py"), "kernel.py"),
        (("report", "records.jsonl", "--html", "other.yml"), "other.yml"),
        (("selftest", "--fault", "first-key-missed", "--json", "kernel.py"), "kernel.py"),
        (("shrink", "docs-decode", "-b", "kernel.py:my_decode", "-o", "kernel.py"), "kernel.py"),
        (("repro", "docs-decode", "-b", "./kernel.py:my_decode:decode", "-o", "kernel.py"), "kernel.py"),
        (("repro", "docs-decode", "-b", "kernel.py", "-o", "kernel.py"), "kernel.py"),
        (("repro", "docs-decode", "-b", "torch", "-o", "other.yaml"), "other.yaml"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, tuple) else "",
)
def test_2_an_output_that_would_replace_a_kernel_or_a_scenario(
    command: Command, words: tuple[str, ...], file: str
) -> None:
    where = Path(file).resolve()
    where.write_text("written by hand")
    ended = command(*words, scenarios=["right"] if words[0] in ("run", "check", "compare") else [])
    assert (ended.code, ended.out) == (2, "")
    assert f"would overwrite {file}" in ended.err
    assert where.read_text() == "written by hand"


def test_a_script_may_take_the_place_of_an_earlier_one(command: Command) -> None:
    Path("repro.py").write_text("an earlier one")
    kernel = "import pagedbench\n\n\ndef my_decode(q, k_cache, v_cache, block_table, total_seqlens):\n    return q\n"
    Path("kernel.py").write_text(kernel)
    ended = command("repro", "docs-decode", "-b", "kernel.py:my_decode", "-o", "repro.py")
    assert ended.code == 0, ended.err
    assert "my_decode" in Path("repro.py").read_text()


@pytest.mark.parametrize("wrong", [("no-such-scenario",), ("--backend", "torhc", "right.yaml")])
def test_2_leaves_earlier_records_as_they_were(command: Command, wrong: tuple[str, ...]) -> None:
    command("check", "--json", "records.jsonl", scenarios=["right"])
    before = Path("records.jsonl").read_text()
    assert command("check", "--json", "records.jsonl", *wrong).code == 2
    assert Path("records.jsonl").read_text() == before


@pytest.mark.parametrize(("before", "code"), [("right", 5), ("mismatch", 1)])
def test_what_was_judged_before_no_worker_could_be_had_is_reported(command: Command, before: str, code: int) -> None:
    ended = command(
        "check", "--json", "records.jsonl", "--junit", "junit.xml", scenarios=[before, "no-worker", "never-judged"]
    )
    assert ended.code == code
    assert "1 cell: 1 " in ended.out
    told = "ended early, 1 of 3 cells were done: the worker process does not start: no processes are left"
    assert told in " ".join(ended.err.split())
    assert "ended early, 1 of 3 cells were done" in Path("junit.xml").read_text()
    assert [record.scenario for record in read_records(Path("records.jsonl"))] == [before]


def test_2_one_invalid_scenario_and_nothing_runs(command: Command, tmp_path: Path) -> None:
    bad = SCENARIO.format(name="bad").replace("cached_lens: [5]", "cached_lens: [5, 6]")
    (tmp_path / "bad.yaml").write_text(bad)
    ended = command("run", "bad.yaml", "--json", "records.jsonl", scenarios=["right"])
    assert ended.code == 2
    assert "bad.yaml:3:" in ended.err
    assert ended.out == ""


def test_2_a_seed_that_a_scenario_could_not_have(command: Command) -> None:
    ended = command("run", "--seed", 2**53 + 1, scenarios=["right"])
    assert (ended.code, ended.out) == (2, "")


def test_5_a_full_disk_is_no_bug_of_this_package(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*anything: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("rich.console.Console.print", full)
    ended = command("run", scenarios=["right"])
    assert ended.code == 5
    assert ended.err.endswith("error: cannot write the output: No space left on device\n")


@pytest.mark.parametrize(("scenario", "code"), [("right", 5), ("mismatch", 1)])
def test_5_a_report_that_cannot_be_written_costs_neither_the_verdict_nor_the_other_reports(
    command: Command, monkeypatch: pytest.MonkeyPatch, scenario: str, code: int
) -> None:
    """Cells were judged: 2 would say that nothing ran."""

    def full(file: Path, text: str) -> None:
        if file.suffix == ".md":
            raise CannotWrite(file, "No space left on device")
        write_text(file, text)

    monkeypatch.setattr("pagedbench.cli.outputs.write_text", full)
    ended = command("check", "--markdown", "a.md", "--junit", "b.xml", "--html", "c.html", scenarios=[scenario])
    assert ended.code == code
    assert "failure: cannot write a.md: No space left on device" in ended.err
    assert all(scenario in Path(name).read_text() for name in ("b.xml", "c.html"))


def test_2_resume_needs_a_file(command: Command) -> None:
    assert "--json" in command("check", "--resume", scenarios=["right"]).err


@COMMANDS
def test_3_nothing_was_checked(command: Command, name: str) -> None:
    ended = command(name, scenarios=["skipped"])
    assert ended.code == 3
    assert "SKIPPED is skipped" in ended.out


@COMMANDS
@pytest.mark.parametrize("undecided", ["error", "crashed", "timed-out", "no-reference"])
def test_5_no_verdict(command: Command, name: str, undecided: str) -> None:
    assert command(name, scenarios=["right", undecided]).code == 5


def test_5_a_skip_of_a_required_backend(command: Command) -> None:
    assert command("check", scenarios=["right", "skipped"]).code == 0
    ended = command("check", "--require", "torch", scenarios=["right", "skipped"])
    assert ended.code == 5
    assert "torch is required, but skipped was skipped: is skipped" in ended.err
    assert command("check", "--require", "triton", scenarios=["right"]).code == 5


def test_2_a_required_backend_that_does_not_exist_before_a_cell_is_judged(command: Command) -> None:
    ended = command("check", "--require", "torhc", scenarios=["right"])
    assert (ended.code, ended.out) == (2, "")
    assert "there is no backend 'torhc'" in ended.err
    assert "did you mean torch?" in ended.err


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        (("check", "--across"), "--across does nothing without --baseline", "--baseline NAME"),
        (("run", "--quantities", ""), "--quantities names nothing", "--no-timing"),
        (("run", "--quantities", " , "), "--quantities names nothing", "--no-timing"),
        (("check", "--json", "-"), "--json - would write a file of the name -", "/dev/stdout"),
        (("check", "--csv", "-"), "--csv - would write a file of the name -", "/dev/stdout"),
        (("selftest", "--json", "-"), "--json - would write a file of the name -", "/dev/stdout"),
        (("run", "kernel.py"), "'kernel.py' is a Python file, no scenario", "-b kernel.py"),
        (("run", "kernel.py:my_decode"), "'kernel.py:my_decode' is a Python file, no scenario", "-b kernel.py:my"),
        (("run", ""), "the name of a scenario is empty", "`pagedbench scenarios` lists them"),
    ],
)
def test_2_what_would_have_had_no_effect_or_another_one(
    command: Command, words: tuple[str, ...], said: str, hint: str
) -> None:
    ended = command(*words, scenarios=() if words[0] == "selftest" else ["right"])
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err
    assert hint in " ".join(ended.err.split())
    assert not Path("-").exists()


def test_5_a_pass_that_could_not_have_failed_only_when_strict(command: Command) -> None:
    lenient = command("check", scenarios=["blind"])
    assert lenient.code == 0
    assert "BLIND: one block a sequence" in lenient.out
    assert command("check", "--strict", scenarios=["blind"]).code == 5


def test_an_expected_failure_is_fine_but_no_pass(command: Command) -> None:
    known = "expect: {torch: {fail: upstream 123}}\n"
    assert command("check", scenarios=["mismatch", "right"], extra=known).code == 0
    alone = command("check", scenarios=["mismatch"], extra=known)
    assert alone.code == 3
    assert "EXPECTED" in alone.out


def test_an_expectation_that_no_longer_holds_is_reported_and_strict_fails_it(command: Command) -> None:
    known = "expect: {torch: {fail: upstream 123}}\n"
    ended = command("check", scenarios=["right"], extra=known)
    assert ended.code == 0
    assert "now passes: remove the expectation" in ended.out
    assert command("check", "--strict", scenarios=["right"], extra=known).code == 5


def test_130_ctrl_c_keeps_what_was_done(command: Command) -> None:
    ended = command("check", "--json", "records.jsonl", scenarios=["right", "interrupted", "mismatch"])
    assert ended.code == 130
    assert "1 of 3 cells were done; --resume goes on from there" in ended.err
    assert [r.scenario for r in read_records(Path("records.jsonl"))] == ["right"]


def test_records_of_other_cells_are_not_replaced_without_a_word(command: Command) -> None:
    words = ("check", "--json", "out.jsonl")
    assert "replaced" not in command(*words, scenarios=["right", "blind", "skipped"]).err
    assert "replaced" not in command(*words, scenarios=["right", "blind", "skipped"]).err
    ended = command(*words, scenarios=["right"])
    assert ended.code == 0
    assert ended.err.endswith("replaced: out.jsonl held 2 records of other cells; --resume keeps them\n")
    ended = command(*words, "--resume", scenarios=["blind"])
    assert "replaced" not in ended.err
    assert len(Path("out.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize(("text", "told"), [("a letter\n", True), ('{"scenario": ', True), ("", False), ("\n", False)])
def test_a_file_of_something_else_is_not_replaced_without_a_word(command: Command, text: str, told: bool) -> None:
    Path("out.jsonl").write_text(text)
    ended = command("check", "--json", "out.jsonl", scenarios=["right"])
    assert ended.code == 0
    assert ("out.jsonl held no records of cells before, and was replaced" in ended.err) == told
    assert '"right"' in Path("out.jsonl").read_text()


def test_a_run_that_is_refused_has_replaced_nothing_and_says_nothing(command: Command) -> None:
    Path("out.jsonl").write_text("a letter\n")
    ended = command("check", "--json", "out.jsonl", "-b", "torhc", scenarios=["right"])
    assert (ended.code, Path("out.jsonl").read_text()) == (2, "a letter\n")
    assert "replaced" not in ended.err


def test_resume_judges_only_what_is_missing_or_changed(command: Command) -> None:
    records = Path("records.jsonl")
    command("check", "--json", records, scenarios=["right", "interrupted"])
    first = read_records(records)[0]
    resumed = command("check", "--json", records, "--resume", scenarios=["right", "skipped"])
    assert "resumed: 1 of 2 cells stay as they were judged before" in resumed.err
    assert [r.run == first.run for r in read_records(records)] == [True, False]
    command("check", "--json", records, "--resume", "--seed", 7, scenarios=["right"])
    assert read_records(records)[-1].seed == 7


def test_resume_keeps_no_record_that_another_takes_the_place_of(command: Command) -> None:
    records = Path("records.jsonl")
    command("check", "--json", records, scenarios=["right", "skipped"])
    resumed = command("check", "--json", records, "--resume", "--suite", "full", scenarios=["right"])
    assert (
        "1 are judged again, since the kernel, the scenario or an option has changed (--html is one: it wants pictures)"
        in resumed.err
    )
    assert [(r.scenario, r.suite) for r in read_records(records)] == [("skipped", "quick"), ("right", "full")]


def test_resume_goes_by_what_is_expected_now(command: Command) -> None:
    records = Path("records.jsonl")
    known = "expect: {torch: {fail: upstream 123}}\n"
    assert command("check", "--json", records, scenarios=["mismatch"], extra=known).code == 3
    assert command("check", "--json", records, "--resume", scenarios=["mismatch"]).code == 1


@COMMANDS
def test_every_output_file_is_written_whatever_the_verdict(command: Command, name: str, tmp_path: Path) -> None:
    forms = ("json", "csv", "markdown", "junit", "html")
    arguments = [part for form in forms for part in (f"--{form}", f"out.{form}")]
    assert command(name, *arguments, scenarios=["right", "mismatch"]).code == 1
    for form in forms:
        assert "mismatch" in (tmp_path / f"out.{form}").read_text(), form


@pytest.mark.parametrize(
    ("option", "scenarios", "sentence"),
    [
        (("--require", "torch"), ["right", "skipped"], "torch is required, but skipped was skipped"),
        (("--strict",), ["blind"], "--strict: blind torch:decode: BLIND"),
        ((), ["right", "interrupted"], "interrupted by SIGINT: 1 of 2 cells were done"),
    ],
    ids=["require", "strict", "interrupted"],
)
def test_no_report_is_green_beside_a_red_exit_code(
    command: Command, tmp_path: Path, option: tuple[str, ...], scenarios: list[str], sentence: str
) -> None:
    forms = ("markdown", "junit", "html", "sarif")
    arguments = [part for form in forms for part in (f"--{form}", f"out.{form}")]
    ended = command("check", "--github", *option, *arguments, scenarios=scenarios)
    assert ended.code != 0
    for form in forms:
        assert sentence in (tmp_path / f"out.{form}").read_text(), form
    assert (tmp_path / "out.markdown").read_text().startswith("### ❌ pagedbench: 1 requirement not met")
    assert f"::error title=pagedbench%3A not met::{sentence}" in ended.out


def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(command: Command, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ended = command("check", "--junit", "file/out.xml", scenarios=["right"])
    assert ended.code == 2
    assert ended.out == ""


def test_on_github_annotations_are_printed(command: Command) -> None:
    assert "::error" in command("check", "--github", scenarios=["mismatch"]).out
    assert "::error" not in command("check", scenarios=["mismatch"]).out


def test_two_forms_in_one_file_are_refused_before_anything_runs(command: Command, tmp_path: Path) -> None:
    ended = command("run", "--csv", "table", "--markdown", "./table", scenarios=["right"])
    assert ended.code == 2
    assert "--csv and --markdown name the same file: table" in ended.err
    compared = command("compare", "varlen", "decode", "--json", "table", "--csv", "table", scenarios=["right"])
    assert compared.code == 2
    assert "--json and --csv name the same file: table" in compared.err
    assert not (tmp_path / "table").exists()


def test_an_output_does_not_overwrite_the_scenario_that_is_read(command: Command, tmp_path: Path) -> None:
    for words in (("run",), ("compare", "varlen", "decode")):
        ended = command(*words, "--csv", "./right.yaml", scenarios=["right"])
        assert ended.code == 2
        assert "--csv would overwrite right.yaml, which is read" in ended.err
        assert (tmp_path / "right.yaml").read_text() == SCENARIO.format(name="right")
        ended = command(*words, ".", "--json", "right.yaml")
        assert (ended.code, "--json would overwrite right.yaml" in ended.err) == (2, True)
        assert (tmp_path / "right.yaml").read_text() == SCENARIO.format(name="right")
