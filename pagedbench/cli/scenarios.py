"""`pagedbench scenarios`: what is shipped, as a table or JSON, and the text of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pagedbench.errors import UsageError

if TYPE_CHECKING:
    from pagedbench.scenario.catalog import ShippedScenario

MAX_COLUMNS = 100


def command(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="A name, of a variant too (prints its document), a folder (docs), or a pattern (edge-*)."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead of a table.")] = False,
) -> None:
    """List the shipped scenarios, or print one, ready to copy and change."""
    from pagedbench.scenario.catalog import shipped

    every = shipped()
    names = list(dict.fromkeys(_document_of(name) for name in names or []))
    chosen = [entry for entry in every if _is_wanted(entry, names)]
    _refuse_unknown(names, every)
    if json:
        _print_json(chosen)
    elif names and {entry.name for entry in chosen} == set(names):
        typer.echo("---\n".join(entry.text() for entry in chosen), nl=False)
    else:
        _print_table(chosen)


def _document_of(name: str) -> str:
    """The document that a variant is of, as tables name one: `edge-padding[cache.padding=0]`; any other name as it is.

    Raises UsageError, with the variant that is nearest, where the document has no such one.
    """
    document, bracket, values = name.partition("[")
    if not bracket or "=" not in values or set(document) & set("*?"):
        return name
    from pagedbench.scenario.catalog import files_with_name
    from pagedbench.scenario.loader import load_scenarios

    if files_with_name(document):
        load_scenarios([name])
    return document


def _is_wanted(entry: ShippedScenario, names: list[str]) -> bool:
    from fnmatch import fnmatchcase

    return not names or any(name == entry.folder or fnmatchcase(entry.name, name) for name in names)


def _refuse_unknown(names: list[str], every: list[ShippedScenario]) -> None:
    from difflib import get_close_matches

    known = [entry.name for entry in every] + sorted({entry.folder for entry in every})
    for name in names:
        if not any(_is_wanted(entry, [name]) for entry in every):
            close = get_close_matches(name, known, n=1)
            raise UsageError(f"no shipped scenario matches '{name}'", f"did you mean {close[0]}?" if close else None)


def _print_json(entries: list[ShippedScenario]) -> None:
    import json

    fields = ("name", "folder", "about", "variants")
    rows = [{**{field: getattr(entry, field) for field in fields}, "file": str(entry.file)} for entry in entries]
    typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))


def _print_table(entries: list[ShippedScenario]) -> None:
    import shutil

    from rich import box
    from rich.console import Console
    from rich.table import Table

    width = min(MAX_COLUMNS, shutil.get_terminal_size((MAX_COLUMNS, 24)).columns)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, width=width)
    table.add_column("scenario", no_wrap=True, overflow="fold")
    table.add_column("variants", justify="right")
    table.add_column("what it is for", ratio=1)
    previous = None
    for entry in entries:
        if previous not in (None, entry.folder):
            table.add_section()
        previous = entry.folder
        table.add_row(entry.name, str(entry.variants), entry.about)
    console = Console(width=width, highlight=False, markup=False)
    console.print(table)
    total = sum(entry.variants for entry in entries)
    console.print(f"{len(entries)} scenarios, {total} with their variants.")
