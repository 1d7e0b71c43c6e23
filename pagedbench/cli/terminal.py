"""The program's own output and errors: whoever reads them, in whatever encoding, saying something is no failure."""

from __future__ import annotations

import codecs
import io
import os
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_SIGNS = {
    "█": "#", "░": ":", "▒": "+", "·": ".", "─": "-", "…": "...", "–": "-", "−": "-", "×": "x", "±": "~", "µ": "u",
    "≤": "<=", "≥": ">=", "→": "->", "¹": "1", "³": "^3", "√": "sqrt ", "«": '"', "»": '"',
}  # fmt: skip
"""What stands for a sign that an encoding lacks: drawings and tables can be told apart in ASCII, too."""


def _in_other_signs(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(_SIGNS.get(sign, "?") for sign in error.object[error.start : error.end]), error.end


codecs.register_error("pagedbench.signs", _in_other_signs)


class _Output(io.FileIO):
    """Where the reader has gone (`| head -1`), the rest goes nowhere: what is judged is judged to its end, and the exit
    code stays its verdict's. Where nothing more fits, that is said once."""

    _full = False

    def write(self, data: ReadableBuffer, /) -> int:
        size = memoryview(data).nbytes
        if self._full:
            return size
        try:
            return super().write(data)
        except BrokenPipeError:
            return size
        except OSError:
            self._full = True
            raise


def forgiving(stream: TextIO | None) -> TextIO:
    """The same output, without an error for a sign that its encoding lacks or a reader that has gone.

    What stands for an output in a test comes back as it is. Where there is none (`>&-`), what is said goes nowhere; the
    descriptor is taken, since the next file that is opened would get it, and what is said with it.
    """
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8")
    try:
        raw = _Output(stream.fileno(), "w", closefd=False)
    except (AttributeError, OSError, ValueError):
        return stream
    at_once = bool(stream.line_buffering or getattr(stream, "write_through", False))
    return io.TextIOWrapper(io.BufferedWriter(raw), stream.encoding, "pagedbench.signs", line_buffering=at_once)
