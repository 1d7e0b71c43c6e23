"""The scenarios that travel with the package: where they are, and what they are called."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from pagedbench.scenario.source import parse, read_text

SUFFIXES = (".yaml", ".yml")
_DOCUMENT_START = re.compile(r"^---.*\n", re.MULTILINE)


@dataclass(frozen=True)
class ShippedScenario:
    """A shipped document: its name without variants, its folder (`docs`), its sentence, its file, which document of the
    file it is (from 0), and how many variants its matrix makes (1 without)."""

    name: str
    folder: str
    about: str
    file: Path
    document: int = 0
    variants: int = 1

    def text(self) -> str:
        """The document as it is written, comments included."""
        parts = [part for part in _DOCUMENT_START.split(read_text(self.file)) if part.strip()]
        return parts[self.document].strip("\n") + "\n"


def scenario_root() -> Path:
    """The folder of shipped scenarios: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "_scenarios"
    return installed if installed.is_dir() else package.parent / "scenarios"


def scenario_files(folder: Path) -> list[Path]:
    """All scenario files below a folder, in the order of their names."""
    return sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file())


def shipped() -> list[ShippedScenario]:
    """All shipped documents, folder by folder. Reads the files, but validates nothing."""
    root = scenario_root()
    return [entry for file in scenario_files(root) for entry in _entries(file, root)]


def _entries(file: Path, root: Path) -> Iterator[ShippedScenario]:
    folder = file.relative_to(root).parent.as_posix()
    for index, source in enumerate(parse(read_text(file), str(file))):
        if isinstance(source.data, dict):
            name, about = str(source.data.get("name", file.stem)), str(source.data.get("about", ""))
            matrix = source.data.get("matrix", {})
            yield ShippedScenario(name, folder, about, file, index, math.prod(len(axis) for axis in matrix.values()))


def files_with_name(pattern: str) -> list[Path]:
    """The shipped files with a document of that name (a variant's suffix left off) or of names that match a pattern.

    Only files whose text could hold the name are parsed: finding one scenario must not cost reading forty.
    """
    name = pattern.partition("[")[0]
    plain = not set(name) & set("*?")
    root = scenario_root()
    found = []
    for file in scenario_files(root):
        if plain and name not in file.read_text(encoding="utf-8"):
            continue
        if any(fnmatchcase(entry.name, name) for entry in _entries(file, root)):
            found.append(file)
    return found
