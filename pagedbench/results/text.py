"""What kernels, compilers and libraries say, made fit for a record, a terminal and a log."""

from __future__ import annotations

import re


def clipped(text: str, most: int) -> str:
    """`text`, cut where it is longer than `most` characters, saying so."""
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


# A terminal's sequences (colours, a cursor that is moved, a window's title), then any other character that is no text:
# controls, those that turn the direction of what follows (a page would show a place backwards), halves of characters.
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """`text` of a kernel's or compiler's own, without what would steer the terminal or log that it is shown in."""
    return _CONTROL.sub("\ufffd", _SEQUENCE.sub("", text))
