"""The command line: one Typer application, built from one thin module a command.

Command modules import what they need inside their function, so that `--help` and `show` stay instant. Errors meant for
a person are printed here, once, without a traceback.
"""

from __future__ import annotations

import errno
import sys
import traceback
from collections.abc import Callable
from functools import wraps
from importlib import import_module

import typer

from pagedbench import __version__
from pagedbench.cli.terminal import forgiving
from pagedbench.errors import PagedbenchError, ScenarioError, UsageError
from pagedbench.runner.signals import SIGNAL_EXIT, ignore_repeated, interruptible
from pagedbench.words import ExitCode

# In the order of `--help`: name on the command line -> module with a function `command`.
COMMANDS: dict[str, str] = {
    "show": "pagedbench.cli.show",
    "run": "pagedbench.cli.run",
    "compare": "pagedbench.cli.compare",
    "check": "pagedbench.cli.check",
    "selftest": "pagedbench.cli.selftest",
    "shrink": "pagedbench.cli.shrink",
    "repro": "pagedbench.cli.repro",
    "baseline": "pagedbench.cli.baseline",
    "backends": "pagedbench.cli.backends",
    "new-backend": "pagedbench.cli.new_backend",
    "report": "pagedbench.cli.report",
    "scenarios": "pagedbench.cli.scenarios",
    "schema": "pagedbench.cli.schema",
}

app = typer.Typer(
    name="pagedbench",
    help="Validate and benchmark paged-attention kernels.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pagedbench {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", help="Print the version.", callback=_print_version, is_eager=True),
) -> None:
    """Validate and benchmark paged-attention kernels."""


def _told_of_signals(command: Callable[..., None]) -> Callable[..., None]:
    """The command, which Ctrl-C and SIGTERM end with a word and their exit code wherever it stands. What has something
    to show by then, a table of what was judged, handles them itself."""

    @wraps(command)
    def told(**arguments: object) -> None:
        with interruptible() as interruption:
            command(**arguments)
        if interruption.by is not None:
            typer.echo(f"interrupted by {interruption.by.name}: what is not shown above was not done", err=True)
            raise typer.Exit(SIGNAL_EXIT + interruption.by)

    return told


for _name, _module in COMMANDS.items():
    app.command(_name)(_told_of_signals(import_module(_module).command))


def main() -> None:
    """Entry point of the `pagedbench` script.

    Only a judged kernel leaves with 1: everything that goes wrong outside a judgement is 2 (the user can mend it) or 5.
    """
    sys.stdout, sys.stderr = forgiving(sys.stdout), forgiving(sys.stderr)
    try:
        try:
            app(prog_name="pagedbench")  # also with `python -m`, whose words make no name of a completion script
        finally:
            ignore_repeated()
            sys.stdout.flush()  # what cannot be written is to be told here, not when the interpreter ends
    except PagedbenchError as error:
        typer.echo(f"error: {error.message}", err=True)
        if error.hint:
            typer.echo(f"hint: {error.hint}", err=True)
        sys.exit(ExitCode.USAGE if isinstance(error, (UsageError, ScenarioError)) else ExitCode.UNDECIDED)
    except Exception as error:
        typer.echo(_told(error), err=True)
        sys.exit(ExitCode.UNDECIDED)


def _told(error: Exception) -> str:
    """What escaped, in words: a full disk is the user's to mend, anything else is a bug of this package."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"error: cannot write the output: {error.strerror}"
    return f"{traceback.format_exc()}\nThis is a bug of pagedbench {__version__}: please report it."
