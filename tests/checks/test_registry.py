from __future__ import annotations

import pytest

from pagedbench.checks.registry import CHECKS, suite
from pagedbench.errors import UsageError

OWN = ["accuracy", "cache-update", "unwritten", "steps", "invariance", "graph-replay"]


@pytest.mark.parametrize("name", OWN)
def test_a_check_is_known_by_its_printed_name(name: str) -> None:
    check = CHECKS[name]
    assert check.name == name
    assert check.about.endswith(".")


def test_run_judges_output_and_memory() -> None:
    assert {"accuracy", "cache-update", "unwritten"} <= {check.name for check in suite("run")}


def test_suites_grow() -> None:
    names = {name: {check.name for check in suite(name)} for name in ("run", "quick", "full")}
    assert names["run"] < names["quick"] < names["full"] == set(CHECKS)


def test_an_unknown_suite_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no suite"):
        suite("everything")
