"""Which checks exist, and which run when. Each is imported when it is asked for, so that one does not cost another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import cast

from pagedbench.checks.base import Check
from pagedbench.errors import UsageError

# In the order in which they run and are shown: what explains later failures comes first.
_CLASSES = {
    "accuracy": ("accuracy", "Accuracy"),
    "cache-update": ("cache_update", "CacheUpdate"),
    "unwritten": ("unwritten", "Unwritten"),
    "steps": ("steps", "Steps"),
    "footprint": ("footprint", "Footprint"),
    "leaks": ("leaks", "Leaks"),
    "invariance": ("invariance", "Invariance"),
    "graph-replay": ("graph_replay", "GraphReplay"),
}

_SUITES = {
    "run": ("accuracy", "cache-update", "unwritten", "steps"),
    "quick": ("accuracy", "cache-update", "unwritten", "steps", "footprint", "leaks"),
    "full": tuple(_CLASSES),
}


class _Checks(Mapping[str, Check]):
    """Name to check, each made on first use."""

    def __init__(self) -> None:
        self._made: dict[str, Check] = {}

    def __getitem__(self, name: str) -> Check:
        if name not in self._made:
            module, class_name = _CLASSES[name]
            self._made[name] = cast(Check, getattr(import_module(f"pagedbench.checks.{module}"), class_name)())
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_CLASSES)

    def __len__(self) -> int:
        return len(_CLASSES)


CHECKS: Mapping[str, Check] = _Checks()


def suite(name: str) -> list[Check]:
    """The checks of a suite (`run`, `quick`, `full`); UsageError for any other name."""
    if name not in _SUITES:
        raise UsageError(f"no suite of checks is called {name!r}", f"there are {', '.join(_SUITES)}")
    return [CHECKS[check] for check in _SUITES[name]]
