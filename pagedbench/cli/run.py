"""`pagedbench run`: check and time, the main job."""

from __future__ import annotations

from typing import Annotated

import typer

from pagedbench.cli import options as o


def command(
    scenarios: o.Scenarios,
    backend: o.Backends = None,
    path: o.Paths = None,
    device: o.Device = "auto",
    seed: o.Seed = None,
    timing: Annotated[bool, typer.Option("--timing/--no-timing", help="Time the cells that are right.")] = True,
    precision: Annotated[str, typer.Option(help="Sample until the median's interval is that narrow.")] = "1%",
    max_seconds: Annotated[
        float, typer.Option(min=0.01, max=o.MOST_SECONDS, help="Seconds of sampling kernel time at most.")
    ] = 0.5,
    quantities: Annotated[
        str,
        typer.Option(
            "--quantities",
            help="What to time: kernel, call, graph (a replay), total. Planning is always timed where there is some.",
        ),
    ] = "kernel,call",
    warm: Annotated[bool, typer.Option("--warm", help="Leave the L2 cache warm between calls.")] = False,
    timeout: o.Timeout = 60.0,
    require: o.Require = None,
    strict: o.Strict = False,
    resume: o.Resume = False,
    json: o.JsonFile = None,
    csv: o.CsvFile = None,
    markdown: o.MarkdownFile = None,
    junit: o.JunitFile = None,
    html: o.HtmlFile = None,
    plot: o.PlotFile = None,
) -> None:
    """Check and time scenarios on every backend and path asked for.

    Exit codes: 0 right, 1 a kernel is wrong, 2 wrong command line or scenario, 3 nothing was checked, 5 no verdict.
    """
    from pagedbench.cli.judging import Gate, Request, conclude, judge
    from pagedbench.cli.outputs import OutputFiles
    from pagedbench.timing.options import TimingOptions, parse_precision, parse_quantities

    how = TimingOptions(
        "warm" if warm else "cold",
        parse_precision(precision),
        max_seconds=max_seconds,
        quantities=parse_quantities(quantities),
    )
    files = OutputFiles(json, csv, markdown, junit, html, plot=plot)
    request = Request(
        command="run",
        scenarios=scenarios,
        suite="run",
        backends=backend or (),
        paths=path or (),
        device=device,
        seed=seed,
        timeout=timeout,
        require=require or (),
        timing=how if timing else None,
        pictures=html is not None or plot is not None,
        resume=resume,
        files=files,
    )
    conclude(judge(request), files, Gate(require or (), strict))
