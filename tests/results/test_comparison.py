"""Records of comparisons come back as they were, also from a version that writes more, and say so if they cannot."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pagedbench.errors import UsageError
from pagedbench.results.comparison import SCHEMA, ComparisonRecord
from tests.report.comparisons import comparison


def test_what_a_later_version_adds_is_left_out() -> None:
    record = comparison(300, 100)
    data = json.loads(record.to_json())
    for part in (data, *data["sides"], *data["pairs"]):
        part["new_key"] = 1
    assert ComparisonRecord.from_json(json.dumps(data)).to_json() == record.to_json()


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        ({"schema": SCHEMA + 1}, "newest known"),
        ({"schema": "1"}, "damaged"),
        ({"sides": None}, "damaged"),
        ({"sides": [{"verdict": "GREAT"}]}, "damaged"),
        ({"pairs": [{}]}, "damaged"),
        ({"kind": "other"}, "not a record of a comparison"),
    ],
)
def test_what_cannot_be_read_is_a_usage_error(damage: dict[str, Any], complaint: str) -> None:
    data = json.loads(comparison(300, 100).to_json())
    with pytest.raises(UsageError, match=complaint):
        ComparisonRecord.from_json(json.dumps({**data, **damage}))


@pytest.mark.parametrize("line", ["{", "[" * 100_000], ids=["cut off", "nested"])
def test_what_is_no_json_is_a_usage_error(line: str) -> None:
    with pytest.raises(UsageError, match="not a record"):
        ComparisonRecord.from_json(line)
