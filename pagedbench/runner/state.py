"""What a kernel may have changed for everything that runs after it in the same process.

Only what torch and the operating system keep for a whole process and what later numbers depend on; memory and threads
are not looked at.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch


def process_state() -> Mapping[str, object]:
    """The settings by name, to be compared with those of another time."""
    return {
        "torch's default dtype": torch.get_default_dtype(),
        "torch's default device": torch.get_default_device(),
        "torch's deterministic mode": torch.get_deterministic_debug_mode(),
        "torch's precision of fp32 products": torch.get_float32_matmul_precision(),
        "torch's gradient mode": torch.is_grad_enabled(),
        "torch's inference mode": torch.is_inference_mode_enabled(),
        "the working directory": _working_directory(),
    }


def changes(before: Mapping[str, object], who: str = "the kernel") -> list[str]:
    """A sentence for each setting that is no longer what it was, on `who` did it."""
    now = process_state()
    changed = [name for name, was in before.items() if now[name] != was]
    return [f"{who} leaves {name} changed, from {before[name]} to {now[name]}" for name in changed]


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "gone"
