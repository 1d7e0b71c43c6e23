"""Whatever is done to a valid file, loading gives scenarios or a ScenarioError with places, and nothing else."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pagedbench.errors import ScenarioError
from pagedbench.scenario.loader import loads
from pagedbench.scenario.model import Scenario

FULL: dict[str, Any] = {
    "name": "full",
    "about": "Every section, so that every one can be damaged.",
    "batch": {"query_lens": [1, 1], "cached_lens": [3, 20], "append": True, "padding_rows": 1},
    "cache": {
        "block_size": 16,
        "num_blocks": 9,
        "block_table": [[2, -1], [0, 1]],
        "padding": "decoy",
        "trash_block": True,
        "layout": {"order": "NHD", "k_stride": {"block": 2048, "token": 128}},
    },
    "attention": {"num_heads": 4, "num_kv_heads": 2, "head_dim": 64, "window_size": [15, 0], "sinks": [1, 2, 3, 4]},
    "inputs": {"seed": 1, "q": {"scale": 2.0}, "poison": "inf"},
    "override": {"max_seqlen_k": 99},
    "expect": {"torch:varlen": {"fail": "because"}},
    "equals": {"variant": "inputs.seed=1"},
    "matrix": {"inputs.seed": [1, 2]},
}
TEXT = "".join(f"{name}: {json.dumps(value)}\n" for name, value in FULL.items())

NUMBERS = st.one_of(st.integers(-3, 70), st.sampled_from([2**31 - 1, 2**31, 2**63, 10**30, -(2**70)]), st.floats())
SCALARS = st.one_of(NUMBERS, st.none(), st.booleans(), st.text(max_size=8), st.sampled_from(["tight", "auto", "1q1s9"]))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
PATHS: list[tuple[Any, ...]] = []


def _gather(node: Any, path: tuple[Any, ...]) -> None:
    PATHS.append(path)
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        _gather(value, (*path, key))


_gather(FULL, ())


def load_or_refuse(text: str) -> list[Scenario]:
    """Loads; where it is refused, every problem has a place inside the text."""
    try:
        scenarios = loads(text, "f.yaml")
    except ScenarioError as error:
        check_problems(error, text)
        return []
    assert all(isinstance(scenario, Scenario) for scenario in scenarios)
    return scenarios


def check_problems(error: ScenarioError, text: str) -> None:
    assert error.problems
    for problem in error.problems:
        file, line, column = problem.where.rsplit(":", 2)
        assert file == "f.yaml"
        assert 1 <= int(line) <= len(text.splitlines()) + 1
        assert int(column) >= 1
        assert problem.field
        assert problem.found
        assert problem.needed


def replaced(node: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = dict(node) if isinstance(node, dict) else list(node)
    copy[path[0]] = replaced(node[path[0]], path[1:], value)
    return copy


def test_the_undamaged_file_loads() -> None:
    assert [scenario.name for scenario in load_or_refuse(TEXT)] == ["full[inputs.seed=1]", "full[inputs.seed=2]"]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(PATHS), VALUES)
def test_any_value_in_any_place(path: tuple[Any, ...], value: Any) -> None:
    damaged = replaced(FULL, path, value)
    if isinstance(damaged, dict):
        load_or_refuse("".join(f"{json.dumps(name)}: {json.dumps(part)}\n" for name, part in damaged.items()))
    else:
        load_or_refuse(json.dumps(damaged))


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(TEXT)), st.integers(0, 12), st.text(alphabet="{}[]:,&*!|>-#'\"%@ \n\t0aé?<~.", max_size=6))
def test_any_damage_to_the_text(start: int, length: int, inserted: str) -> None:
    load_or_refuse(TEXT[:start] + inserted + TEXT[start + length :])


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60))
def test_any_text(text: str) -> None:
    load_or_refuse(text)
