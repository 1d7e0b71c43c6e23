"""YAML to plain data: positions, the safe core of the language, and texts that are out to do harm."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import pytest

from pagedbench.errors import ScenarioError
from pagedbench.scenario.source import MAX_DOCUMENTS, MAX_FILE_BYTES, parse, read_text


def data_of(text: str) -> object:
    (document,) = parse(text, "f.yaml")
    assert not document.problems
    return document.data


def refusal_of(text: str) -> str:
    """The first problem of a text, whether it stops the reading or spoils one document."""
    try:
        return str(next(problem for document in parse(text, "f.yaml") for problem in document.problems))
    except ScenarioError as error:
        return str(error.problems[0])


def test_every_field_has_its_line_and_column_from_1() -> None:
    (document,) = parse("name: x\ncache:\n  block_table: [[2, -1],\n                [0, 1]]\n", "f.yaml")
    assert document.positions["name"] == (1, 7)
    assert document.positions["cache"] == (2, 1), "a mapping stands where its key does"
    assert document.positions["cache.block_table"] == (3, 16)
    assert document.positions["cache.block_table[0][1]"] == (3, 21)
    assert document.positions["cache.block_table[1][0]"] == (4, 18)
    assert document.keys["cache.block_table"] == (3, 3)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-1", -1),
        ("+7", 7),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("true", True),
        ("null", None),
        ("~", None),
        ("", None),
        ("nan", "nan"),
        ("yes", "yes"),
        ("on", "on"),
        ("1_000", "1_000"),
        ("0x10", "0x10"),
        ("12:30", "12:30"),
        ("2026-01-01", "2026-01-01"),
        ("'3'", "3"),
        ('"true"', "true"),
        (".inf", math.inf),
        ("-.inf", -math.inf),
    ],
)
def test_scalars_are_those_of_the_core_of_yaml_1_2(text: str, value: object) -> None:
    assert data_of(f"a: {text}\n") == {"a": value}


def test_keys_are_text_even_where_yaml_1_1_sees_a_truth_value() -> None:
    assert data_of("on: 1\nyes: 2\n3: 4\n") == {"on": 1, "yes": 2, "3": 4}


def test_aliases_repeat_a_section() -> None:
    assert data_of("a: &x {b: [1, 2]}\nc: *x\n") == {"a": {"b": [1, 2]}, "c": {"b": [1, 2]}}


def test_documents_do_not_share_anchors() -> None:
    first, second = parse("a: &x 1\n---\na: *x\n", "f.yaml")
    assert first.data == {"a": 1}
    assert str(second.problems[0]) == "f.yaml:3:4: a: found the alias *x, needed an anchor &x earlier in the document"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3:1: a: found a second `a` (the first is in line 1), needed each key once"),
        ("a: 010\n", "f.yaml:1:4: a: found 010, needed a number without a leading zero"),
        ("a: !!python/name:os.system x\n", "f.yaml:1:4: a: found the tag tag:yaml.org,2002:python/name:os.system"),
        ("a: !mine x\n", "f.yaml:1:4: a: found the tag !mine, needed a plain value"),
        ("<<: {a: 1}\n", "f.yaml:1:1: document: found the merge key `<<`"),
        ("[a, b]: 1\n", "f.yaml:1:1: document: found a key that is no text, needed plain keys"),
        ("'': 1\n", "f.yaml:1:1: document: found an empty key, needed 1 to 200 printable characters"),
        ('"\\x1b[2J": 1\n', "f.yaml:1:1: document: found the key \\x1b[2J, needed 1 to 200 printable characters"),
        ("a: 1e400\n", "f.yaml:1:4: a: found 1e400, which no float64 can hold, needed a smaller number"),
        ("a: &x [*x]\n", "f.yaml:1:8: a[0]: found the alias *x inside its own anchor"),
        ("a: [1, 2\nb: 3\n", "f.yaml:2:2: file: found text that is not YAML"),
        ("a:\n\t- b\n", "f.yaml:2:1: file: found text that is not YAML: a tab, where YAML takes spaces only, needed"),
        ("a: \x01\n", "f.yaml:1:1: file: found text that is not YAML"),
        ("", "f.yaml:1:1: file: found no document, needed at least one scenario"),
        ("# only a comment\n", "f.yaml:1:1: file: found no document"),
    ],
)
def test_what_is_refused_says_where_and_what(text: str, message: str) -> None:
    assert refusal_of(text).startswith(message)


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join(['*' + previous] * 9)}]\n"
    for previous, name in zip("abcdefgh", "bcdefghi", strict=True)
)

HOSTILE = {
    "alias bomb": BOMB,
    "number of 5,000 digits": "a: " + "9" * 5000,
    "deep flow lists": "[" * 100_000,
    "deep flow mappings": "{a: " * 100_000,
    "deep block mappings": "".join("  " * depth + "a:\n" for depth in range(500)),
    "deep block lists": "- " * 200_000,
    "a million entries": "a: [" + "1," * 1_000_000 + "]",
    "a hundred thousand documents": "---\na\n" * 100_000,
    "object construction": "!!python/object/apply:os.system ['exit 1']",
    "NUL": "a\0b",
    "surrogate": "a: \ud800",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_refused_quickly(name: str) -> None:
    started = time.process_time()
    message = refusal_of(HOSTILE[name])
    assert message.startswith("f.yaml:")
    assert time.process_time() - started < 5, "a hang, not a matter of fractions"


def test_the_limit_on_documents_is_the_last_one_allowed() -> None:
    assert len(parse("--- a\n" * MAX_DOCUMENTS, "f.yaml")) == MAX_DOCUMENTS
    assert "more than 1,000 documents" in refusal_of("--- a\n" * (MAX_DOCUMENTS + 1))


def test_a_large_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    with path.open("wb") as file:
        file.truncate(100 * 1024 * 1024)
    with pytest.raises(ScenarioError, match=r"large\.yaml:1:1: file: found a file of 100 MiB, needed at most 4 MiB"):
        read_text(path)
    assert MAX_FILE_BYTES == 4 * 1024 * 1024


@pytest.mark.parametrize("content", [b"\xff\xfea\x00:\x00", b"name: \xe9t\xe9", bytes(range(128, 256))])
def test_what_is_not_utf_8_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bytes.yaml"
    path.write_bytes(content)
    with pytest.raises(ScenarioError, match="not UTF-8"):
        read_text(path)


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "bom.yaml"
    path.write_bytes(b"\xef\xbb\xbfname: x\n")
    assert read_text(path) == "name: x\n"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pipe.yaml"
    os.mkfifo(path)
    with pytest.raises(ScenarioError, match="no regular file"):
        read_text(path)
