"""A record survives its trip through one line of strict JSON, and pandas reads many of them in one call."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pandas as pd
import pytest

from pagedbench.errors import UsageError
from pagedbench.results.record import SCHEMA, CellRecord
from pagedbench.words import Verdict
from tests.report.comparisons import comparison


def make_record(**changes: object) -> CellRecord:
    base: dict[str, object] = {
        "scenario": "docs-decode",
        "backend": "torch",
        "path": "decode",
        "device": "cpu",
        "verdict": Verdict.MISMATCH,
        "checks": [
            {
                "check": "accuracy",
                "verdict": "MISMATCH",
                "message": "3 rows of 96 are beyond their budget",
                "findings": [{"message": "sequence 1, query token 0, head 3", "sequence": 1}],
                "metrics": {"worst_ratio": math.inf},
                "warnings": ["BLIND: one block a sequence"],
            }
        ],
        "warnings": ["BLIND: one block a sequence"],
    }
    return CellRecord(**{**base, **changes})  # type: ignore[arg-type]


def test_a_record_is_one_line_and_comes_back_equal() -> None:
    record = make_record(message="a line\nbreak stays inside")
    line = record.to_json()
    assert "\n" not in line
    assert CellRecord.from_json(line) == record


def test_the_line_is_strict_json_even_with_infinite_metrics() -> None:
    def refuse(constant: str) -> float:
        raise AssertionError(f"{constant} is not JSON")

    json.loads(make_record().to_json(), parse_constant=refuse)


def test_half_a_character_does_not_cost_the_run() -> None:
    line = make_record(message="a file named k\udcff.py").to_json()
    assert CellRecord.from_json(line.encode().decode()).message == "a file named k?.py"


def test_the_first_level_is_a_table_for_pandas(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    file.write_text(make_record().to_json() + "\n" + make_record(path="varlen", verdict=Verdict.PASS).to_json() + "\n")
    table = pd.read_json(file, lines=True)
    assert list(table["verdict"]) == ["MISMATCH", "PASS"]
    assert {"scenario", "backend", "path", "device", "worst_error", "time_us"} <= set(table.columns)


def test_a_warning_of_cell_and_check_is_listed_once() -> None:
    assert make_record().all_warnings == ["BLIND: one block a sequence"]


def test_key_and_target_name_the_cell() -> None:
    assert make_record().key == ("docs-decode", "torch", "decode", "cpu")
    assert make_record().target == "torch:decode"


@pytest.mark.parametrize("line", ["", "{", "[]", '{"scenario": "x"}', "[" * 100_000], ids=lambda line: line[:20])
def test_what_is_no_record_is_refused_with_a_hint(line: str) -> None:
    with pytest.raises(UsageError) as caught:
        CellRecord.from_json(line)
    assert caught.value.hint


@pytest.mark.parametrize(
    "damage",
    [
        {"schema": "1"},
        {"verdict": "GREAT"},
        {"scenario": 5},
        {"checks": None},
        {"checks": ["accuracy"]},
        {"checks": [{"metrics": {"worst_ratio": "much"}}]},
        {"environment": None},
        {"worst_error": "much"},
        {"worst_error": []},
        {"worst_error": math.nan},
        {"time_us": -5.0},
        {"gb_per_s": "nan"},
        {"limit_share": 10**400},
        {"expected": "yes"},
    ],
    ids=lambda damage: repr(damage)[:60],
)
def test_a_damaged_record_is_refused_and_no_report_stumbles_over_it(damage: dict[str, object]) -> None:
    data = json.loads(make_record().to_json())
    with pytest.raises(UsageError, match="a damaged record"):
        CellRecord.from_json(json.dumps({**data, **damage}))


def test_a_record_of_compare_is_refused_with_the_command_that_shows_it() -> None:
    with pytest.raises(UsageError, match="a record of compare, not of a run") as refused:
        CellRecord.from_json(comparison(300, 100).to_json())
    assert refused.value.hint == "show it by itself: pagedbench compare FILE"


def test_a_newer_schema_is_refused_and_an_unknown_key_is_not() -> None:
    data = json.loads(make_record().to_json())
    assert CellRecord.from_json(json.dumps({**data, "new_key": 1})) == make_record()
    with pytest.raises(UsageError, match="schema"):
        CellRecord.from_json(json.dumps({**data, "schema": SCHEMA + 1}))


@pytest.mark.parametrize("value", [math.inf, 0.5])
def test_an_error_that_is_no_finite_number_comes_back_as_one(value: float) -> None:
    again = CellRecord.from_json(make_record(worst_error=value).to_json())
    assert repr(again.worst_error) == repr(value)
