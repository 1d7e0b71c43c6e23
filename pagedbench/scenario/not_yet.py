"""Fields that the language has and the kernels do not have yet: parsed, validated, and refused, never ignored.

Support for one is announced by removing its entry.
"""

from __future__ import annotations

from collections.abc import Callable

from pagedbench.scenario.model import Scenario
from pagedbench.scenario.refusals import Refusals

# The field to point at -> what stands there if the scenario uses it, else None.
NOT_YET: dict[str, Callable[[Scenario], str | None]] = {}


def refuse_not_yet(scenario: Scenario, refusals: Refusals) -> None:
    """Note every field in use that nothing behind the language can do yet."""
    for field, used in NOT_YET.items():
        found = used(scenario)
        if found is not None:
            refusals.add(field, found, "a scenario without it", "not yet: no kernel here can do this so far")
