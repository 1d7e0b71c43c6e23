"""`pagedbench repro`: a failure as one script that needs torch and the library alone, for a bug report upstream."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pagedbench.backends.base import Backend
    from pagedbench.runner.repro import KernelCall
    from pagedbench.scenario.model import Scenario
    from pagedbench.words import AttnPath


def command(
    scenario: Annotated[str, typer.Argument(metavar="SCENARIO", help="A shipped name or a file.", show_default=False)],
    backend: Annotated[str, typer.Option("--backend", "-b", metavar="TARGET", help="The backend that fails.")],
    path: Annotated[str | None, typer.Option("--path", "-p", help="Its path.", show_default=False)] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Save it here instead of printing it.", dir_okay=False, show_default=False),
    ] = None,
) -> None:
    """Write a script that shows the failure without pagedbench. Shrink the scenario first: the script is as long."""
    from pagedbench.backends.registry import parse_target
    from pagedbench.errors import UsageError
    from pagedbench.layout.build import build_layout
    from pagedbench.runner.repro import script
    from pagedbench.scenario.loader import load_scenarios
    from pagedbench.words import AttnPath

    (first, *others) = load_scenarios([scenario])
    if others:
        raise UsageError(f"{scenario} holds {len(others) + 1} scenarios", "name one, or write it to a file of its own")
    target = parse_target(backend)
    if target.backend is None:
        raise UsageError(f"{backend!r} names a path, no backend", f"say --path {backend}")
    chosen = target.path or (AttnPath(path) if path else target.backend.paths[0])
    call = _call(target.backend, backend, first, chosen)
    title = f"{first.name} on {target.backend.name}:{chosen}. {first.about}".strip()
    text = script(first, build_layout(first), chosen, call, title)
    if output is None:
        typer.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")
        typer.echo(f"saved as {output}", err=True)


def _call(backend: Backend, named: str, scenario: Scenario, path: AttnPath) -> KernelCall:
    import inspect

    from pagedbench.runner.repro import function_call, library_call

    if ".py" not in named:
        return library_call(backend.name, scenario, path)
    file, _, function = named.partition(".py:")
    module = Path(f"{file}.py")
    from pagedbench.backends.files import load_module

    name = function.split(":")[0] or path.value.replace("-", "_")
    return function_call(module, name, list(inspect.signature(getattr(load_module(str(module)), name)).parameters))
