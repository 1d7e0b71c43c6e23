"""Which words of `compare`'s command line are sides and which are scenarios, and what groups the sides make.

A word is a side if it is a path or a Python file, and a scenario if it looks like a file. Of any other the worker is
asked whether it is a backend, with or without a path; what is none must be a scenario. So a backend wins over a folder
of the same name, which can be written `./name`. No torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from pagedbench.errors import UsageError
from pagedbench.runner.compare import SideChoice
from pagedbench.runner.protocol import ResolvedTarget
from pagedbench.scenario.catalog import SUFFIXES
from pagedbench.words import AttnPath

Resolve = Callable[[Sequence[str], Sequence[str]], list[ResolvedTarget]]
"""The worker's `resolve`: names and paths to targets; raises `UsageError` for a name that means nothing."""

PATHS = tuple(path.value for path in AttnPath)
SIDE_FORM = "a side is a path (decode), a backend (flash-attn-3), both (flash-attn-3:decode) or a Python file"


@dataclass(frozen=True)
class Words:
    """The command line's words, sorted. `sides` keep their order."""

    sides: tuple[str, ...]
    scenarios: tuple[str, ...]


def sort_words(words: Sequence[str], resolve: Resolve, is_scenario: Callable[[str], bool]) -> Words:
    """Tell sides from scenarios. Raises `UsageError` for a word that is neither, or fewer than two sides."""
    kinds = {word: _is_side(word, resolve, is_scenario) for word in dict.fromkeys(words)}
    sides = tuple(word for word in words if kinds[word])
    scenarios = tuple(word for word in dict.fromkeys(words) if not kinds[word])
    if len(sides) < 2:
        found = f"only {sides[0]!r} is one" if sides else "none is given"
        raise UsageError(f"two sides are needed, {found}", hint=SIDE_FORM)
    if not scenarios:
        raise UsageError("no scenario is given to compare on", hint=f"compare {' '.join(sides)} docs-decode, say")
    return Words(sides, scenarios)


def _is_side(word: str, resolve: Resolve, is_scenario: Callable[[str], bool]) -> bool:
    if word in PATHS or ".py" in word:
        return True
    if word.endswith(SUFFIXES) or os.sep in word:
        return False
    try:
        resolve([word], [])
    except UsageError as no_side:
        if ":" in word and "[" not in word:
            raise  # meant as a side: the worker's message names the backend or path that is wrong
        if is_scenario(word):
            return False
        raise UsageError(f"{word!r} is neither a side nor a scenario", hint=_hint(word, no_side)) from None
    return True


def _hint(word: str, no_side: UsageError) -> str:
    """The path that was meant, where one is near; else what there is."""
    near = get_close_matches(word, PATHS, n=1, cutoff=0.7)
    return f"did you mean {near[0]}?" if near else f"{no_side.hint or SIDE_FORM}; `scenarios` lists those"


def groups_of(
    sides: Sequence[str], resolve: Resolve, *, backend: str | None = None, paths: Sequence[str] = ()
) -> list[list[SideChoice]]:
    """The comparisons that the sides ask for: one, or one for each common path where backends stand without one.

    Bare paths are computed by `backend`, or else by the best backend here that has them all.
    """
    bare = [side for side in sides if side in PATHS]
    host = _host_of(bare, backend, resolve) if bare else None
    named = {side: resolve([side], paths)[0] for side in dict.fromkeys(sides) if side not in PATHS}
    pathless = [side for side in named if not _names_path(side)]
    if not pathless:
        return [[_choice(side, host, named, None) for side in sides]]
    common = [path for path in named[pathless[0]].paths if all(path in named[side].paths for side in pathless)]
    if not common:
        raise UsageError(f"{' and '.join(pathless)} have no path in common", hint="name one: BACKEND:PATH")
    return [[_choice(side, host, named, path) for side in sides] for path in common]


def _choice(side: str, host: ResolvedTarget | None, named: dict[str, ResolvedTarget], path: str | None) -> SideChoice:
    if side in PATHS:
        assert host is not None, "bare paths have a host"
        return SideChoice(host, side)
    target = named[side]
    return SideChoice(target, target.paths[0] if _names_path(side) or path is None else path)


def _names_path(side: str) -> bool:
    return side.rpartition(":")[2] in PATHS


def _host_of(bare: Sequence[str], backend: str | None, resolve: Resolve) -> ResolvedTarget:
    """The backend that computes bare paths: the one given, or the last default (the best one here) with all of them."""
    wanted = list(dict.fromkeys(bare))
    candidates = resolve([backend] if backend else [], ["all"])
    able = [target for target in candidates if set(wanted) <= set(target.paths)]
    if not able:
        names = " or ".join(target.name for target in candidates)
        raise UsageError(f"{names} has no {' and '.join(wanted)}", hint="name the backends: BACKEND:PATH")
    return replace(able[-1], paths=tuple(wanted))
