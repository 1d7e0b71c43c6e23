"""`pagedbench new-backend`: writes one working file to put a kernel of one's own into."""

from __future__ import annotations

import keyword
import os
import re
import sys
from importlib.machinery import PathFinder
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
    from pagedbench.results.store import write_text

    stem = name.removesuffix(".py")
    if not re.fullmatch(r"[A-Za-z_]\w*", stem) or keyword.iskeyword(stem):
        raise UsageError(f"{name!r} cannot be the name of a Python file", hint="letters, digits and _: my_kernel")
    file = Path(f"{stem}.py")
    if _hides_a_module(file):
        raise UsageError(
            f"{file} would hide the module {stem} from what runs in this folder",
            hint=f"choose another name: my_{stem}",
        )
    if os.path.lexists(file) and not force:
        raise UsageError(f"{file} is there already", hint="choose another name, or --force to replace it")
    write_text(file, text(stem))
    typer.echo(f"{file} is written. Try it:\n\n    pagedbench run docs-decode --backend {file}:{stem}_decode")


def _hides_a_module(file: Path) -> bool:
    """Whether the name is that of a module of Python or of an installed package, and not of this very file."""
    spec = PathFinder.find_spec(file.stem)
    installed = spec is not None and spec.origin is not None and Path(spec.origin).resolve() != file.resolve()
    return file.stem in sys.stdlib_module_names or installed
