"""The matrix: one document into its named variants, on plain data, before anything is validated.

`matrix: {cache.block_size: [16, 32]}` of `edge` makes `edge[cache.block_size=16]` and `edge[cache.block_size=32]`, the
first path varying slowest. A value of `null` leaves the field out.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import ChainMap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pagedbench.scenario.model import Origin
from pagedbench.scenario.refusals import Refusals, describe
from pagedbench.scenario.source import Position, SourceDocument

MAX_VARIANTS = 256
# Each variant is validated anew, so a long document has fewer.
MAX_VARIANT_VALUES = 4_000_000
_NOT_VARIED = ("name", "about", "matrix")
_LABEL_CHARACTERS = 32

Sweep = Mapping[str, Sequence[object]]


@dataclass(frozen=True)
class Variant:
    """One document to validate: `data` without its matrix, what follows the name (`[…]`, or nothing), its values."""

    data: dict[str, object]
    suffix: str
    values: Mapping[str, object]
    origin: Origin
    keys: Mapping[str, Position]


@dataclass(frozen=True)
class _Choice:
    """One value of one matrix path: its label in names and the path where it is written (None: the command line)."""

    path: str
    value: object
    label: str
    written: str | None


def variants(
    source: SourceDocument, data: dict[str, object], file: str, sweep: Sweep, refusals: Refusals
) -> list[Variant]:
    """All variants of a document, or the document itself; none where the matrix cannot be read (noted)."""
    base = {key: value for key, value in data.items() if key != "matrix"}
    axes = _axes(data.get("matrix", {}), sweep, refusals)
    if axes is None:
        return []
    count = math.prod(len(axis) for axis in axes)
    allowed = min(MAX_VARIANTS, max(1, MAX_VARIANT_VALUES // max(1, len(source.positions))))
    if count > allowed:
        refusals.add("matrix", f"{count:,} variants", f"at most {allowed:,} of this document", at_key=True)
        return []
    made = [_variant(source, base, file, combination, refusals) for combination in itertools.product(*axes)]
    return [variant for variant in made if variant is not None]


def _axes(matrix: object, sweep: Sweep, refusals: Refusals) -> list[list[_Choice]] | None:
    if not isinstance(matrix, dict):
        refusals.add("matrix", describe(matrix), "a mapping of dotted paths to lists of values")
        return None
    axes: list[list[_Choice]] = []
    fit = True
    swept = {**matrix, **{path: list(values) for path, values in sweep.items()}}
    for path, values in swept.items():
        where = f"matrix.{path}"
        if path.split(".")[0] in _NOT_VARIED or not all(path.split(".")):
            refusals.add(where, f"the path '{path}'", "a field of the scenario, such as cache.block_size", at_key=True)
            fit = False
        elif (section := _section_beside(path, swept)) is not None:
            found = f"{path} beside {section}, which it is a part of: one value would be put over the other"
            refusals.add(where, found, "one of the two", f"write it into each value of {section}", at_key=True)
            fit = False
        elif not isinstance(values, list) or not values:
            refusals.add(where, describe(values), "a list of at least one value")
            fit = False
        else:
            written = None if path in sweep else where
            axis = [_choice(path, value, index, written) for index, value in enumerate(values)]
            axes.append(axis)
            fit &= _labels_differ(axis, refusals)
    return axes if fit else None


def _section_beside(path: str, swept: Collection[str]) -> str | None:
    """The section around a path that is varied as a whole, too."""
    parts = path.split(".")
    return next((section for end in range(1, len(parts)) if (section := ".".join(parts[:end])) in swept), None)


def _labels_differ(axis: list[_Choice], refusals: Refusals) -> bool:
    seen: set[str] = set()
    for choice in axis:
        if choice.label in seen:
            refusals.add(choice.written or choice.path, f"{describe(choice.value)} a second time", "each value once")
        seen.add(choice.label)
    return len(seen) == len(axis)


def _choice(path: str, value: object, index: int, written: str | None) -> _Choice:
    label = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), default=str)
    label = label.replace('"', "")
    if len(label) > _LABEL_CHARACTERS or not label.isprintable():
        label = f"#{index}"
    return _Choice(path, value, label, f"{written}[{index}]" if written else None)


def _variant(
    source: SourceDocument, base: dict[str, object], file: str, combination: tuple[_Choice, ...], refusals: Refusals
) -> Variant | None:
    data: dict[str, object] = dict(base)
    moved: dict[str, Position] = {}
    keys: dict[str, Position] = {}
    for choice in combination:
        if not _put(data, choice, refusals):
            return None
        if choice.written:
            moved |= _moved(source.positions, choice.written, choice.path)
            keys[choice.path] = source.keys[choice.written.rpartition("[")[0]]
    suffix = ",".join(f"{choice.path}={choice.label}" for choice in combination)
    return Variant(
        data,
        f"[{suffix}]" if suffix else "",
        {choice.path: choice.value for choice in combination},
        Origin(file, ChainMap(moved, source.positions)),
        ChainMap(keys, source.keys),
    )


def _put(data: dict[str, object], choice: _Choice, refusals: Refusals) -> bool:
    """Set a path in `data`, copying the mappings on the way, since variants share them."""
    *parents, last = choice.path.split(".")
    here = data
    for depth, name in enumerate(parents, start=1):
        inner = here.get(name, {})
        if not isinstance(inner, dict):
            found = f"{'.'.join(parents[:depth])}: {describe(inner)}"
            refusals.add(f"matrix.{choice.path}", found, "a mapping to set a field in", at_key=True)
            return False
        own = dict(inner)
        here[name] = own
        here = own
    if choice.value is None:
        here.pop(last, None)
    else:
        here[last] = choice.value
    return True


def _moved(positions: Mapping[str, Position], written: str, path: str) -> dict[str, Position]:
    """The places of a value in the matrix, under the path that it was put at."""
    return {
        path + place[len(written) :]: position
        for place, position in positions.items()
        if place == written or place.startswith((f"{written}.", f"{written}["))
    }
