"""The HTML page: whole, self-contained, failures first, and safe whatever users wrote."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest

from pagedbench.report.page.markup import Safe, picture, tag
from pagedbench.report.page.page import html_page
from pagedbench.report.page.speed import Axis, Line, axis_for, quantity, ticks
from pagedbench.results.record import CellRecord
from tests.report.records import HOSTILE, crashed, everything, hostile, passed, skipped, timed, wrong

VOID = {"meta", "img", "input"}


class Outline(HTMLParser):
    """All elements with their attributes, and whether each that opens is closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, tag
        assert self.open.pop() == tag

    def count(self, tag: str) -> int:
        return sum(1 for name, _ in self.elements if name == tag)


@pytest.mark.parametrize("records", [[], [passed()], [skipped()], everything()], ids=["empty", "pass", "skip", "all"])
def test_every_element_is_closed(records: list[CellRecord]) -> None:
    assert Outline(html_page(records)).open == []


def test_what_is_unmet_comes_first_escaped_and_the_headline_is_red() -> None:
    page = html_page([passed()], ["<fa3> is required"])
    assert Outline(page).open == []
    assert '<h1 class="bad">1 requirement not met; the cell passed</h1>' in page
    assert page.index("&lt;fa3&gt; is required") < page.index('id="all"')


def test_a_crash_is_shown_with_the_place_in_the_users_code() -> None:
    frames = 'File "<python>/ctypes.py", line 5 in string_at\n  File "bad.py", line 7 in <lambda>'
    page = html_page([crashed(backend="bad.py:f", stderr=f"Current thread 0x1 (most recent call first):\n  {frames}")])
    assert '<p class="sentence">at bad.py, line 7, in &lt;lambda&gt;</p>' in page


def test_loads_nothing_from_anywhere() -> None:
    outline = Outline(html_page(everything()))
    for _, attributes in outline.elements:
        for name in ("src", "href", "srcset", "data", "action"):
            value = attributes.get(name) or ""
            assert not value or value.startswith(("data:image/svg+xml;base64,", "#")), value
    assert "@import" not in html_page(everything())


class TestUserText:
    def test_adds_no_element(self) -> None:
        plain, evil = Outline(html_page([wrong()])), Outline(html_page([hostile()]))
        assert evil.count("script") == plain.count("script") == 1
        assert evil.count("b") <= plain.count("b") + 1
        assert all(not name.startswith("on") for _, attributes in evil.elements for name in attributes)

    def test_is_shown_as_it_was_written(self) -> None:
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html_page([hostile()])

    def test_a_policy_forbids_every_script_but_the_pages_own(self) -> None:
        page = html_page([hostile()])
        script = re.search(r"<script>(.*?)</script>", page, re.S)
        assert script is not None
        digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
        assert f"script-src 'sha256-{digest}'" in page
        assert "default-src 'none'" in page

    def test_a_picture_cannot_run_since_it_is_an_image(self) -> None:
        assert picture("<svg onload='x'/>", HOSTILE).startswith("<img ")
        assert "onload" not in picture("<svg onload='x'/>", "d")

    def test_is_escaped_in_elements_and_attributes(self) -> None:
        assert tag("p", "<i>", title='"') == '<p title="&quot;">&lt;i&gt;</p>'
        assert tag("p", Safe("<i>x</i>")) == "<p><i>x</i></p>"


class TestContent:
    def test_failures_stand_before_the_table_with_diagnosis_and_coordinates(self) -> None:
        page = html_page([passed(), wrong()])
        card = page[page.index('id="failures"') : page.index('id="cells"')]
        assert "matches a kernel that reads one key less" in card
        assert "physical block" in card
        assert ">17<" in card
        assert "error 2.63 is 129 times the budget" in card

    def test_a_run_without_failures_has_no_such_section(self) -> None:
        assert 'id="failures"' not in html_page([passed(), skipped()])

    def test_a_row_a_cell_with_what_the_filter_searches(self) -> None:
        rows = [a for name, a in Outline(html_page(everything())).elements if name == "tr" and a.get("class") == "cell"]
        assert len(rows) == len(everything())
        assert "kernel.py:my_decode" in (rows[0]["data-words"] or "")

    def test_skips_are_listed_with_their_reason(self) -> None:
        page = html_page([passed(), skipped()])
        assert "decode cannot take prefill" in page[page.index('id="skipped"') :]

    def test_circumstances(self) -> None:
        page = html_page([passed()])
        section = page[page.index('id="environment"') :]
        for fact in ("NVIDIA H200", "580.159", "libraries triton", "3.6.0", "git commit", "version of torch"):
            assert fact in section

    def test_times_are_drawn_with_their_intervals(self) -> None:
        page = html_page([timed(12.7), timed(25.4, backend="slow"), passed()])
        section = page[page.index('id="speed"') :]
        assert section.count('class="interval"') == 2
        dots = re.findall(r'class="dot" d="([^"]*)"', section)
        assert [path.count("M") for path in dots] == [11, 11]
        assert "median 12.7 µs, between 12.6 µs and 12.8 µs" in section
        assert section.index("torch:decode") < section.index("slow:decode")

    def test_a_page_of_thousands_of_cells_can_still_be_opened(self) -> None:
        assert len(html_page([timed(float(i + 1), scenario=f"s{i}") for i in range(1000)])) < 10_000_000

    def test_nothing_timed_nothing_drawn(self) -> None:
        assert 'id="speed"' not in html_page([passed()])

    def test_a_time_that_must_not_be_used_is_not_drawn(self) -> None:
        record = timed(12.7)
        assert quantity(record, "kernel") is not None
        record.timing = {**(record.timing or {}), "invalid": "wrong after timing: sequence 0"}
        assert quantity(record, "kernel") is None


class TestAxis:
    def line(self, median: float) -> Line:
        return Line("x", (median,), median, median * 0.9, median * 1.1)

    def test_is_linear_from_zero_for_times_that_are_close(self) -> None:
        axis = axis_for([self.line(10.0), self.line(20.0)])
        assert not axis.log
        assert axis.start == 0

    def test_is_logarithmic_for_times_far_apart(self) -> None:
        axis = axis_for([self.line(10.0), self.line(1000.0)])
        assert axis.log
        assert axis.x(10.0) < axis.x(100.0) < axis.x(1000.0)

    def test_far_outliers_do_not_squeeze_the_rest(self) -> None:
        line = Line("x", (*[10.0] * 50, *[5000.0] * 10), 10.0, 9.9, 10.1)
        assert axis_for([line]).end < 50

    def test_ticks_are_round(self) -> None:
        assert ticks(Axis(0.0, 21.0, log=False)) == [0.0, 5.0, 10.0, 15.0, 20.0]
        assert ticks(Axis(5.0, 2000.0, log=True)) == [10.0, 100.0, 1000.0]
