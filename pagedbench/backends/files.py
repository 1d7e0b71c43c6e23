"""Finds backends in a user's Python file: `my_kernel.py` or `my_kernel.py:my_decode`.

What a function's arguments mean is in `user.py`. Everything wrong with the file is a UsageError that says where.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from pagedbench.backends.base import Backend
from pagedbench.backends.declare import MARK
from pagedbench.backends.user import UserBackend, UserKernel, tells_path
from pagedbench.errors import UsageError, nearest, said
from pagedbench.words import AttnPath

USER_MODULE = "_pagedbench_user_"  # what the names of modules from users' files begin with


def load_backend(file: str, name: str | None = None) -> Backend:
    """The backend that a file defines: the function or class of that `name`, or all it has if there is no doubt.

    Raises UsageError if the file cannot be imported, has no such name, or leaves a doubt.
    """
    module = load_module(file)
    shown = Path(file).name
    if name is None:
        return _only_backend(module, file, shown)
    if not hasattr(module, name):
        names = sorted(candidates(module))
        raise UsageError(
            f"{file}: there is no function or class {name!r}",
            hint=nearest(name, names) or (f"it has: {', '.join(names)}" if names else "it has no function at all"),
        )
    source = f"{Path(file).resolve()}:{name}"
    return as_backend(getattr(module, name), f"{shown}:{name}", source, place=f"{file}:{name}")


def as_backend(found: Any, name: str, source: str, place: str) -> Backend:
    """A Backend from a class, an instance, or a plain function. Raises UsageError for anything else."""
    if isinstance(found, type) and issubclass(found, Backend):
        found = found()
    if isinstance(found, Backend):
        found.name, found._source = found.name or name, source
        return found
    if isinstance(found, type):
        raise UsageError(
            f"{place}: the class {found.__name__} does not derive pagedbench.backends.base.Backend",
            hint="derive it, or write a plain function",
        )
    if callable(found):
        kernel = UserKernel.of(found, place)
        return UserBackend({kernel.path: kernel}, name, source)
    raise UsageError(f"{place}: needs a function, or a class deriving pagedbench.backends.base.Backend")


def defines(file: str, name: str) -> bool:
    """Whether the file has that name."""
    return hasattr(load_module(file), name)


def candidates(module: ModuleType) -> dict[str, Any]:
    """What a module itself defines that can be a backend: functions and Backend classes, by name.

    A partial, or another object without a name of its own, is taken for the module's: it does not tell who made it.
    """
    own = {
        name: value
        for name, value in vars(module).items()
        if getattr(value, "__module__", None) == module.__name__ or not hasattr(value, "__name__")
    }
    return {n: v for n, v in own.items() if not n.startswith("_") and (_is_class(v) or _is_function(v))}


def load_module(file: str) -> ModuleType:
    """Import a file once; its folder can be imported from, as when Python runs it."""
    path = Path(file).resolve()
    if not path.is_file():
        near = nearest(path.name, [p.name for p in path.parent.glob("*.py")]) if path.parent.is_dir() else None
        raise UsageError(f"there is no file {file}", hint=near)
    name = f"{USER_MODULE}{path.stem}_{abs(hash(str(path)))}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException as error:  # whatever a user's file raises is theirs to see, with its place
        del sys.modules[name]
        if isinstance(error, KeyboardInterrupt):  # unless it is a person who wants out
            raise
        raise UsageError(f"{_place(error, path, file)}: {type(error).__name__}: {_one_line(error)}") from error
    return module


def _only_backend(module: ModuleType, file: str, shown: str) -> Backend:
    found = candidates(module)
    source = str(Path(file).resolve())
    classes = [value for value in found.values() if _is_class(value)]
    if len(classes) == 1:
        return as_backend(classes[0], shown, source, file)
    chosen = _likeliest(found)
    if not classes and not chosen:
        raise UsageError(
            f"{file}: there is no function in it that could be the kernel",
            "write one whose name does not begin with _ and ends in a path's, such as my_decode",
        )
    kernels: dict[AttnPath, UserKernel] = {}
    for name, function in chosen.items() if not classes else ():
        kernel = UserKernel.of(function, f"{file}:{name}")
        if kernel.path in kernels:
            kernels.clear()
            break
        kernels[kernel.path] = kernel
    if not kernels:
        names = [name for name, value in found.items() if value in classes or name in chosen]
        raise UsageError(f"{file}: which function is the kernel?", f"write {shown}:NAME, one of {', '.join(names)}")
    return UserBackend(kernels, shown, source)


def _likeliest(found: Mapping[str, Any]) -> dict[str, Any]:
    """The functions that are decorated; where none is, those whose name tells a path; where none does, all."""
    functions = {name: value for name, value in found.items() if _is_function(value)}
    marked = {name: value for name, value in functions.items() if hasattr(value, MARK)}
    return marked or {name: value for name, value in functions.items() if tells_path(value, name)} or functions


def _is_class(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Backend)


def _is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, type)


def _place(error: BaseException, path: Path, shown: str) -> str:
    """`file:line` of what went wrong, in the user's own file where that is on the way."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{shown}:{error.lineno}:{error.offset}"
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == path]
    return f"{shown}:{lines[-1]}" if lines else shown


def _one_line(error: BaseException) -> str:
    text = error.msg if isinstance(error, SyntaxError) else said(error)
    return " ".join(text.split())
