"""`pagedbench new-backend`: writes one working file to put a kernel of one's own into."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from pagedbench.errors import UsageError


def command(
    name: Annotated[str, typer.Argument(help="A name like my_kernel; the file is NAME.py, in this folder.")],
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write a backend of your own: a decode kernel in plain torch that passes, ready to be replaced by yours."""
    from pagedbench.backends.scaffold import text

    stem = name.removesuffix(".py")
    if not re.fullmatch(r"[A-Za-z_]\w*", stem):
        raise UsageError(f"{name!r} cannot be the name of a Python file", hint="letters, digits and _: my_kernel")
    file = Path(f"{stem}.py")
    if file.exists() and not force:
        raise UsageError(f"{file} is there already", hint="choose another name, or --force to replace it")
    file.write_text(text(stem), encoding="utf-8")
    typer.echo(f"{file} is written. Try it:\n\n    pagedbench run docs-decode --backend {file}:{stem}_decode")
