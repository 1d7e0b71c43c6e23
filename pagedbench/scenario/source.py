"""YAML text to plain data and the place of every field. Hostile text is refused before it costs time or memory.

The language is the safe core of YAML 1.2: mappings with text keys, lists, text, whole and decimal numbers, `true`,
`false`, `null`, anchors and aliases. Tags, merge keys, duplicate keys and the traps of YAML 1.1 (`yes`, `010`) are
refused with a sentence that says what to write instead. What the fields mean is not known here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from pagedbench.errors import Problem, ScenarioError

MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_NODES = 100_000
MAX_DOCUMENTS = 1000
MAX_DEPTH = 32
MAX_DIGITS = 18
MAX_KEY_CHARACTERS = 200
MAX_PROBLEMS = 50

Position = tuple[int, int]

_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9_]+")
_DECIMAL = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_CONSTANTS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
}
# The C parser is some twenty times faster; both are given events only, so neither can construct an object.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class SourceDocument:
    """One YAML document: plain `data`, and where things stand as (line, column) from 1.

    `positions` has the value of each field path (`cache.block_table[1][0]`), or its key where the value is a mapping;
    `keys` has the key. The whole document is the empty path. A document with `problems` is not fit for reading.
    """

    data: object
    positions: dict[str, Position]
    keys: dict[str, Position]
    problems: tuple[Problem, ...] = ()


def read_text(path: Path) -> str:
    """The text of a scenario file.

    Raises ScenarioError for what is no regular file, too large (looked at before reading), or not UTF-8.
    """
    file = str(path)
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise _whole_file(file, "no regular file", "a YAML file")
        if size > MAX_FILE_BYTES:
            raise _whole_file(
                file,
                f"a file of {size / 2**20:,.0f} MiB",
                f"at most {MAX_FILE_BYTES // 2**20} MiB",
                "large batches have short forms: batch.spec, cache.placement, matrix",
            )
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _whole_file(file, f"bytes that are not UTF-8 (from byte {error.start})", "a UTF-8 text file") from None
    except OSError as error:
        raise _whole_file(file, f"a file that cannot be read ({error.strerror})", "a readable YAML file") from None


def _char_at(text: str, place: tuple[int, int]) -> str:
    """The character at a line and column, both from 1; nothing beyond the end."""
    line, column = place
    return "".join(text.split("\n")[line - 1 : line])[column - 1 : column]


def parse(text: str, file: str) -> list[SourceDocument]:
    """The documents of a YAML text.

    Raises ScenarioError for what is not YAML, empty, or beyond the limits on nodes (aliases counted each time they are
    used) and depth; problems that leave the rest readable are kept in their document.
    """
    if len(text) > MAX_FILE_BYTES:
        raise _whole_file(file, f"{len(text):,} characters", f"at most {MAX_FILE_BYTES:,}")
    try:
        documents = list(_Composer(text, file).documents())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        problem = "a tab, where YAML takes spaces only" if _char_at(text, place) == "\t" else error.problem
        raise _whole_file(file, f"text that is not YAML: {problem}", "valid YAML", place=place) from None
    except (yaml.YAMLError, UnicodeError) as error:
        reason = getattr(error, "reason", None) or "a character that YAML does not allow"
        raise _whole_file(file, f"text that is not YAML: {reason}", "valid YAML") from None
    if not documents:
        raise _whole_file(file, "no document", "at least one scenario")
    return documents


def shown(text: str, most: int = 40) -> str:
    """A piece of a file as it may be printed: one short line, and nothing that a terminal would obey."""
    short = text if len(text) <= most else text[: most - 3] + "..."
    return short if short.isprintable() else repr(short)[1:-1]


def _place(event: Any) -> Position:
    return event.start_mark.line + 1, event.start_mark.column + 1


def _whole_file(file: str, found: str, needed: str, hint: str | None = None, place: Position = (1, 1)) -> ScenarioError:
    return ScenarioError([Problem("file", found, needed, hint, f"{file}:{place[0]}:{place[1]}")])


@dataclass
class _Node:
    """A YAML node: `value` is a scalar, a list of nodes, or pairs (key, key's place, node); `size` counts all below."""

    place: Position
    value: object
    size: int = 1
    is_mapping: bool = False
    complete: bool = True


@dataclass
class _Walk:
    """What walking a node tree gathers."""

    positions: dict[str, Position] = field(default_factory=dict)
    keys: dict[str, Position] = field(default_factory=dict)


class _Composer:
    """Builds nodes from parser events, so that limits hold while reading and not after."""

    def __init__(self, text: str, file: str) -> None:
        self._events: Iterator[Any] = yaml.parse(text, Loader=_LOADER)
        self._file = file
        self._nodes = 0
        self._anchors: dict[str, _Node] = {}
        self._problems: list[Problem] = []

    def documents(self) -> Iterator[SourceDocument]:
        starts = (event for event in self._events if isinstance(event, yaml.DocumentStartEvent))
        for count, start in enumerate(starts, start=1):
            if count > MAX_DOCUMENTS:
                place = _place(start)
                raise _whole_file(self._file, f"more than {MAX_DOCUMENTS:,} documents", "several files", place=place)
            self._anchors, self._problems = {}, []
            root = self._node(next(self._events), "", 0)
            walk = _Walk()
            data = None if self._problems else _plain(root, "", walk)
            walk.positions[""] = root.place
            yield SourceDocument(data, walk.positions, walk.keys, tuple(self._problems[:MAX_PROBLEMS]))

    def _node(self, event: Any, path: str, depth: int) -> _Node:
        place = _place(event)
        if depth > MAX_DEPTH:
            raise _whole_file(self._file, f"more than {MAX_DEPTH} levels of nesting", "a flat scenario", place=place)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event.anchor, path, place)
        self._count(1, place)
        if event.tag is not None:
            self._refuse(
                path, place, f"the tag {shown(event.tag)}", "a plain value", "tags are not part of the language"
            )
        node = _Node(place, None, complete=False)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        if isinstance(event, yaml.ScalarEvent):
            node.value = self._scalar(event.value, path, place) if event.implicit[0] else event.value
        elif isinstance(event, yaml.SequenceStartEvent):
            self._sequence(node, path, depth)
        else:
            self._mapping(node, path, depth)
        node.complete = True
        return node

    def _alias(self, anchor: str | None, path: str, place: Position) -> _Node:
        target = self._anchors.get(anchor or "")
        if target is None:
            self._refuse(path, place, f"the alias *{anchor}", f"an anchor &{anchor} earlier in the document")
            return _Node(place, None)
        if not target.complete:
            self._refuse(path, place, f"the alias *{anchor} inside its own anchor", "a value that ends")
            return _Node(place, None)
        self._count(target.size, place)
        return target

    def _count(self, nodes: int, place: Position) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise _whole_file(
                self._file,
                f"more than {MAX_NODES:,} values (aliases count each time they are used)",
                "a shorter file",
                "large batches have short forms: batch.spec, cache.placement, matrix",
                place,
            )

    def _sequence(self, node: _Node, path: str, depth: int) -> None:
        items: list[_Node] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            item = self._node(event, f"{path}[{len(items)}]", depth + 1)
            node.size += item.size
            items.append(item)
        node.value = items

    def _mapping(self, node: _Node, path: str, depth: int) -> None:
        pairs: dict[str, tuple[Position, _Node]] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            place = _place(event)
            key = self._key(event, path, place, depth)
            value_path = f"{path}.{key}" if path else key
            item = self._node(next(self._events), value_path, depth + 1)
            node.size += item.size + 1
            if key in pairs:
                first = pairs[key][0]
                self._refuse(value_path, place, f"a second `{key}` (the first is in line {first[0]})", "each key once")
            else:
                pairs[key] = (place, item)
        node.value = [(key, place, item) for key, (place, item) in pairs.items()]
        node.is_mapping = True

    def _key(self, event: Any, path: str, place: Position, depth: int) -> str:
        if not isinstance(event, yaml.ScalarEvent):
            self._node(event, path, depth + 1)
            self._refuse(path, place, "a key that is no text", "plain keys")
            return ""
        self._count(1, place)
        if event.tag is not None:
            self._refuse(path, place, f"the tag {shown(event.tag)} on a key", "plain keys")
        if not event.value.isprintable() or not 0 < len(event.value) <= MAX_KEY_CHARACTERS:
            found = f"the key {shown(event.value)}" if event.value else "an empty key"
            self._refuse(path, place, found, f"1 to {MAX_KEY_CHARACTERS} printable characters")
            return ""
        if event.value == "<<" and event.implicit[0]:
            hint = "merge keys left YAML in 1.2: repeat the fields, use an alias for a whole section, or a matrix"
            self._refuse(path, place, "the merge key `<<`", "fields of the language", hint)
        return str(event.value)

    def _scalar(self, text: str, path: str, place: Position) -> object:
        if text in _CONSTANTS:
            return _CONSTANTS[text]
        if _INTEGER.fullmatch(text):
            if len(text) <= MAX_DIGITS:
                return int(text)
            self._refuse(path, place, f"a number of {len(text)} digits", f"at most {MAX_DIGITS} digits")
        elif _LEADING_ZERO.fullmatch(text):
            hint = "YAML 1.1 reads it as octal, YAML 1.2 as decimal"
            self._refuse(path, place, f"{text[:MAX_DIGITS]}", "a number without a leading zero", hint)
        elif _DECIMAL.fullmatch(text):
            number = float(text)
            if math.isfinite(number):
                return number
            self._refuse(path, place, f"{text[:MAX_DIGITS]}, which no float64 can hold", "a smaller number")
        else:
            return text
        return None

    def _refuse(self, path: str, place: Position, found: str, needed: str, hint: str | None = None) -> None:
        where = f"{self._file}:{place[0]}:{place[1]}"
        self._problems.append(Problem(path or "document", found, needed, hint, where))


def _plain(node: _Node, path: str, walk: _Walk) -> object:
    """The node as plain Python data; notes the place of everything in `walk`."""
    walk.positions.setdefault(path, node.place)
    if node.is_mapping:
        data: dict[str, object] = {}
        for key, place, item in node.value:  # type: ignore[attr-defined]
            item_path = f"{path}.{key}" if path else key
            walk.keys[item_path] = place
            if item.is_mapping:
                walk.positions[item_path] = place
            data[key] = _plain(item, item_path, walk)
        return data
    if isinstance(node.value, list):
        return [_plain(item, f"{path}[{index}]", walk) for index, item in enumerate(node.value)]
    return node.value
