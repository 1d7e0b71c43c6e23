"""What all reports say alike."""

from __future__ import annotations

import shlex

import pytest

from pagedbench.report.story import Place, failures_first, green, headline, machine, place, reproduce, together
from pagedbench.results.record import CellRecord
from pagedbench.words import Verdict
from tests.report.records import crashed, everything, expected, passed, record, skipped, wrong


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([], "nothing was checked: there were no cells"),
        ([skipped(), expected()], "nothing was checked: 1 as expected, 1 skipped"),
        ([passed()], "the cell passed"),
        ([passed(), passed(), skipped()], "2 of 3 cells passed, 1 skipped"),
        ([wrong(), passed()], "1 of 2 cells is wrong, 1 passed"),
        ([wrong(), wrong(), crashed(), passed()], "2 of 4 cells are wrong, 1 without a verdict, 1 passed"),
        ([crashed(), passed()], "1 of 2 cells without a verdict, 1 passed"),
    ],
)
def test_headline(records: list[CellRecord], said: str) -> None:
    assert headline(records) == said


@pytest.mark.parametrize(
    ("records", "is_green"),
    [
        ([], False),
        ([skipped()], False),
        ([expected()], False),
        ([passed(), skipped()], True),
        ([passed(), crashed()], False),
    ],
)
def test_green_needs_a_pass_and_no_failure(records: list[CellRecord], is_green: bool) -> None:
    assert green(records) is is_green


def test_what_is_unmet_is_said_first_and_is_not_green() -> None:
    assert headline([passed(), skipped()], ["a", "b"]) == "2 requirements not met; 1 of 2 cells passed, 1 skipped"
    assert not green([passed()], ["a"])


def test_failures_come_first_and_the_order_of_the_run_is_kept() -> None:
    order = [r.verdict for r in failures_first([skipped(), passed(), crashed(), wrong(), expected()])]
    assert order == [Verdict.MISMATCH, Verdict.CRASHED, Verdict.PASS, Verdict.EXPECTED, Verdict.SKIPPED]


def test_place_of_a_scenario() -> None:
    assert place(passed()) == Place("scenarios/docs/decode.yaml", 2, 7)
    assert place(passed(where="C:/odd:name.yaml:12:3")) == Place("C:/odd:name.yaml", 12, 3)
    assert place(passed(where="")) is None


def test_a_cell_is_judged_again_by_the_command_and_suite_that_judged_it() -> None:
    """`run` lacks the checks of footprint and leaks: what `check` found would pass."""
    again = reproduce(passed(command="check", suite="full"))
    assert again == "pagedbench check docs-decode --backend torch:decode --device cuda --suite full"


def test_a_shipped_scenario_is_run_again_by_name_and_another_by_its_file() -> None:
    assert reproduce(passed()) == "pagedbench run docs-decode --backend torch:decode --device cuda"
    own = passed(where="my scenarios.yaml:1:1", scenario="mine", seed=7)
    assert shlex.split(reproduce(own))[2] == "my scenarios.yaml"
    assert reproduce(own).endswith("--seed 7")


def test_the_machine_in_one_line() -> None:
    assert machine(everything()) == "NVIDIA H200, driver 580.159, cuda 13.0, torch 2.11.0"
    assert machine([record(environment={})]) == "cuda"


def test_cells_of_a_scenario_stand_together_however_they_were_made() -> None:
    """As by several workers: paths of a backend stay in their order, and what is in order stays as it is."""
    made = [("b", "torch", "varlen"), ("a", "triton", "decode"), ("b", "triton", "decode"), ("b", "torch", "decode")]
    records = [record(scenario=scenario, backend=backend, path=path) for scenario, backend, path in made]
    found = [(r.scenario, r.backend, r.path) for r in together(records)]
    assert found == [made[0], made[3], made[2], made[1]]
    assert together(together(records)) == together(records)
