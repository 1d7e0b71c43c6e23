"""Paths in records and messages: without what names a person or a machine, so that records can be published."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pagedbench


def shorten_paths(text: str) -> str:
    """`text` without the parts of paths that are nobody's business: working folder, site-packages, home folder."""
    for folder, name in (
        # An environment may lie within the working folder, so it comes first.
        (str(Path(sys.prefix)) + os.sep, "<python>/"),
        (str(Path(sys.base_prefix)) + os.sep, "<python>/"),
        (str(Path(pagedbench.__file__).parent.parent) + os.sep, ""),
        (os.getcwd() + os.sep, ""),
        (os.path.expanduser("~") + os.sep, "~/"),
    ):
        if len(folder) > 2:
            text = re.sub(_BEGINNING + re.escape(folder), name, text)
    return text


_BEGINNING = r"(?:(?<![\w.~>/-])|(?<=-[IL]))"
"""Of a path, in a sentence or a compiler's options: a folder's name within another one's is not that folder."""


def plain_target(name: str) -> str:
    """A backend's name, however its file was named: `./kernel.py:f` and that with the whole path are `kernel.py:f`."""
    return shorten_paths(os.path.normpath(name))
