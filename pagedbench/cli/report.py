"""`pagedbench report`: any report again from the records of earlier runs. No torch, no GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pagedbench.cli import options as o
from pagedbench.errors import UsageError

if TYPE_CHECKING:
    from pagedbench.results.record import CellRecord


def command(
    records: Annotated[
        list[Path],
        typer.Argument(help="Files of records (*.jsonl, *.jsonl.gz), or folders of them.", show_default=False),
    ],
    require: o.Require = None,
    strict: o.Strict = False,
    csv: o.CsvFile = None,
    markdown: o.MarkdownFile = None,
    junit: o.JunitFile = None,
    html: o.HtmlFile = None,
    sarif: o.SarifFile = None,
    parquet: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Parquet, one row a cell (needs pyarrow).",
            dir_okay=False,
            show_default=False,
            rich_help_panel="Output files",
        ),
    ] = None,
    plot: o.PlotFile = None,
    github: Annotated[bool, typer.Option("--github", help="GitHub annotations and the job's step summary.")] = False,
) -> None:
    """Print the table of earlier runs again, and write reports from their records.

    Judges nothing anew: exit code 0 whatever the records say, 2 if they cannot be read. `--require` and `--strict` are
    no part of a record: say them again, and the reports show what they leave unmet.
    """
    from pagedbench.cli.judging import Gate, say_unmet
    from pagedbench.cli.outputs import OutputFiles, refuse_shared
    from pagedbench.report.story import together
    from pagedbench.report.table import make_console, one_a_cell, render

    sources = _files(records)
    files = OutputFiles(csv=csv, markdown=markdown, junit=junit, html=html, sarif=sarif, github=github, plot=plot)
    files.prepare([str(source) for source in sources])
    refuse_shared({"parquet": parquet}, [str(source) for source in sources])
    read = [_whole_records(source) for source in sources] if sources == records else _readable(sources)
    found = together([record for of_file in read for record in one_a_cell(of_file)])
    if len(found) < sum(map(len, read)):
        typer.echo("several processes judged a cell: the first that is no PASS is shown, else the first", err=True)
    make_console().print(render(found))
    unmet = Gate(require or (), strict).unmet(found, None)
    say_unmet(unmet)
    files.write(found, unmet)
    if parquet is not None:
        from pagedbench.report.parquet import write_parquet

        write_parquet([record for of_file in read for record in of_file], parquet)


def _whole_records(file: Path) -> list[CellRecord]:
    """What can be shown of a file: all of it, or, as is said, what a killed run or a copy cut short has left whole."""
    from pagedbench.results.store import CUT_OFF, read_whole

    records, cut = read_whole(file)
    if cut:
        typer.echo(f"warning: {file}: {CUT_OFF}, and is left out", err=True)
    return records


def _readable(files: list[Path]) -> list[list[CellRecord]]:
    """What can be shown of folders: files of another kind may lie beside those of runs, and are left out, as is said.
    Raises UsageError where there is no other."""
    read = [_records_or_refusal(file) for file in files]
    refused = [found for found in read if isinstance(found, UsageError)]
    if len(refused) == len(read):
        raise refused[0]
    for error in refused:
        typer.echo(f"warning: {error.message}; left out", err=True)
    return [found for found in read if not isinstance(found, UsageError)]


def _records_or_refusal(file: Path) -> list[CellRecord] | UsageError:
    try:
        return _whole_records(file)
    except UsageError as error:
        return error


def _files(named: list[Path]) -> list[Path]:
    """The files named, and those of the folders named. Raises UsageError for a folder without any."""
    files: list[Path] = []
    for path in named:
        inside = sorted([*path.rglob("*.jsonl"), *path.rglob("*.jsonl.gz")]) if path.is_dir() else [path]
        if not inside:
            raise UsageError(f"{path} holds no records", "records are *.jsonl files, as --json writes them")
        files += inside
    return files
