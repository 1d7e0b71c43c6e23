"""In the worker: which backends the names on the command line mean, and which of their paths are run."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pagedbench
from pagedbench.backends.base import Availability, Backend
from pagedbench.backends.registry import backends, parse_target, presence
from pagedbench.errors import UsageError
from pagedbench.runner.protocol import ResolvedTarget
from pagedbench.runner.state import changes, process_state
from pagedbench.words import AttnPath

# Best first: what a CUDA run takes beside `torch` when no backend is named.
PREFERRED = ("flash-attn-3", "flash-attn", "flashinfer", "flash-attn-4", "triton")
COMPARED_PATHS = (AttnPath.VARLEN, AttnPath.DECODE)
_INSTALLED = {"site-packages", "dist-packages"}


def resolve(names: Sequence[str], paths: Sequence[str], device: str, *, ask: bool = True) -> list[ResolvedTarget]:
    """A `ResolvedTarget` for each name (`torch`, `flash-attn-3:decode`, `kernel.py:function`); for none the defaults.

    `paths` are those asked for; `all` means all a backend has; none means varlen and decode, or what else it has.
    Without `ask` no library is imported to see whether it is there: all are taken to be, and by default it is `torch`.
    Raises `UsageError` for unknown names and paths, and for a backend that has no path, since it could not be loaded.
    """
    if not names:
        return [_resolved(b.name, b, _paths_of(b, None, paths), device, ask) for b in default_backends(device, ask=ask)]
    found = []
    for text in names:
        before = process_state()
        target = parse_target(text)
        if target.backend is None:
            raise UsageError(f"{text!r} names a path, no backend", f"say --path {text}")
        name = text if target.path is None else text.removesuffix(f":{target.path}")
        resolved = _resolved(name, target.backend, _paths_of(target.backend, target.path, paths), device, ask)
        found.append(replace(resolved, warnings=tuple(changes(before, f"the import of {_file_of(name).name or name}"))))
    return found


def default_backends(device: str, *, ask: bool = True) -> list[Backend]:
    """`torch`, and on CUDA the first of the preferred backends that is there."""
    known = {backend.name: backend for backend in backends()}
    chosen = [known["torch"]]
    if device == "cuda" and ask:
        there = (known[name] for name in PREFERRED if name in known and presence(known[name], device).available)
        chosen += [best] if (best := next(there, None)) else []
    return chosen


def _paths_of(backend: Backend, own: AttnPath | None, asked: Sequence[str]) -> tuple[AttnPath, ...]:
    if own is not None:
        return (own,)
    if "all" in asked:
        return backend.paths
    if asked:
        return tuple(_path(name) for name in asked)
    return tuple(p for p in COMPARED_PATHS if p in backend.paths) or backend.paths


def _path(name: str) -> AttnPath:
    try:
        return AttnPath(name)
    except ValueError:
        raise UsageError(f"there is no path {name!r}", f"there are {', '.join(AttnPath)} and all") from None


def _resolved(name: str, backend: Backend, paths: tuple[AttnPath, ...], device: str, ask: bool) -> ResolvedTarget:
    there = presence(backend, device) if ask else Availability(True)
    if not paths:
        raise UsageError(f"{name} cannot be used: {there.reason or 'it has no function for any path'}")
    return ResolvedTarget(
        name=name,
        paths=tuple(str(path) for path in paths),
        available=there.available,
        reason=there.reason,
        version=there.version,
        compile_seconds=max((backend.traits_for(path).compile_seconds for path in paths), default=0.0),
        identity=_identity(name, there.version),
    )


def _identity(name: str, version: str | None) -> str:
    """The version of a library; for a file, a digest of what stands in it, and in what it imported from beside it."""
    file = _file_of(name)
    if file.is_file():
        digest = hashlib.sha256(file.read_bytes())
        for module in _modules_below(file.resolve().parent):
            digest.update(module.read_bytes())
        return digest.hexdigest()[:12]
    return version or ""


def _file_of(name: str) -> Path:
    """The file of `kernel.py` and of `kernel.py:function`; an empty path for a library."""
    return Path(name if name.endswith(".py") else name.rpartition(":")[0])


def _modules_below(folder: Path) -> list[Path]:
    """The files of the modules imported from `folder`, without those of an environment that lies in it, of the
    packages of a user whose home it is, or of ours."""
    others = [Path(place).resolve() for place in (sys.prefix, sys.base_prefix, pagedbench.__path__[0])]
    # Not by `getattr`: a module may import others when it is asked for what it lacks.
    named = (module.__dict__.get("__file__") for module in list(sys.modules.values()) if isinstance(module, ModuleType))
    files = {Path(name).resolve() for name in named if isinstance(name, str)}
    below = (file for file in files if file.is_relative_to(folder) and not _INSTALLED.intersection(file.parts))
    return sorted(file for file in below if file.is_file() and not any(map(file.is_relative_to, others)))
