"""What any kernel must at least do for a batch: bytes that move, floating-point operations. Integers only.

The minimum is the same for every path (the meaning is fixed in the words of the project): each visible key and value
once, however many rows and sequences see it; each query; each output; each new token's write. What a path moves beyond
that, such as a gather, is `stage_bytes`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pagedbench.layout.batch import BatchLayout, IntArray
from pagedbench.scenario.model import Attention

_ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float8_e4m3fn": 1}


@dataclass(frozen=True)
class Traffic:
    """Bytes by tensor, `visible_slots` the slots behind `k` and `v`, `pairs` the visible (query token, key) pairs."""

    q: int
    k: int
    v: int
    out: int
    new: int
    flops: int
    visible_slots: int
    pairs: int

    @property
    def bytes(self) -> int:
        """All bytes that must move."""
        return self.q + self.k + self.v + self.out + self.new


def traffic(layout: BatchLayout, attention: Attention) -> Traffic:
    """The least bytes and FLOPs of one step; padding rows count as nothing.

    FLOPs are 2 (head_dim + head_dim_v) a visible (query token, key) pair and query head: a multiplication and an
    addition for each element of the two products.
    """
    live = ~layout.dead[layout.row_sequence()]
    tokens = int(live.sum())
    written = int(live[: len(layout.write_slots)].sum()) if layout.append else 0
    slots = _count_slots(layout, layout.read_slots[_seen(layout, live)])
    pairs = int((layout.visible_to - layout.visible_from)[live].sum())
    per_key, per_value = _token_bytes(attention)
    return Traffic(
        q=tokens * attention.num_heads * attention.head_dim * _ITEM_BYTES[attention.q_dtype],
        k=slots * per_key,
        v=slots * per_value,
        out=tokens * attention.num_heads * attention.head_dim_v * _ITEM_BYTES[attention.dtype],
        new=written * (per_key + per_value),
        flops=2 * (attention.head_dim + attention.head_dim_v) * attention.num_heads * pairs,
        visible_slots=slots,
        pairs=pairs,
    )


def stage_bytes(layout: BatchLayout, attention: Attention, stage: str) -> int:
    """What a stage of the tool's own moves, read and written: `write` the new tokens, `gather` every key."""
    per_token = sum(_token_bytes(attention))
    tokens = {"write": len(layout.write_slots), "gather": layout.total_k}.get(stage, 0)
    return 2 * tokens * per_token


def _count_slots(layout: BatchLayout, slots: IntArray) -> int:
    """How many different slots there are; a map of the pool is quicker than a sort."""
    used = np.zeros(layout.num_blocks * layout.block_size, dtype=np.bool_)
    used[slots] = True
    return int(used.sum())


def _token_bytes(attention: Attention) -> tuple[int, int]:
    """Bytes of one token's K and of its V."""
    item = _ITEM_BYTES[attention.kv_dtype] * attention.num_kv_heads
    return attention.head_dim * item, attention.head_dim_v * item


def _seen(layout: BatchLayout, live: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """`(total_k,)` whether any live row sees the key: the union of the rows' ranges, by counting their ends."""
    starts = layout.cu_seqlens_k[:-1].astype(np.int64)[layout.row_sequence()]
    sees = live & (layout.visible_to > layout.visible_from)
    edges = np.zeros(layout.total_k + 1, dtype=np.int64)
    np.add.at(edges, (starts + layout.visible_from)[sees], 1)
    np.add.at(edges, (starts + layout.visible_to)[sees], -1)
    seen: NDArray[np.bool_] = np.cumsum(edges)[:-1] > 0
    return seen
