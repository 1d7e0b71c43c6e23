"""`pagedbench compare`: paths or backends side by side, with an uncertainty on every difference."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pagedbench.cli import options as o

Words = Annotated[
    list[str],
    typer.Argument(
        metavar="SIDE SIDE... SCENARIO...",
        help="Two or more sides, then scenarios. A side is a path (decode), a backend (flash-attn-3), both "
        "(flash-attn-3:decode) or a Python file. Or two files of records: NEW.jsonl OLD.jsonl. Or the one that "
        "compare --json wrote, to be shown and drawn again.",
        show_default=False,
    ),
]


def command(
    words: Words,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            "--sweep",
            metavar="FIELD=V,V,...",
            help="Vary a field of the scenarios, such as cache.block_size=16,32,64. Repeat it for a grid.",
            show_default=False,
        ),
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(
            "--backend",
            "-b",
            help="Who computes bare paths. Default: the best here.",
            autocompletion=o.complete_backend,
            show_default=False,
        ),
    ] = None,
    path: o.Paths = None,
    layers: Annotated[
        int | None, typer.Option("--layers", min=1, help="Also show the time of a step of so many layers.")
    ] = None,
    device: o.Device = "auto",
    seed: o.Seed = None,
    precision: Annotated[str, typer.Option(help="Sample until every ratio is known that well.")] = "1%",
    max_seconds: Annotated[
        float,
        typer.Option(
            min=0.01,
            max=o.MOST_SECONDS,
            help="Seconds of sampling a side; more, 5 at most, where too few pairs would say nothing.",
        ),
    ] = 1.0,
    warm: Annotated[bool, typer.Option("--warm", help="Leave the L2 cache warm between calls.")] = False,
    timeout: o.Timeout = 60.0,
    across: o.Across = False,
    json: o.JsonFile = None,
    csv: o.CsvFile = None,
    markdown: o.MarkdownFile = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Draw what was measured: FILE.png or FILE.svg names the form, a picture a kind is added to the name.",
            dir_okay=False,
            show_default=False,
            rich_help_panel="Output files",
        ),
    ] = None,
) -> None:
    """Compare paths or backends on the same data, in the same run.

    Sides are checked first, and a wrong one gets no time. Exit codes as for `run`.
    """
    from pagedbench.cli.comparing import Request, compare
    from pagedbench.timing.options import TimingOptions, parse_precision

    request = Request(
        words=words,
        sweep=sweep or (),
        backend=backend,
        paths=path or (),
        layers=layers,
        device=device,
        seed=seed,
        timing=TimingOptions(
            cache="warm" if warm else "cold", precision=parse_precision(precision), max_seconds=max_seconds
        ),
        timeout=timeout,
        across=across,
        json=json,
        csv=csv,
        markdown=markdown,
        plot=plot,
    )
    raise typer.Exit(compare(request))
