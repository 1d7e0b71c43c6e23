"""What commands that work on one scenario have in common: finding it by the name that was given."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pagedbench.scenario.model import Scenario

MOST_NAMED = 12


def only_scenario(name: str) -> Scenario:
    """The one scenario of a shipped name or file. UsageError that lists them where there are several."""
    from pagedbench.errors import UsageError
    from pagedbench.scenario.loader import load_scenarios

    found = load_scenarios([name])
    if len(found) == 1:
        return found[0]
    shown = ", ".join(scenario.name for scenario in found[:MOST_NAMED])
    rest = len(found) - MOST_NAMED
    more = f" and {rest} more" if rest > 0 else ""
    raise UsageError(f"{name} holds {len(found)} scenarios", f"name one: {shown}{more}")
