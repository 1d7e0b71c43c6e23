"""Options that several commands share, each written once: name, help, completion."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

# Kept light: completion must not import torch. Names of entry points and files are accepted, only not completed.
BACKEND_NAMES = (
    "torch", "torch-varlen", "triton", "flash-attn", "flash-attn-3", "fa3-fwd", "flash-attn-4", "flashinfer",
    "flashinfer-fa3", "flashinfer-cuda-cores", "transformers", "transformers-eager", "vllm-flash-attn", "flex",
)  # fmt: skip
# What `inputs.seed` takes: the largest whole number that readers of JSON hold exactly.
MAX_SEED = 2**53
# More seconds than anybody waits, and fewer than what clocks and pipes can hold: «inf» would end in an overflow.
MOST_SECONDS = 1e6
PATH_NAMES = ("varlen", "decode", "paged-varlen", "all")


def complete_scenario(incomplete: str) -> list[str]:
    """Shipped scenarios and folders that begin like this."""
    from pagedbench.scenario.catalog import shipped

    known = [name for entry in shipped() for name in (entry.name, entry.folder)]
    return [name for name in dict.fromkeys(known) if name.startswith(incomplete)]


def complete_backend(incomplete: str) -> list[str]:
    """Backends that begin like this."""
    return [name for name in BACKEND_NAMES if name.startswith(incomplete)]


def complete_path(incomplete: str) -> list[str]:
    """Paths that begin like this."""
    return [name for name in PATH_NAMES if name.startswith(incomplete)]


Scenarios = Annotated[
    list[str],
    typer.Argument(
        metavar="SCENARIO",
        help="Names of shipped scenarios or their folders, scenario files, or folders of files.",
        autocompletion=complete_scenario,
        show_default=False,
    ),
]
Backends = Annotated[
    list[str] | None,
    typer.Option(
        "--backend",
        "-b",
        metavar="TARGET",
        help="A backend (torch), one path of it (torch:decode), or a file of your own (kernel.py:function). "
        "Repeatable. Default: torch, and on a GPU the best one that is there.",
        autocompletion=complete_backend,
        show_default=False,
    ),
]
Paths = Annotated[
    list[str] | None,
    typer.Option(
        "--path",
        "-p",
        metavar="PATH",
        help="varlen, decode, paged-varlen or all. Repeatable.",
        autocompletion=complete_path,
        show_default=False,
    ),
]
Device = Annotated[
    str, typer.Option("--device", metavar="DEVICE", help="auto, cpu or cuda; auto is the GPU if there is one.")
]
Seed = Annotated[
    int | None,
    typer.Option("--seed", min=0, max=MAX_SEED, help="Replaces the scenarios' own seeds.", show_default=False),
]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        min=0.1,
        max=MOST_SECONDS,
        help="Seconds a stage of a cell may take; what a backend compiles is added.",
    ),
]
Require = Annotated[
    list[str] | None,
    typer.Option(
        "--require",
        metavar="TARGET",
        help="A backend (or backend:path) that must judge every scenario: a skip of it is a failure. Repeatable.",
        autocompletion=complete_backend,
        show_default=False,
    ),
]
Strict = Annotated[
    bool,
    typer.Option("--strict", help="Fail on a pass that could not have failed (BLIND), and on an outdated expect."),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on from what the file of --json holds of an earlier, interrupted run.")
]
Across = Annotated[bool, typer.Option("--across", help="Compare times although the environments differ.")]
Sanitize = Annotated[
    str | None,
    typer.Option(
        "--sanitize",
        metavar="TOOL",
        help="Run under compute-sanitizer: memcheck, initcheck or racecheck.",
        show_default=False,
    ),
]


def _file(name: str, what: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        name, metavar="FILE", help=what, dir_okay=False, show_default=False, rich_help_panel="Output files"
    )
    return option


JsonFile = Annotated[Path | None, _file("--json", "Records as JSON Lines, written as each cell is done.")]
CsvFile = Annotated[Path | None, _file("--csv", "The table as CSV.")]
MarkdownFile = Annotated[Path | None, _file("--markdown", "A report for a pull request comment.")]
JunitFile = Annotated[Path | None, _file("--junit", "JUnit XML, one case a cell and check.")]
HtmlFile = Annotated[Path | None, _file("--html", "A self-contained page.")]
SarifFile = Annotated[Path | None, _file("--sarif", "SARIF for code scanning.")]
PlotFile = Annotated[
    Path | None,
    _file("--plot", "Charts of times, footprints of failures: files named after this, in its form (.png, .svg, .pdf)."),
]
