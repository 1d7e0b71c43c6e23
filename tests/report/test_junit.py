"""JUnit XML: valid for strict readers, counts that add up, one case a cell and check, diagnosis as message."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from pagedbench.report.junit import junit
from pagedbench.results.record import CellRecord
from pagedbench.words import Verdict
from tests.report.records import check, crashed, everything, expected, hostile, passed, record, skipped, wrong

XSD = Path(__file__).with_name("junit.xsd")


def parse(*records: CellRecord) -> ElementTree.Element:
    return ElementTree.fromstring(junit(records))


def cases(*records: CellRecord) -> dict[str, ElementTree.Element]:
    return {str(case.get("name")): case for case in parse(*records).iter("testcase")}


@pytest.mark.parametrize("records", [[], [passed()], everything()], ids=["empty", "one", "everything"])
def test_is_valid_for_a_strict_reader(records: list[CellRecord]) -> None:
    etree = pytest.importorskip("lxml.etree")
    schema = etree.XMLSchema(etree.parse(str(XSD)))
    schema.assertValid(etree.fromstring(junit(records).encode()))
    schema.assertValid(etree.fromstring(junit(records, ["fa3 is required"]).encode()))


def test_counts_are_those_of_the_cases() -> None:
    root = parse(*everything())
    for suite in root.iter("testsuite"):
        assert int(suite.get("tests", "")) == len(suite.findall("testcase"))
        for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(suite.get(attribute, "")) == len(suite.findall(f"testcase/{tag}")), (suite.get("name"), tag)
    assert int(root.get("tests", "")) == len(list(root.iter("testcase")))
    assert int(root.get("failures", "")) == 2  # the wrong and the hostile cell
    assert int(root.get("errors", "")) == 1  # the crash


def test_what_is_unmet_is_an_error_in_a_suite_of_its_own_and_counted() -> None:
    root = ElementTree.fromstring(junit([passed()], ["fa3 is required", "b \x00"]))
    errors = [e.get("message") for e in root.findall("testsuite[@name='requirements']/testcase/error")]
    assert errors == ["fa3 is required", "b �"]
    assert (root.get("tests"), root.get("errors"), root.get("failures")) == ("4", "2", "0")


def test_one_case_a_cell_and_check_with_its_seconds() -> None:
    found = cases(passed())
    assert list(found) == ["torch:decode accuracy", "torch:decode cache-update"]
    assert [case.get("time") for case in found.values()] == ["0.250", "0.500"]
    assert all(len(case) == 0 for case in found.values())


def test_a_failure_carries_the_diagnosis_and_how_to_see_it_again() -> None:
    failure = cases(wrong())["kernel.py:my_decode:decode accuracy"].find("failure")
    assert failure is not None
    assert failure.get("type") == "MISMATCH"
    assert "129 times the budget" in failure.get("message", "")
    assert "matches a kernel that reads one key less" in failure.get("message", "")
    assert "pagedbench run docs-decode --backend kernel.py:my_decode:decode" in (failure.text or "")
    assert "scenarios/docs/decode.yaml:2:7" in (failure.text or "")


def test_the_other_checks_of_a_wrong_cell_keep_their_own_verdicts() -> None:
    assert len(cases(wrong())["kernel.py:my_decode:decode cache-update"]) == 0


def test_a_crash_is_an_error_of_the_cell_with_its_stderr() -> None:
    case = cases(crashed())["bad.py:abort_decode:decode"]
    error, stderr = case.find("error"), case.find("system-err")
    assert error is not None
    assert error.get("type") == "CRASHED"
    assert stderr is not None
    assert "Fatal Python error" in (stderr.text or "")


def test_a_crash_after_some_checks_adds_a_case_to_theirs() -> None:
    found = cases(crashed(checks=[check()]))
    assert [len(case.findall("error")) for case in found.values()] == [0, 1]


def test_a_skip_is_no_pass() -> None:
    element = cases(skipped())["torch:decode"].find("skipped")
    assert element is not None
    assert element.get("message") == "SKIPPED: decode cannot take prefill"


def test_a_check_that_does_not_apply_is_skipped_within_a_cell_that_passed() -> None:
    found = cases(record(checks=[check(), check("steps", Verdict.SKIPPED, "the scenario has one step")]))
    assert found["torch:decode steps"].find("skipped") is not None
    assert len(found) == 2


def test_what_was_expected_is_neither_a_pass_nor_a_failure() -> None:
    found = cases(expected())
    element = found["fa:decode accuracy"].find("skipped")
    assert element is not None
    assert element.get("message", "").startswith("EXPECTED: known since 2.8")
    assert len(found) == 2


def test_characters_that_xml_cannot_hold_are_replaced() -> None:
    text = junit([hostile()])
    assert "\x00" not in text
    assert "\x1b" not in text
    ElementTree.fromstring(text)


def test_dots_of_a_variant_do_not_split_the_class_name() -> None:
    case = next(parse(passed(scenario="edge[cache.padding=0]")).iter("testcase"))
    assert case.get("classname") == "edge[cache_padding=0]"
