"""Results kept by the identity of what they were made from: layouts and inputs never change, and have no hash."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from enum import Enum
from functools import wraps
from typing import Any, TypeVar, cast

import torch

_Function = TypeVar("_Function", bound=Callable[..., Any])
_BY_VALUE = (int, str, Enum, torch.device)


def kept(size: int, *, many: int = 0, small: Callable[..., bool] | None = None) -> Callable[[_Function], _Function]:
    """Decorates a function of positional arguments: its last `size` results are kept for the very same objects.

    Where `small` says so of the arguments, `many` are kept beside these: a scenario has more variants than can be held
    of large ones. Whole numbers, strings, enums and devices count by value. The arguments are kept alive, so that an id
    stays its own.
    """

    def decorate(function: _Function) -> _Function:
        all_results: OrderedDict[tuple[Any, ...], tuple[tuple[Any, ...], Any]] = OrderedDict()
        small_results: OrderedDict[tuple[Any, ...], tuple[tuple[Any, ...], Any]] = OrderedDict()

        @wraps(function)
        def call(*arguments: Any) -> Any:
            key = tuple(a if isinstance(a, _BY_VALUE) else id(a) for a in arguments)
            for results in (small_results, all_results):
                if key in results:
                    results.move_to_end(key)
                    return results[key][1]
            made = function(*arguments)
            of_many = small is not None and small(*arguments)
            results, most = (small_results, many) if of_many else (all_results, size)
            results[key] = (arguments, made)
            if len(results) > most:
                results.popitem(last=False)
            return made

        return cast(_Function, call)

    return decorate
