"""`pagedbench repro`: a failure as one script that needs torch and the library alone, for a bug report upstream."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pagedbench.backends.base import Backend
    from pagedbench.runner.repro_calls import KernelCall
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
    from pagedbench.cli.naming import only_scenario
    from pagedbench.cli.outputs import refuse_shared
    from pagedbench.errors import UsageError
    from pagedbench.layout.build import build_layout
    from pagedbench.results.store import require_room, write_text
    from pagedbench.runner.repro import reach, script

    first = only_scenario(scenario)
    if output is not None:
        refuse_shared({"output": output}, [scenario, backend], written_by_hand=[".yaml", ".yml"])
        require_room(output)
    target = parse_target(backend)
    if target.backend is None:
        raise UsageError(f"{backend!r} names a path, no backend", f"say --path {backend}")
    chosen = target.path or _path(target.backend, backend, path)
    call = _call(target.backend, first, chosen)
    title = f"{first.name} on {target.backend.name}:{chosen}. {first.about}".strip()
    text = script(first, build_layout(first), chosen, call, title)
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_text(output, text)
        typer.echo(f"saved as {output}", err=True)
    typer.echo(reach(first), err=True)


def _path(backend: Backend, named: str, path: str | None) -> AttnPath:
    """The path asked for, or the backend's first. UsageError with the choices for one that it does not have."""
    from pagedbench.errors import UsageError

    known = {str(own): own for own in backend.paths}
    if not known:
        raise UsageError(f"{named} cannot be used: {backend.available('cpu').reason or 'it has no path'}")
    if path is not None and path not in known:
        raise UsageError(f"{named} has no path {path!r}", f"it has {', '.join(known)}")
    return known[path] if path is not None else backend.paths[0]


def _call(backend: Backend, scenario: Scenario, path: AttnPath) -> KernelCall:
    from pagedbench.backends.user import UserBackend
    from pagedbench.errors import UsageError
    from pagedbench.runner.repro_calls import function_call, library_call

    if isinstance(backend, UserBackend):
        return function_call(*backend.function_for(path), backend.traits_for(path))
    if ".py" in backend.name:
        raise UsageError(
            f"{backend.name} is a Backend class, which needs pagedbench", "repro can call a plain function of a file"
        )
    _refuse_what_it_cannot_take(backend, scenario, path)
    return library_call(backend, scenario, path)


def _refuse_what_it_cannot_take(backend: Backend, scenario: Scenario, path: AttnPath) -> None:
    """Raises UsageError where a library that is here says that it cannot make the call: its error would look like a
    fault of its."""
    from pagedbench.errors import UsageError
    from pagedbench.layout.build import build_layout
    from pagedbench.tensors.prepare import call_spec

    if not backend.available("cuda").available:
        return
    reason = backend.unsupported(call_spec(scenario, build_layout(scenario), path, "cuda"))
    if reason:
        raise UsageError(f"{backend.name}:{path} cannot take {scenario.name}: {reason}")
