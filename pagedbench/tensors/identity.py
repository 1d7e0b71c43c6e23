"""Results kept by the identity of what they were made from: layouts and inputs never change, and have no hash."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from enum import Enum
from functools import wraps
from typing import Any, TypeVar, cast

import torch

_Function = TypeVar("_Function", bound=Callable[..., Any])
_BY_VALUE = (str, Enum, torch.device)


def kept(size: int) -> Callable[[_Function], _Function]:
    """Decorates a function of positional arguments: its last `size` results are kept for the very same objects.

    Strings, enums and devices count by value. The arguments are kept alive, so that an id stays its own.
    """

    def decorate(function: _Function) -> _Function:
        results: OrderedDict[tuple[Any, ...], tuple[tuple[Any, ...], Any]] = OrderedDict()

        @wraps(function)
        def call(*arguments: Any) -> Any:
            key = tuple(a if isinstance(a, _BY_VALUE) else id(a) for a in arguments)
            if key not in results:
                results[key] = (arguments, function(*arguments))
                if len(results) > size:
                    results.popitem(last=False)
            results.move_to_end(key)
            return results[key][1]

        return cast(_Function, call)

    return decorate
