"""`pagedbench show`: the index arrays of a batch, drawn. No torch."""

from __future__ import annotations

from typing import Annotated

import typer

from pagedbench.cli import options as o

MAX_WIDTH = 100


def command(
    scenarios: o.Scenarios,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print all arrays in full, one JSON object a scenario.")
    ] = False,
) -> None:
    """Draw a batch: rulers, strips, the block table, and where each new token is written."""
    from pagedbench.layout.build import build_layout
    from pagedbench.scenario.loader import load_scenarios

    loaded = load_scenarios(scenarios)
    if as_json:
        import json

        from pagedbench.layout.drawing.arrays import as_dict

        for scenario in loaded:
            typer.echo(json.dumps(as_dict(scenario, build_layout(scenario)), ensure_ascii=False))
        return

    from rich.console import Console

    from pagedbench.layout.drawing.page import draw

    console = Console(highlight=False)
    width = min(console.width, MAX_WIDTH) if console.is_terminal else MAX_WIDTH
    for index, scenario in enumerate(loaded):
        if index:
            console.print("\n" + "─" * width + "\n", style="dim", soft_wrap=True)
        for line in draw(scenario, build_layout(scenario), width):
            console.print(line, soft_wrap=True)
