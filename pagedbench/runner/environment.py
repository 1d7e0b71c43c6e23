"""The circumstances of a measurement: what must be equal for two records to be comparable, and what a reader asks.

Nothing that names a person or a machine: no host name, no user name, no path. The worker collects it, since the parent
never touches CUDA; the state of the git checkout is the parent's to add (`git_state`).
"""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from pagedbench import __version__
from pagedbench.errors import UsageError, nearest

DEVICES = ("auto", "cpu", "cuda")
# Distributions whose version explains a result, as their packages are called.
LIBRARIES = (
    "torch",
    "triton",
    "numpy",
    "flash-attn",
    "tokenspeed-fa3",
    "fa3-fwd",
    "flash-attn-4",
    "flashinfer-python",
    "vllm",
)


def require_device(wanted: str) -> None:
    """Raises `UsageError` for what is no `--device`, with the one that was meant."""
    if wanted in DEVICES:
        return
    # What others call it, and one of several: cuda:0.
    gpu = wanted.lower().partition(":")[0] in ("gpu", "nvidia", "cuda")
    hint = "did you mean cuda?" if gpu else nearest(wanted, DEVICES) or f"there are {', '.join(DEVICES)}"
    raise UsageError(f"there is no device '{wanted}'", hint)


def choose_device(wanted: str) -> str:
    """`cpu` or `cuda` for `--device auto|cpu|cuda`. Raises `UsageError` for CUDA where there is none.

    Makes torch ready to be judged by: in one process of some twenty, on a busy machine with torch 2.13, the first
    `logsumexp` of an fp32 tensor on several threads is off by 4e-5 in some rows, and no later one is. A call on two
    numbers, which takes one thread, is that first one here, and no kernel is accused of it.
    """
    require_device(wanted)
    import torch

    torch.logsumexp(torch.zeros(2), 0)
    if wanted == "cpu":
        return "cpu"
    if torch.cuda.is_available():
        return "cuda"
    if wanted == "auto":
        return "cpu"
    raise UsageError("there is no CUDA device here", "leave --device out to use what is there, or say --device cpu")


def collect(device: str) -> dict[str, Any]:
    """Versions and hardware, for records of this worker."""
    import torch

    facts: dict[str, Any] = {
        "pagedbench": __version__,
        "python": platform.python_version(),
        "os": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_name(),
        "cpu_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cpu_threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "libraries": _library_versions(),
    }
    return {**facts, **_gpu_facts()} if device == "cuda" else facts


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _library_versions() -> dict[str, str]:
    found = {name: library_version(name) for name in LIBRARIES}
    return {name: version for name, version in found.items() if version is not None}


def library_version(distribution: str) -> str | None:
    """The installed version of a distribution, without importing it."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _gpu_facts() -> dict[str, Any]:
    import torch

    properties = torch.cuda.get_device_properties(0)
    facts = {
        "gpu": properties.name,
        "gpu_memory": properties.total_memory,
        "gpu_multiprocessors": properties.multi_processor_count,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "cuda": torch.version.cuda,
    }
    return {**facts, **_driver_facts()}


_QUERY = {
    "driver": "driver_version",
    "clock_sm_mhz": "clocks.sm",
    "clock_memory_mhz": "clocks.mem",
    "clock_sm_max_mhz": "clocks.max.sm",
    "power_limit_w": "power.limit",
    "persistence": "persistence_mode",
}


def _driver_facts() -> dict[str, str]:
    """Driver and clocks as `nvidia-smi` tells them; empty where it cannot."""
    command = ["nvidia-smi", "--id=0", "--format=csv,noheader,nounits", f"--query-gpu={','.join(_QUERY.values())}"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(_QUERY, (value.strip() for value in answer.strip().split(",")), strict=False))


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit of the checkout that holds `folder`, and whether it has changes; None where there is none."""
    try:
        answer = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--abbrev=12", "--dirty", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    commit, _, dirty = answer.partition("-")
    return {"commit": commit, "dirty": bool(dirty)}
