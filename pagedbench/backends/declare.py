"""The decorator by which a user's own function says which path it computes. Imports no torch, and calls nothing.

    import pagedbench

    @pagedbench.backend(path="decode", devices=("cuda",))
    def my_kernel(q, k_cache, v_cache, block_table, total_seqlens, softmax_scale):
        ...

Without the decorator the path is told by the function's name (`..._decode`, `..._varlen`, `..._paged_varlen`). What the
arguments mean is in `user.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pagedbench.words import AttnPath

Function = TypeVar("Function", bound=Callable[..., Any])
MARK = "__pagedbench__"
_OTHER_PATHS = " or ".join(f'"{path}"' for path in AttnPath if path is not AttnPath.DECODE)


@dataclass(frozen=True)
class Declaration:
    """What the decorator was told; None or empty where it was told nothing."""

    path: AttnPath
    devices: tuple[str, ...] = ("cpu", "cuda")
    plan: Callable[..., Any] | None = None
    unsupported: Callable[..., str | None] | None = None
    traits: Mapping[str, Any] = field(default_factory=dict)


def backend(
    path: str,
    *,
    devices: tuple[str, ...] = ("cpu", "cuda"),
    plan: Callable[..., Any] | None = None,
    unsupported: Callable[..., str | None] | None = None,
    **traits: Any,
) -> Callable[[Function], Function]:
    """Declare a plain function as the kernel of a path.

    `path` is `"varlen"`, `"decode"` or `"paged-varlen"`; `devices` where it runs. `plan(call)` is host work before the
    call, timed apart; the function gets its result as the argument `plan`. `unsupported(spec)` returns why a call (a
    `CallSpec`) cannot be made, as a sentence, or None. Further keywords are fields of `Traits` (`repeatable=False`,
    `compile_seconds=20`). Raises ValueError for a path that does not exist.
    """
    if path not in tuple(AttnPath):
        raise ValueError(f'no path {path!r}: write @pagedbench.backend(path="decode"), or {_OTHER_PATHS}')
    declaration = Declaration(AttnPath(path), devices, plan, unsupported, traits)

    def mark(function: Function) -> Function:
        setattr(function, MARK, declaration)
        return function

    return mark
