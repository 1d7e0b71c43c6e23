"""The JSON Schema: valid itself, describes every field, and agrees with the loader where it can know."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from pagedbench.errors import ScenarioError
from pagedbench.scenario.catalog import shipped
from pagedbench.scenario.loader import loads
from pagedbench.scenario.schema import json_schema
from pagedbench.scenario.source import parse
from tests.scenario.files import VALID, attention_text, scenario_text

SCHEMA = json_schema()


def accepts(text: str) -> bool:
    (document,) = parse(text, "f.yaml")
    return bool(jsonschema.Draft202012Validator(SCHEMA).is_valid(document.data))


def fields(node: Any, name: str = "scenario") -> Iterator[tuple[str, dict[str, Any]]]:
    for key, field in node.get("properties", {}).items():
        yield f"{name}.{key}", field


def test_it_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_every_field_is_described() -> None:
    sections = [("scenario", SCHEMA), *SCHEMA["$defs"].items()]
    missing = [
        path for name, section in sections for path, field in fields(section, name) if "description" not in field
    ]
    assert missing == []


def test_no_section_takes_unknown_keys() -> None:
    assert SCHEMA["additionalProperties"] is False
    assert all(section["additionalProperties"] is False for section in SCHEMA["$defs"].values())


@pytest.mark.parametrize("entry", shipped(), ids=lambda entry: entry.name)
def test_every_shipped_scenario_is_valid(entry: Any) -> None:
    (document,) = parse(entry.text(), str(entry.file))
    jsonschema.validate(document.data, SCHEMA, cls=jsonschema.Draft202012Validator)


@pytest.mark.parametrize(
    "text",
    [
        VALID,
        VALID.replace("cache: {block_size: 16}\n", "matrix: {cache.block_size: [16]}\n"),
        scenario_text(batch={"spec": "2q1s64"}, inputs={"q": {"scale": 8}}, repeats=2),
        attention_text(sinks=[1, 2, 3, 4], num_splits=4, index_dtype={"block_table": "int64"}, window=None),
        scenario_text(cache={"block_size": 16, "layout": {"order": "HND"}, "padding": "decoy"}),
        VALID.replace("cache: {block_size: 16}\n", ""),
        scenario_text(cache={"num_blocks": 3}),
        scenario_text(cache={"block_size": 16, "page_size": 16}),
        scenario_text(cache={"block_size": "16"}),
        scenario_text(batch={"query_lens": [-1], "cached_lens": [1]}),
        attention_text(dtype="bf16"),
        attention_text(window_size=[1, 2, 3]),
        attention_text(softcap=0),
        scenario_text(name="two words"),
        scenario_text(expect={"x": {"skips": "a"}}),
        scenario_text(matrix={"inputs.seed": []}),
    ],
)
def test_editor_and_loader_agree_on_single_fields(text: str) -> None:
    try:
        loads(text)
        loaded = True
    except ScenarioError:
        loaded = False
    assert accepts(text) is loaded
