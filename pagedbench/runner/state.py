"""What a kernel may have changed for everything that runs after it in the same process.

Only what torch and the operating system keep for a whole process and what later numbers depend on; memory and threads
are not looked at.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch


def process_state() -> Mapping[str, object]:
    """The settings by name, to be compared with those of another time."""
    return {name: read() for name, (read, _) in _SETTINGS.items()}


def changes(before: Mapping[str, object], who: str = "the kernel") -> list[str]:
    """A sentence for each setting that is no longer what it was, on `who` did it."""
    now = process_state()
    changed = [name for name, was in before.items() if now[name] != was]
    return [f"{who} leaves {name} changed, from {before[name]} to {now[name]}" for name in changed]


def restore(before: Mapping[str, object]) -> None:
    """Make every setting what it was, for a process that goes on after the kernel."""
    for name, (read, write) in _SETTINGS.items():
        if read() != before[name]:
            write(before[name])


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "gone"


def _change_directory(folder: str) -> None:
    with contextlib.suppress(OSError):  # it is gone
        os.chdir(folder)


_entered: list[torch.inference_mode] = []
"""Kept, since a mode that was entered ends with its object."""


def _set_inference_mode(mode: bool) -> None:
    _entered.append(torch.inference_mode(mode))
    _entered[-1].__enter__()


def _set_default_device(device: torch.device) -> None:
    # None is the CPU as well, and costs no function mode around every call.
    torch.set_default_device(None if device.type == "cpu" else device)


_SETTINGS: Mapping[str, tuple[Callable[[], object], Callable[[Any], object]]] = {
    "torch's default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "torch's default device": (torch.get_default_device, _set_default_device),
    "torch's deterministic mode": (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    "torch's precision of fp32 products": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "torch's inference mode": (torch.is_inference_mode_enabled, _set_inference_mode),  # sets the next one, too
    "torch's gradient mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "the working directory": (_working_directory, _change_directory),
}
"""How each is read, and set."""
