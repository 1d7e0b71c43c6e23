"""The JSON Schema of scenario files, for editors. Made from the file format's models, so that it cannot fall behind.

It says what can be said of single fields; what fields mean together only the loader knows.
"""

from __future__ import annotations

from typing import Any

from pagedbench.scenario.document import ScenarioDocument
from pagedbench.scenario.models import MODELS

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """The schema of one YAML document, JSON Schema draft 2020-12."""
    schema = ScenarioDocument.model_json_schema()
    _tidy(schema)
    schema["$schema"] = _DIALECT
    schema["title"] = "pagedbench scenario"
    schema["$defs"]["AttentionSection"]["properties"]["model"]["examples"] = list(MODELS)
    _require_unless_matrix(schema)
    return schema


def _tidy(node: Any) -> None:
    """Drop generated titles, which only repeat the keys, and nulls as defaults, which no one would write."""
    if isinstance(node, dict):
        if isinstance(node.get("title"), str):
            del node["title"]
        if "default" in node and node["default"] is None:
            del node["default"]
        for inner in node.values():
            _tidy(inner)
    elif isinstance(node, list):
        for inner in node:
            _tidy(inner)


def _require_unless_matrix(schema: dict[str, Any]) -> None:
    """A field that a matrix gives need not stand in its section as well, nor the section that holds nothing else."""
    sections = {name: schema["$defs"][f"{name.title()}Section"].pop("required", []) for name in ("cache", "attention")}
    names = schema.pop("required")
    schema["required"] = ["name"]
    schema["if"] = {"not": {"required": ["matrix"]}}
    schema["then"] = {
        "required": names,
        "properties": {name: {"required": fields} for name, fields in sections.items() if fields},
    }
