"""The files that a run is asked to write. Each form is made by its own module in `report/`; here is only the list."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path

from pagedbench.errors import CannotWrite, UsageError
from pagedbench.report.csvfile import csv_table
from pagedbench.report.footprint_drawing import write_picture
from pagedbench.report.plots import plot_cells, require_matplotlib, require_picture_form
from pagedbench.results.record import CellRecord
from pagedbench.results.store import is_stream, write_text
from pagedbench.scenario.catalog import scenario_files

# Form -> module of `report/`, its function from records, and from what they leave unmet, to text.
_FORMS = {
    "markdown": ("markdown", "markdown"),
    "junit": ("junit", "junit"),
    "html": ("page.page", "html_page"),
    "sarif": ("sarif", "sarif"),
}
WRITTEN_BY_HAND = (".py", ".yaml", ".yml")
"""How kernels and scenarios end: no report is called so."""


@dataclass(frozen=True)
class OutputFiles:
    """Where to write what; None: not at all. `json` is written cell by cell by the run itself.

    `plot` gives folder, stem and form of the pictures.
    """

    json: Path | None = None
    csv: Path | None = None
    markdown: Path | None = None
    junit: Path | None = None
    html: Path | None = None
    sarif: Path | None = None
    github: bool = False
    plot: Path | None = None

    def prepare(self, sources: Sequence[str] = ()) -> None:
        """Make the folders; `sources` are what is read, which no output may replace.

        Raises `UsageError` for what could not be written: before a long run, not after it.
        """
        if self.plot is not None:
            require_matplotlib()
            require_picture_form(self.plot)
        refuse_dash({"plot": self.plot})
        refuse_shared({form: getattr(self, form) for form in ("json", "csv", *_FORMS)}, sources)
        for file in (self.json, self.csv, self.plot, *(getattr(self, form) for form in _FORMS)):
            if file is None or is_stream(file):
                continue
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise CannotWrite(file, error.strerror) from error
            if not os.access(file.parent, os.W_OK):
                raise CannotWrite(file, "its folder is read-only")

    def write(self, records: Sequence[CellRecord], unmet: Sequence[str] = ()) -> None:
        """Write every form asked for except `json`, each whole or not at all.

        `unmet` are sentences on what had to hold beyond the records' verdicts and did not. Raises `CannotWrite` for the
        first form that cannot be written, when all others are.
        """
        tried = [_refusal(write) for write in self._writers(records, unmet)]
        for refused in filter(None, tried):
            raise refused

    def _writers(self, records: Sequence[CellRecord], unmet: Sequence[str]) -> Iterator[Callable[[], object]]:
        """What writes each form asked for."""
        csv, plot = self.csv, self.plot
        if csv is not None:
            yield lambda: write_text(csv, csv_table(records))
        for form, (module, function) in _FORMS.items():
            if getattr(self, form) is not None:
                text = getattr(import_module(f"pagedbench.report.{module}"), function)
                yield partial(_write_form, getattr(self, form), text, records, unmet)
        if plot is not None:
            yield lambda: _draw(records, plot)
        if self.github:
            from pagedbench.report.github import workflow_commands, write_summary

            yield lambda: print(workflow_commands(records, unmet))
            yield lambda: write_summary(records, unmet)


def _refusal(write: Callable[[], object]) -> CannotWrite | None:
    try:
        write()
    except CannotWrite as error:
        return error
    return None


def _write_form(file: Path, text: Callable[..., str], records: Sequence[CellRecord], unmet: Sequence[str]) -> None:
    write_text(file, text(records, unmet))


def refuse_shared(
    files: Mapping[str, Path | None], sources: Sequence[str] = (), *, written_by_hand: Sequence[str] = WRITTEN_BY_HAND
) -> None:
    """Raises `UsageError` where two forms go to one regular file, for the later would overwrite the earlier; where one
    goes to a file that is read (a scenario or a kernel of the user's say, named or in a folder that is); and where it
    goes to one that is there and ends as what people write does, by a slip of the command line."""
    refuse_dash(files)
    named = {form: (file, file.resolve()) for form, file in files.items() if file is not None}
    # `sub/../x` is x also before `sub` is made, which is when its file is looked for.
    written = {form: (file, real) for form, (file, real) in named.items() if real.is_file() or not real.exists()}
    if not written:
        return  # a folder may be large
    read = {file.resolve() for source in sources for file in _files_of(source)}
    taken: dict[Path, str] = {}
    for form, (file, real) in written.items():
        if real in read:
            raise UsageError(f"--{form} would overwrite {file}, which is read", hint="give it a file of its own")
        if real.exists() and real.suffix.lower() in written_by_hand:
            hint = f"--{form} takes the name of the file to write; give it one of its own"
            raise UsageError(f"--{form} would overwrite {file}, a file of another kind", hint)
        other = taken.setdefault(real, form)
        if other != form:
            raise UsageError(f"--{other} and --{form} name the same file: {file}", hint="give each a file of its own")


def refuse_dash(files: Mapping[str, Path | None]) -> None:
    """Raises `UsageError` for a form that goes to -, by which other programs mean standard output: here it is a name
    like any other, and the file would be looked for in vain."""
    for form, file in files.items():
        if file is not None and str(file) == "-":
            hint = "name a file, or /dev/stdout" if form != "plot" else "name a file"
            raise UsageError(f"--{form} - would write a file of the name -", hint)


def _files_of(source: str) -> Iterator[Path]:
    """The files that a word may stand for: itself, those in a folder, a kernel's (`kernel.py:my_decode:decode`)."""
    yield Path(source)
    yield from scenario_files(Path(source))
    kernel, python, _ = source.partition(".py:")
    if python:
        yield Path(f"{kernel}.py")


def _draw(records: Sequence[CellRecord], file: Path) -> None:
    """Times as bars, roofline and stages, and a picture of each failure's footprint, in files named after `file`."""
    drawn = plot_cells(records, file)
    for record in records:
        for name, svg in record.pictures.items():
            cell = re.sub(r"[^A-Za-z0-9.=-]+", "-", f"{name}-{record.scenario}-{record.target}")
            drawn.append(write_picture(svg, file.with_name(f"{file.stem}-{cell}{file.suffix or '.png'}")))
    if not drawn:
        print("nothing drawn: no cell has a time, and no footprint failed", file=sys.stderr)
    for picture in drawn:
        print(f"drawn: {picture}", file=sys.stderr)
