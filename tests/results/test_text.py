"""What kernels say, made fit for a record, a terminal and a log."""

from __future__ import annotations

from pagedbench.results.text import printable


def test_a_kernels_words_cannot_steer_where_they_are_shown() -> None:
    assert printable("\x1b[31mred\x00 ünï\tcode\n") == "red\ufffd ünï\tcode\n"
    assert printable("half \ud800, turned \u202e(k.py:5)") == "half \ufffd, turned \ufffd(k.py:5)"
