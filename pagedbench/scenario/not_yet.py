"""Fields that the language has and the kernels do not have yet: parsed, validated, and refused, never ignored.

Support for one is announced by removing its entry.
"""

from __future__ import annotations

from collections.abc import Callable

from pagedbench.scenario.model import Scenario
from pagedbench.scenario.refusals import Refusals

_FP8 = "float8_e4m3fn"

# The field to point at -> what stands there if the scenario uses it, else None.
NOT_YET: dict[str, Callable[[Scenario], str | None]] = {
    "attention.q_dtype": lambda s: s.attention.q_dtype if s.attention.q_dtype == _FP8 else None,
    "attention.kv_dtype": lambda s: s.attention.kv_dtype if s.attention.kv_dtype == _FP8 else None,
    "attention.alibi": lambda s: "ALiBi" if s.attention.alibi_slopes is not None else None,
    "graph": lambda s: "a graph" if s.graph_capture_lens is not None else None,
    "steps": lambda s: f"{s.steps}" if s.steps > 1 else None,
}


def refuse_not_yet(scenario: Scenario, refusals: Refusals) -> None:
    """Note every field in use that nothing behind the language can do yet."""
    for field, used in NOT_YET.items():
        found = used(scenario)
        if found is not None:
            refusals.add(field, found, "a scenario without it", "not yet: no kernel here can do this so far")
