"""Imports a library, or says in a sentence why it cannot be: missing, broken, or built for something else.

Nothing here raises; what a library does when it is imported is not under our control (OSError, SystemError, ...).
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import warnings
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from types import ModuleType

import torch

from pagedbench.backends.base import Availability
from pagedbench.errors import said


@dataclass(frozen=True)
class Library:
    """How to find a library. `modules` are tried in order; `distributions` are the packages that have its version.

    `install` is what a person types to get it. `capabilities` are the compute capabilities that it runs on, as (major,
    minor) from and up to, both ends included.
    """

    title: str
    modules: tuple[str, ...]
    distributions: tuple[str, ...]
    install: str
    needs_cuda: bool = True
    capabilities: tuple[tuple[int, int], tuple[int, int]] | None = None

    def module(self) -> ModuleType:
        """The imported module. Raises whatever the import raised."""
        loaded = load(self.modules)
        if loaded.module is None:
            raise ImportError(loaded.reason)
        return loaded.module

    def version(self) -> str | None:
        """The installed version, without importing the library."""
        return next(filter(None, map(version_of, self.distributions)), None)

    def available(self, device: str) -> Availability:
        """Whether it can be imported and runs on `device`."""
        version = self.version()
        if self.needs_cuda and not device.startswith("cuda"):
            missing = "" if version or any(map(_is_there, self.modules)) else f", and is not installed: {self.install}"
            return Availability(False, version, f"{self.title} needs a CUDA GPU{missing}")
        loaded = load(self.modules)
        if loaded.module is None:
            return Availability(False, version, self._why_not(loaded, version))
        version = version or getattr(loaded.module, "__version__", None)
        return (
            Availability(True, version) if not (why := self._wrong_gpu(device)) else Availability(False, version, why)
        )

    def _why_not(self, loaded: Loaded, version: str | None) -> str:
        if not loaded.missing:
            return loaded.reason
        if version is None:
            return f"not installed: {self.install}"
        return f"{self.title} {version} has no module {self.modules[0]}: another version may have it ({self.install})"

    def _wrong_gpu(self, device: str) -> str | None:
        if not device.startswith("cuda"):
            return None
        if not torch.cuda.is_available():
            return "torch sees no CUDA device"
        if self.capabilities is None:
            return None
        lowest, highest = self.capabilities
        found = torch.cuda.get_device_capability()
        if lowest <= found <= highest:
            return None
        spell = "{0[0]}.{0[1]}".format
        return f"{self.title} needs compute capability {spell(lowest)} to {spell(highest)}, this GPU has {spell(found)}"


@dataclass(frozen=True)
class Loaded:
    """A module, or why there is none; `missing` if the library itself is simply not there."""

    module: ModuleType | None
    reason: str = ""
    missing: bool = False


@cache
def load(modules: tuple[str, ...]) -> Loaded:
    """Import the first of `modules` that is there. Never raises; tries once."""
    tried = []
    for name in modules:
        tried.append(_import(name))
        if tried[-1].module is not None:
            return tried[-1]
    return next((one for one in tried if not one.missing), tried[0])


def _import(name: str) -> Loaded:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Loaded(importlib.import_module(name))
    except ModuleNotFoundError as error:
        root = name.split(".", maxsplit=1)[0]
        missing = (error.name or "").split(".", maxsplit=1)[0] == root
        return Loaded(None, sentence(error), missing)
    except (Exception, SystemExit) as error:
        return Loaded(None, sentence(error))


def _is_there(module: str) -> bool:
    """Whether the package that has the module is there, without importing it."""
    try:
        return importlib.util.find_spec(module.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False


@cache  # asked for every call that might be refused, and looking it up takes a millisecond
def version_of(distribution: str) -> str | None:
    """The installed version of a distribution, None where it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def sentence(error: BaseException) -> str:
    """What went wrong at an import, for a person who can do something about it."""
    return known_cause(error) or f"import fails with {named(error)}"


def named(error: BaseException) -> str:
    """An error of no known cause: its kind, and what it says on one line."""
    return f"{type(error).__name__}: {' '.join(said(error).split())[:160]}"


def known_cause(error: BaseException) -> str | None:
    """What is wrong with an installation, and what mends it, where the error tells; None where it does not."""
    text = " ".join(said(error).split())
    if symbol := re.search(r"undefined symbol: (\S+)", text):
        name = symbol[1][:40]
        return f"built for another torch than {torch.__version__} (undefined symbol {name}): reinstall it for this one"
    if "no kernel image" in text:
        return "built for another GPU (no kernel image for this device): rebuild it for this one's compute capability"
    if library := re.search(r"(\S+\.so[.\d]*): cannot open shared object file", text):
        return (
            f"the shared library {library[1]} is not there: install it, or this package for the CUDA version you have"
        )
    if isinstance(error, ModuleNotFoundError):
        return f"it needs the module {error.name}, which is not installed"
    return None
