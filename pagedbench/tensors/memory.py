"""How much memory a cell needs, before any of it is allocated, and how much a device has left.

Whoever runs cells compares the two and skips with both figures; nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from pagedbench.layout.batch import BatchLayout
from pagedbench.scenario.model import Scenario
from pagedbench.tensors.bits import torch_dtype
from pagedbench.tensors.placed import arena_plan
from pagedbench.words import AttnPath

ORACLE_WORKSPACE = {"cpu": 512 << 20, "cuda": 4 << 30}
"""The most that the oracle takes beside its inputs, whatever the lengths."""

ORACLE_LEAST = 256 << 20
"""What it takes of the smallest batch: small allocations, rounded up."""

_PADDED = 2  # times its size that a sequence may be padded to beside longer ones
_KEY_TENSORS = 2  # as gathered, and in fp64
_SCORE_TENSORS = 4  # scores, weights and what masks and softcap make of them

BACKEND_WORKSPACE = {"cpu": 256 << 20, "cuda": 1 << 30}
"""An allowance for what a library allocates beside its output."""

_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_CGROUP_USAGE = (Path("/sys/fs/cgroup/memory.current"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"))
_UNLIMITED = 1 << 62
_MARGIN = 0.05


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes by what they are for."""

    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self.parts.values())


def estimate_bytes(scenario: Scenario, layout: BatchLayout, path: AttnPath, device: str = "cpu") -> MemoryNeed:
    """What the checks of a cell hold at one time, in bytes, from above; `device` is `"cpu"` or `"cuda"`."""
    attention = scenario.attention
    kv_row = attention.num_kv_heads * (attention.head_dim + attention.head_dim_v)
    kv_bytes = layout.total_k * kv_row * torch_dtype(attention.kv_dtype).itemsize
    q_bytes = layout.total_q * attention.num_heads * attention.head_dim * torch_dtype(attention.q_dtype).itemsize
    out_elements = layout.total_q * attention.num_heads * attention.head_dim_v
    call = arena_plan(scenario, layout).total
    kind = torch.device(device).type
    return MemoryNeed(
        {
            "call": call,
            "expected after the call": call,
            "logical inputs": q_bytes + kv_bytes,
            "gathered keys": kv_bytes if path is AttnPath.VARLEN else 0,
            "outputs": 8 * out_elements * torch_dtype(attention.dtype).itemsize,
            "reference": 2 * out_elements * 8,
            "oracle workspace": _oracle_workspace(scenario, layout, kv_row, kind),
            "backend workspace": BACKEND_WORKSPACE.get(kind, BACKEND_WORKSPACE["cpu"]),
        }
    )


def _oracle_workspace(scenario: Scenario, layout: BatchLayout, kv_row: int, kind: str) -> int:
    """K, V and scores in fp64, of sequences padded to twice their size; bounded for large batches."""
    pairs = int((layout.query_lens.astype(np.int64) * layout.total_seqlens).sum())
    keys = _PADDED * _KEY_TENSORS * 8 * layout.total_k * kv_row
    scores = _PADDED**2 * _SCORE_TENSORS * 8 * pairs * scenario.attention.num_heads
    most = ORACLE_WORKSPACE.get(kind, ORACLE_WORKSPACE["cpu"])
    return min(most, ORACLE_LEAST + keys + scores)


def available_bytes(device: torch.device | str) -> int:
    """Bytes that can still be allocated on a device, less a margin; on a GPU what torch holds in reserve counts."""
    where = torch.device(device)
    if where.type == "cuda":
        free, _ = torch.cuda.mem_get_info(where)
        # Asked once: torch gathers all statistics for each figure.
        stats = torch.cuda.memory_stats_as_nested_dict(where)
        reserved, allocated = (stats[f"{kind}_bytes"]["all"]["current"] for kind in ("reserved", "allocated"))
        reserve = reserved - allocated
        return int((free + reserve) * (1 - _MARGIN))
    import psutil

    free = min(psutil.virtual_memory().available, _cgroup_free())
    return int(free * (1 - _MARGIN))


def _cgroup_free() -> int:
    """What the container's limit leaves; unlimited where there is none."""
    return min(
        (_left(limit, usage) for limit, usage in zip(_CGROUP_LIMITS, _CGROUP_USAGE, strict=True)), default=_UNLIMITED
    )


def _left(limit: Path, usage: Path) -> int:
    try:
        return max(int(limit.read_text()) - int(usage.read_text()), 0)
    except (OSError, ValueError):
        return _UNLIMITED
