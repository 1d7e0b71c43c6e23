"""`pagedbench check`: the gate for CI. All checks on all paths, no timing."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from pagedbench.cli import options as o


class Suite(str, Enum):
    """How much is checked."""

    QUICK = "quick"
    FULL = "full"


def command(
    scenarios: o.Scenarios,
    backend: o.Backends = None,
    path: o.Paths = None,
    suite: Annotated[
        Suite, typer.Option(help="quick leaves out invariance and graph-replay; a gate wants full.")
    ] = Suite.QUICK,
    device: o.Device = "auto",
    seed: o.Seed = None,
    timeout: o.Timeout = 60.0,
    jobs: Annotated[
        int,
        typer.Option("--jobs", "-j", min=1, help="Cells checked at a time, each in a process; not with --baseline."),
    ] = 1,
    sanitize: o.Sanitize = None,
    floor: Annotated[bool, typer.Option("--floor", help="Print the smallest fault that would be caught.")] = False,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Time the cells, too, and hold them against a baseline.", show_default=False),
    ] = None,
    across: o.Across = False,
    require: o.Require = None,
    strict: o.Strict = False,
    resume: o.Resume = False,
    json: o.JsonFile = None,
    csv: o.CsvFile = None,
    markdown: o.MarkdownFile = None,
    junit: o.JunitFile = None,
    html: o.HtmlFile = None,
    plot: o.PlotFile = None,
    sarif: o.SarifFile = None,
    github: Annotated[
        bool | None,
        typer.Option("--github/--no-github", help="Annotations and step summary; default: in CI.", show_default=False),
    ] = None,
) -> None:
    """Check kernels: the gate for CI. A skip is listed and never counted as a pass.

    Exit codes: 0 right, 1 a kernel is wrong, 2 wrong command line or scenario, 3 nothing was checked, 4 slower than the
    baseline, 5 an error, a crash, a time-out or no reference: no verdict.
    """
    from dataclasses import replace

    from pagedbench.cli.judging import BASELINE_TIMING, Gate, Request, conclude, judge
    from pagedbench.cli.outputs import OutputFiles
    from pagedbench.errors import UsageError
    from pagedbench.report.github import on_github
    from pagedbench.results.baseline import MIN_PROCESSES, load_baseline

    if baseline is not None and jobs > 1:
        raise UsageError("--jobs with --baseline: what is timed wants the machine to itself", "leave one of them out")
    if across and baseline is None:
        raise UsageError("--across does nothing without --baseline", "say which: --baseline NAME")
    annotate = on_github() if github is None else github
    files = OutputFiles(
        json=json, csv=csv, markdown=markdown, junit=junit, html=html, sarif=sarif, github=annotate, plot=plot
    )
    request = Request(
        command="check",
        scenarios=scenarios,
        suite=suite.value,
        backends=backend or (),
        paths=path or ("all",),
        device=device,
        seed=seed,
        timeout=timeout,
        require=require or (),
        jobs=jobs,
        sanitizer=sanitize,
        floor=floor,
        pictures=html is not None or plot is not None,
        resume=resume,
        files=files,
    )
    if baseline is None:
        conclude(judge(request), files, Gate(require or (), strict))
    else:
        old = load_baseline(baseline)
        result = judge(replace(request, timing=BASELINE_TIMING, equals=() if across else old), processes=MIN_PROCESSES)
        conclude(result, files, Gate(require or (), strict, old, across))
