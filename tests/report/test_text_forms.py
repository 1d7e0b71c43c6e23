"""Markdown, CSV, SARIF and GitHub's workflow commands: what they hold, and that user text stays text."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

from pagedbench.report.csvfile import csv_table
from pagedbench.report.github import on_github, workflow_commands, write_summary
from pagedbench.report.markdown import MOST_CHARACTERS, escape, markdown
from pagedbench.report.sarif import sarif
from tests.report.records import crashed, everything, expected, hostile, passed, skipped, timed, wrong


class TestMarkdown:
    def test_says_first_whether_it_is_green(self) -> None:
        assert markdown([passed(), skipped()]).startswith("### ✅ pagedbench: 1 of 2 cells passed, 1 skipped")
        assert markdown([wrong(), passed()]).startswith("### ❌ pagedbench: 1 of 2 cells is wrong, 1 passed")
        assert markdown([]).startswith("### ❌ pagedbench: nothing was checked")

    def test_a_failure_has_its_place_diagnosis_and_command_before_the_table(self) -> None:
        text = markdown([passed(), wrong()])
        failure = text[: text.index("| scenario |")]
        assert "#### ❌ MISMATCH: docs-decode · kernel.py:my\\_decode:decode" in failure
        assert "129 times the budget" in failure
        assert "diagnosis: matches a kernel that reads one key less" in failure
        assert "pagedbench run docs-decode --backend kernel.py:my_decode:decode" in failure

    def test_the_table_has_a_row_a_cell_and_speed_only_where_something_was_timed(self) -> None:
        rows = [line for line in markdown([passed(), skipped()]).splitlines() if line.startswith("| ")]
        assert len(rows) == 2 + 2
        assert "GB/s" not in rows[0]
        row = next(line for line in markdown([timed(12.7)]).splitlines() if line.startswith("| ✅"))
        assert "12.7 ±0.127 µs | 3,230 | 1.50 |" in row

    def test_user_text_is_neither_markup_nor_a_mention(self) -> None:
        text = markdown([hostile()])
        fenced = re.sub(r"^(`{3,})text\n.*?^\1$", "", text, flags=re.S | re.M)
        assert "<script" not in fenced.replace("\\<", "")
        assert "@someone" not in fenced
        assert "#12" not in fenced
        assert escape("a|b\nc") == "a\\|b c"

    def test_a_fence_is_longer_than_any_within(self) -> None:
        text = markdown([crashed(error="before\n````\nafter")])
        assert "`````text\nbefore\n````\nafter\n`````" in text

    def test_stays_below_githubs_limit_and_says_what_is_left_out(self) -> None:
        text = markdown([wrong(scenario=f"scenario-{i}", error="x" * 3000) for i in range(400)])
        assert len(text) < MOST_CHARACTERS
        assert re.search(r"and \d+ more failures: see the record", text)
        assert re.search(r"and \d+ more cells: see the record", text)

    def test_many_cells_are_folded(self) -> None:
        assert "<details><summary>All 30 cells</summary>" in markdown([passed() for _ in range(30)])

    def test_warnings_are_folded_and_counted(self) -> None:
        assert "<summary>1 warning</summary>" in markdown([passed(warnings=["BLIND: one block"])])
        assert "<summary>2 warnings</summary>" in markdown([passed(warnings=["BLIND: one block", "drift"])])

    def test_skips_are_listed_by_reason(self) -> None:
        assert "- decode cannot take prefill (2)" in markdown([passed(), skipped(), skipped()])

    def test_what_the_run_leaves_unmet_is_red_and_named_although_every_cell_passed(self) -> None:
        text = markdown([passed(), skipped()], ["fa3 is required, but docs-varlen was skipped: no prefill"])
        assert text.startswith("### ❌ pagedbench: 1 requirement not met; 1 of 2 cells passed, 1 skipped")
        assert "- fa3 is required, but docs-varlen was skipped: no prefill" in text[: text.index("| scenario |")]

    def test_many_requirements_stay_below_the_limit_too(self) -> None:
        text = markdown([passed()] * 500, ["x" * 500] * 500)
        assert len(text) < MOST_CHARACTERS
        assert re.search(r"and \d+ more requirements: see the record", text)


class TestCsv:
    def rows(self, text: str) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(text)))

    def test_one_line_a_cell_that_reads_back(self) -> None:
        rows = self.rows(csv_table(everything()))
        assert [r["verdict"] for r in rows] == [r.verdict.value for r in everything()]
        assert float(rows[5]["time_us"]) == 12.7
        assert rows[0]["time_us"] == ""
        assert rows[0]["gpu"] == "NVIDIA H200"

    def test_nothing_is_taken_for_a_formula(self) -> None:
        row = self.rows(csv_table([wrong(message='=HYPERLINK("x")')]))[0]
        assert row["message"] == '\'=HYPERLINK("x")'


class TestSarif:
    def test_what_is_unmet_is_a_result_under_a_rule_of_its_own(self) -> None:
        run = json.loads(sarif([wrong(), passed()], ["fa3 is required"]))["runs"][0]
        result = run["results"][-1]
        assert result["message"]["text"] == "fa3 is required"
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == "not-met"

    def test_one_result_a_failed_cell_at_its_scenario(self) -> None:
        log = json.loads(sarif([passed(), wrong(), crashed(), skipped(), expected()]))
        assert log["version"] == "2.1.0"
        run = log["runs"][0]
        assert [r["ruleId"] for r in run["results"]] == ["mismatch", "crashed"]
        assert [r["level"] for r in run["results"]] == ["error", "warning"]
        place = run["results"][0]["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] == "scenarios/docs/decode.yaml"
        assert place["region"] == {"startLine": 2, "startColumn": 7}

    def test_every_result_has_its_rule(self) -> None:
        run = json.loads(sarif(everything()))["runs"][0]
        rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
        assert all(rules[r["ruleIndex"]] == r["ruleId"] for r in run["results"])

    def test_a_cell_keeps_its_fingerprint_from_run_to_run(self) -> None:
        first, second = (json.loads(sarif([r]))["runs"][0]["results"][0] for r in (wrong(run="a"), wrong(run="b")))
        assert first["partialFingerprints"] == second["partialFingerprints"]


class TestGithub:
    def test_an_error_stands_at_the_line_of_the_scenario(self) -> None:
        line = workflow_commands([wrong()]).splitlines()[0]
        assert line.startswith("::error file=scenarios/docs/decode.yaml,line=2,col=7,title=MISMATCH%3A docs-decode ")
        assert "::accuracy: sequence 1" in line

    def test_everything_is_one_line_whatever_users_wrote(self) -> None:
        """GitHub's toolkit escapes %, CR and LF in messages, and : and , in properties too."""
        evil = wrong(scenario="a,b:c%\nd", message="x", checks=[], where="")
        lines = workflow_commands([evil]).splitlines()
        assert lines[0].startswith("::error title=MISMATCH%3A a%2Cb%3Ac%25%0Ad ")
        assert len(lines) == 2

    def test_a_command_cannot_be_smuggled_in(self) -> None:
        evil = wrong(message="fine\n::add-mask::secret", checks=[], diagnosis=[])
        assert all(line.startswith(("::error", "::notice")) for line in workflow_commands([evil]).splitlines())

    def test_warnings_are_annotated_too(self) -> None:
        lines = workflow_commands([passed(warnings=["BLIND: no key below the window"])]).splitlines()
        assert lines[0].startswith("::warning ")
        assert lines[0].endswith("::BLIND: no key below the window")

    def test_what_is_unmet_is_an_error_and_in_the_headline(self) -> None:
        lines = workflow_commands([passed()], ["100% of fa3 is required"]).splitlines()
        assert lines[0] == "::error title=pagedbench%3A not met::100%25 of fa3 is required"
        assert lines[-1].endswith("::1 requirement not met; the cell passed")

    def test_at_most_ten_errors_the_last_says_how_many_more(self) -> None:
        errors = [line for line in workflow_commands([wrong()] * 15).splitlines() if line.startswith("::error")]
        assert len(errors) == 10
        assert errors[-1].endswith("and 6 more: see the job's summary")

    def test_the_summary_is_appended(self, tmp_path: Path) -> None:
        file = tmp_path / "summary.md"
        file.write_text("before\n")
        assert write_summary([wrong()], environment={"GITHUB_STEP_SUMMARY": str(file)})
        assert file.read_text().startswith("before\n### ❌ pagedbench")
        assert not write_summary([wrong()], environment={})

    def test_detection(self) -> None:
        assert on_github({"GITHUB_ACTIONS": "true"})
        assert not on_github({})
