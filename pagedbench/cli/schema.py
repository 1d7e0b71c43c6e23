"""`pagedbench schema`: the JSON Schema of scenario files on stdout."""

from __future__ import annotations

import typer


def command() -> None:
    """Print the JSON Schema of scenario files, for completion in editors.

    In VS Code: pagedbench schema > pagedbench.schema.json, and in a scenario's first line
    "# yaml-language-server: $schema=pagedbench.schema.json".
    """
    import json

    from pagedbench.scenario.schema import json_schema

    typer.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))
