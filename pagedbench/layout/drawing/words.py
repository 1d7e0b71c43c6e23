"""What the drawings share: colours by sequence, shortened arrays, ordinals, lists that leave out their middle."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

PALETTE = ("cyan", "magenta", "green", "yellow", "blue")
HEADING = "bold"
FAINT = "dim"
NEW = "bold reverse"
INDENT = "  "
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")


def shade(sequence: int) -> str:
    """The colour of a sequence, the same in every drawing of a page."""
    return PALETTE[sequence % len(PALETTE)]


def heading(title: str, remark: str = "") -> Text:
    """A section's first line."""
    return Text.assemble((title, HEADING), (f"   {remark}" if remark else "", FAINT))


def plural(count: int, word: str) -> str:
    """`1 sequence`, `3 sequences`, `65,536 sequences`."""
    return f"{count:,} {word}" + ("" if count == 1 else "s")


def ordinal(number: int) -> str:
    """`first` to `tenth`, then `11th`; counts from 1."""
    if number <= len(_ORDINALS):
        return _ORDINALS[number - 1]
    last = 0 if 10 < number % 100 < 14 else number % 10
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(last, 'th') }"


def short_list(values: Sequence[object], room: int, *, brackets: tuple[str, str] = ("[", "]")) -> str:
    """`[0, 10, 13, 14]`, or with `…` in its middle where it would need more than `room` characters."""
    texts = [str(v) for v in values]
    start, end = brackets
    whole = start + ", ".join(texts) + end
    if len(whole) <= room:
        return whole
    tail = texts[-1]
    head: list[str] = []
    used = len(start) + len("…, ") + len(tail) + len(end)
    for text in texts[:-1]:
        if used + len(text) + 2 > room:
            break
        head.append(text)
        used += len(text) + 2
    return start + ", ".join([*head, "…", tail]) + end


def pick(count: int, room: int, tail: int = 2) -> tuple[range, range]:
    """Which of `count` things to show in `room` lines: the first ones and the last `tail`, or all and none."""
    if count <= room:
        return range(count), range(0)
    return range(room - tail - 1), range(count - tail, count)
