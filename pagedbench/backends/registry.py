"""Which backends there are, and how a person names one: a name, a file, or either with a path.

Nothing that is broken breaks the rest: a backend whose own module cannot be imported is listed with the reason.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from pagedbench.backends.base import Availability, Backend
from pagedbench.backends.files import as_backend, defines, load_backend
from pagedbench.backends.loading import known_cause, named, sentence
from pagedbench.errors import PagedbenchError, UsageError, nearest
from pagedbench.words import AttnPath

ENTRY_POINTS = "pagedbench.backends"

# In the order of the tables: name -> module:class. Each module imports its library only when it is asked about it.
OWN = {
    "torch": "torch_backend:TorchBackend",
    "torch-varlen": "torch_varlen:TorchVarlenBackend",
    "triton": "triton_backend:TritonBackend",
    "flash-attn": "flash_attn_2:FlashAttention2Backend",
    "flash-attn-3": "flash_attn_3:FlashAttention3Backend",
    "fa3-fwd": "flash_attn_3:Fa3FwdBackend",
    "flash-attn-4": "flash_attn_4:FlashAttention4Backend",
    "flashinfer": "flashinfer_backend:FlashInferBackend",
    "flashinfer-fa3": "flashinfer_backend:FlashInferFa3Backend",
    "flashinfer-cuda-cores": "flashinfer_backend:FlashInferCudaCoresBackend",
    "transformers": "transformers_backend:TransformersBackend",
    "transformers-eager": "transformers_backend:TransformersEagerBackend",
    "vllm-flash-attn": "vllm_flash_attn:VllmFlashAttentionBackend",
    "flex": "flex:FlexBackend",
}


class BrokenBackend(Backend):
    """Stands for a backend that could not be loaded, so that it is listed with its reason."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.about = "could not be loaded"
        self._reason = reason

    def available(self, device: str) -> Availability:
        """Never."""
        return Availability(False, reason=self._reason)


@dataclass(frozen=True)
class Target:
    """What a command is pointed at: a backend, a path, or both; at least one is given. `text` is as it was written."""

    text: str
    backend: Backend | None = None
    path: AttnPath | None = None


@lru_cache(maxsize=1)
def _registered() -> dict[str, Backend]:
    found = {name: _own(name, place) for name, place in OWN.items()}
    for entry in entry_points(group=ENTRY_POINTS):
        found.setdefault(entry.name, _from_entry_point(entry))
    return found


def backends() -> list[Backend]:
    """All backends that have a name: pagedbench's own, then those of entry points. None of them raises when asked."""
    return list(_registered().values())


def backend_names() -> list[str]:
    """The names of `backends`, found without loading any."""
    return list(dict.fromkeys([*OWN, *(entry.name for entry in entry_points(group=ENTRY_POINTS))]))


def presence(backend: Backend, device: str) -> Availability:
    """Whether it is there. Never raises: a package's own backend must not take the others with it."""
    try:
        return backend.available(device)
    except (Exception, SystemExit) as error:
        why = known_cause(error) or named(error)
        return Availability(False, reason=f"it cannot say whether it is there: {why}")


def find_backend(text: str) -> Backend:
    """The backend of a name (`torch`) or a file (`my_kernel.py`, `my_kernel.py:my_decode`).

    Raises UsageError with the nearest name, or with what is wrong with the file.
    """
    file = _FILE.fullmatch(text)
    if file:
        return load_backend(file["file"], file["rest"])
    known = _registered()
    if text not in known:
        raise UsageError(
            f"there is no backend {text!r}",
            hint=nearest(text, known) or f"there are {', '.join(known)}, or a Python file of your own",
        )
    return known[text]


def parse_target(text: str) -> Target:
    """What a person points at: `decode`, `flash-attn-3`, `flash-attn-3:decode`, `my_kernel.py:my_decode`.

    Raises UsageError if there is no such backend, file or path, or the backend does not have the path.
    """
    if text in _PATHS:
        return Target(text, path=AttnPath(text))
    name, _, last = text.rpartition(":")
    if last in _PATHS and name and not _is_function_of(name, last):
        backend, path = find_backend(name), AttnPath(last)
        if backend.paths and path not in backend.paths:
            raise UsageError(f"{name} has no path {path}", hint=f"it has {', '.join(map(str, backend.paths))}")
        return Target(text, backend, path)
    if name and not last:
        bare = name.rstrip(":")
        raise UsageError(
            f"nothing stands behind the colon of {text}",
            hint=f"write {bare}, or {bare}:NAME with the name of a function of it, or of a path",
        )
    if name and not _FILE.fullmatch(text):
        hint = _file_meant(name, last) or nearest(last, _PATHS) or f"paths are {', '.join(_PATHS)}"
        raise UsageError(f"{text}: there is no path {last!r}", hint=hint)
    return Target(text, find_backend(text))


def backend_of(text: str) -> Backend:
    """The backend of a target (`torch`, `torch:decode`, `my_kernel.py:my_decode`), whatever path of it is named.

    Raises UsageError as `parse_target` does, and for a path alone.
    """
    target = parse_target(text)
    if target.backend is None:
        raise UsageError(f"{text!r} names a path, no backend", hint=f"name one: torch:{text}, say")
    return target.backend


_PATHS = tuple(path.value for path in AttnPath)
_FILE = re.compile(r"(?P<file>.+\.py)(?::(?P<rest>\w+))?")


def _file_meant(name: str, function: str) -> str | None:
    """For `my_kernel:my_decode` and `my_kernel.py::my_decode`, how to write it."""
    file = Path(name.rstrip(":").removesuffix(".py") + ".py")
    return f"did you mean {file}:{function}?" if file.is_file() else None


def _is_function_of(file: str, name: str) -> bool:
    """`kernels.py:decode` is a function of that name if the file has it, and else a path."""
    return file.endswith(".py") and defines(file, name)


def _own(name: str, place: str) -> Backend:
    module, _, attribute = place.partition(":")
    try:
        found: Backend = getattr(import_module(f"pagedbench.backends.{module}"), attribute)()
    except (Exception, SystemExit) as error:  # a library may fail in any way, and must not take the others with it
        return BrokenBackend(name, sentence(error))
    return found


def _from_entry_point(entry: Any) -> Backend:
    try:
        return as_backend(entry.load(), entry.name, entry.name, place=entry.value)
    except PagedbenchError as error:
        return BrokenBackend(entry.name, error.message)
    except (Exception, SystemExit) as error:
        return BrokenBackend(entry.name, f"its entry point {entry.value} cannot be loaded: {sentence(error)}")
