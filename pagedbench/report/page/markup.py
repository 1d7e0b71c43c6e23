"""Building HTML from text safely: whatever is not `Safe` is escaped when it is put into an element."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from html import escape


class Safe(str):
    """Text that is HTML already."""

    __slots__ = ()


def text(value: object) -> Safe:
    """Any value as escaped text; HTML stays as it is."""
    return value if isinstance(value, Safe) else Safe(escape(str(value)))


def tag(name: str, *content: object, **attributes: object) -> Safe:
    """`<name attributes>content</name>`. `class_` is `class`, `_` in names is `-`; None leaves an attribute out."""
    return Safe(f"<{name}{_told(attributes)}>{joined(content)}</{name}>")


def void(name: str, **attributes: object) -> Safe:
    """An element that has no content and is not closed: `<img>`, `<input>`."""
    return Safe(f"<{name}{_told(attributes)}>")


def _told(attributes: Mapping[str, object]) -> str:
    return "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )


def joined(parts: object) -> Safe:
    """Everything in `parts`, in order; None and nested sequences are fine."""
    if parts is None:
        return Safe("")
    if isinstance(parts, (list, tuple)):
        return Safe("".join(joined(part) for part in parts))
    return text(parts)


def folded(summary: object, *content: object, open_: bool = False) -> Safe:
    """Something that is opened by a click, without a script."""
    return tag("details", tag("summary", summary), *content, open="" if open_ else None)


def picture(svg: str, description: str) -> Safe:
    """An SVG as an image, so that nothing in it can run or load."""
    data = base64.b64encode(svg.encode()).decode()
    return void("img", alt=description, src=f"data:image/svg+xml;base64,{data}")
