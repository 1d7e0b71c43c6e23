"""A scenario written down loads as itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pagedbench.scenario.catalog import shipped
from pagedbench.scenario.dump import dumps
from pagedbench.scenario.loader import load_scenarios, loads
from pagedbench.scenario.model import Origin, Scenario


def bare(scenario: Scenario) -> Scenario:
    """Without what belongs to the file it came from."""
    attention = replace(scenario.attention, model=None)
    return replace(scenario, name="x", origin=Origin(), expect=(), variant={}, equals=None, attention=attention)


@pytest.mark.parametrize("entry", shipped(), ids=lambda entry: entry.name)
def test_every_shipped_scenario_survives_the_round_trip(entry) -> None:  # type: ignore[no-untyped-def]
    for scenario in load_scenarios([entry.name]):
        assert bare(loads(dumps(bare(scenario)))[0]) == bare(scenario)


def test_defaults_are_not_written() -> None:
    (scenario,) = load_scenarios(["docs-decode"])
    text = dumps(scenario)
    assert "softcap" not in text
    assert "inputs" not in text
    assert "block_size: 32" in text
