"""JUnit XML: one test suite a scenario, one case a cell and check, the diagnosis as message.

The elements and attributes are those that Jenkins' xunit schema, GitLab and GitHub reporters agree on; there is no host
name. A cell that ended outside its checks (crashed, timed out, skipped at once) is one case named after the cell.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from pagedbench.report.story import Standing, reproduce, standing
from pagedbench.report.table import failure_lines, finding_line
from pagedbench.results.record import CellRecord, CheckDict
from pagedbench.words import Verdict

# What XML 1.0 cannot hold, not even escaped.
_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class _Case:
    """One `testcase`: `detail` is the text of a failure or an error."""

    record: CellRecord
    check: str
    verdict: Verdict
    message: str
    detail: str
    seconds: float
    warnings: tuple[str, ...] = ()


def junit(records: Sequence[CellRecord], unmet: Sequence[str] = ()) -> str:
    """The whole document. Counts of suites are those of their cases. `unmet`: see `story.headline`."""
    root = ElementTree.Element("testsuites", name="pagedbench")
    everything: list[_Case] = []
    by_scenario: dict[str, list[CellRecord]] = {}
    for record in records:
        by_scenario.setdefault(record.scenario, []).append(record)
    for scenario, own in by_scenario.items():
        cases = [case for record in own for case in _cases(record)]
        root.append(_suite(scenario, own, cases))
        everything += cases
    _count(root, everything)
    del root.attrib["skipped"]
    if unmet:
        root.append(_unmet_suite(unmet))
        for count in ("tests", "errors"):
            root.set(count, str(int(root.get(count, "0")) + len(unmet)))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _unmet_suite(unmet: Sequence[str]) -> ElementTree.Element:
    """A case for each requirement on the run that is not met: an error, since no kernel was found wrong by it."""
    suite = ElementTree.Element("testsuite", name="requirements")
    counts = {"tests": len(unmet), "failures": 0, "errors": len(unmet), "skipped": 0}
    for name, count in counts.items():
        suite.set(name, str(count))
    suite.set("time", "0.000")
    for number, sentence in enumerate(unmet, start=1):
        case = ElementTree.SubElement(
            suite, "testcase", name=f"requirement {number}", classname="requirements", time="0.000"
        )
        ElementTree.SubElement(case, "error", type="NOT MET", message=_clean(sentence)).text = _clean(sentence)
    return suite


def _suite(scenario: str, records: list[CellRecord], cases: list[_Case]) -> ElementTree.Element:
    suite = ElementTree.Element("testsuite", name=_clean(scenario))
    _count(suite, cases)
    if records[0].time:
        suite.set("timestamp", records[0].time[:19])
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in _facts(records[0].environment):
        ElementTree.SubElement(properties, "property", name=_clean(name), value=_clean(str(value)))
    suite.extend(_element(case) for case in cases)
    return suite


def _facts(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested facts under dotted names."""
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _facts(value, f"{prefix}{name}.")
        elif value is not None:
            yield prefix + name, value


def _count(element: ElementTree.Element, cases: Sequence[_Case]) -> None:
    found = [_kind(case.verdict) for case in cases]
    element.set("tests", str(len(cases)))
    element.set("failures", str(found.count("failure")))
    element.set("errors", str(found.count("error")))
    element.set("skipped", str(found.count("skipped")))
    element.set("time", f"{sum(case.seconds for case in cases):.3f}")


def _kind(verdict: Verdict) -> str | None:
    """The child element of a case with this verdict; what was expected or skipped is never counted as a pass."""
    return {
        Standing.WRONG: "failure",
        Standing.UNDECIDED: "error",
        Standing.EXPECTED: "skipped",
        Standing.SKIPPED: "skipped",
        Standing.PASSED: None,
    }[standing(verdict)]


def _cases(record: CellRecord) -> list[_Case]:
    cases = [_check_case(record, check) for check in record.checks]
    told = {case.verdict for case in cases}
    if not cases or (record.verdict not in told and record.verdict is not Verdict.PASS):
        detail = "\n".join([*failure_lines(record), *_evidence(record)])
        rest = max(record.durations.get("total", 0.0) - sum(case.seconds for case in cases), 0.0)
        cases.append(_Case(record, "", record.verdict, record.message, detail, rest))
    return cases


def _check_case(record: CellRecord, check: CheckDict) -> _Case:
    verdict = Verdict(check["verdict"])
    message = check["message"]
    if record.expected is not None and standing(verdict).failed:
        verdict, message = Verdict.EXPECTED, f"{record.expected['because']} ({check['verdict']}: {message})"
    diagnosis = [f"diagnosis: {d['sentence']}" for d in record.diagnosis]
    findings = [finding_line(f) for f in check["findings"] if f.get("message") != check["message"]]
    detail = "\n".join([check["message"], *findings, *diagnosis, *_evidence(record)])
    if standing(verdict).failed and diagnosis:
        message = f"{message}; {diagnosis[0]}"
    seconds = record.durations.get(f"the check {check['check']}", 0.0)
    return _Case(record, check["check"], verdict, message, detail, seconds, tuple(check["warnings"]))


def _evidence(record: CellRecord) -> list[str]:
    """What a person needs to go on: where it is written, how to see it again, the traceback."""
    lines = ["", f"scenario: {record.where or record.scenario}", f"again: {reproduce(record)}"]
    return [*lines, record.error] if record.error else lines


def _element(case: _Case) -> ElementTree.Element:
    record = case.record
    element = ElementTree.Element(
        "testcase",
        name=_clean(f"{record.target} {case.check}".strip()),
        # Readers split a class name at its dots, and variants have dots in their names.
        classname=_clean(record.scenario.replace(".", "_")),
        time=f"{case.seconds:.3f}",
    )
    kind = _kind(case.verdict)
    if kind == "skipped":
        ElementTree.SubElement(element, "skipped", message=_clean(f"{case.verdict}: {case.message}"))
    elif kind is not None:
        child = ElementTree.SubElement(element, kind, type=case.verdict.value, message=_clean(case.message))
        child.text = _clean(case.detail)
    _output(element, "system-out", case.warnings)
    _output(element, "system-err", [record.stderr] if kind in ("failure", "error") and record.stderr else [])
    return element


def _output(parent: ElementTree.Element, tag: str, lines: Iterable[str]) -> None:
    text = "\n".join(lines)
    if text:
        ElementTree.SubElement(parent, tag).text = _clean(text)


def _clean(text: str) -> str:
    return _NOT_XML.sub("�", text)
