"""The work that any kernel must do for a batch: the bytes it cannot avoid moving, and the FLOPs of what rows see.

The same for every path and backend, so that times of one scenario are comparable; what a path moves beside it (the
gather of varlen) is the business of its stages. `timing/` knows no attention: this is where the two meet.
"""

from __future__ import annotations

import numpy as np

from pagedbench.layout.batch import BatchLayout
from pagedbench.scenario.model import Attention
from pagedbench.tensors.identity import kept
from pagedbench.timing.roofline import Work

_ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1}


@kept(4)
def work_of(attention: Attention, layout: BatchLayout) -> Work:
    """Bytes: each visible slot of K and V read once (shared blocks count once), the new tokens written, Q, the output.

    FLOPs: `2 (head_dim + head_dim_v)` a visible (query, key) pair and query head. Dead rows do not count.
    """
    live = ~layout.dead[layout.row_sequence()]
    kv_slot = attention.num_kv_heads * (attention.head_dim + attention.head_dim_v) * _ITEM_BYTES[attention.kv_dtype]
    q_token = attention.num_heads * attention.head_dim * _ITEM_BYTES[attention.q_dtype]
    out_token = attention.num_heads * attention.head_dim_v * _ITEM_BYTES[attention.dtype]
    tokens = int(live.sum())
    written = tokens if layout.append else 0
    pairs = int((layout.visible_to - layout.visible_from)[live].sum())
    return Work(
        bytes=(visible_slots(layout) + written) * kv_slot + tokens * (q_token + out_token),
        flops=2 * (attention.head_dim + attention.head_dim_v) * pairs * attention.num_heads,
    )


def visible_slots(layout: BatchLayout) -> int:
    """How many different slots hold a key that some live row sees.

    Slots are marked, not sorted: a batch of the size of a GPU's memory has millions of them.
    """
    rows = layout.row_sequence()
    sees = ~layout.dead[rows] & (layout.visible_to > layout.visible_from)
    first_key = layout.cu_seqlens_k[rows[sees]].astype(np.int64)
    changes = np.zeros(layout.total_k + 1, dtype=np.int64)
    np.add.at(changes, first_key + layout.visible_from[sees], 1)
    np.add.at(changes, first_key + layout.visible_to[sees], -1)
    visible = np.cumsum(changes[:-1]) > 0
    slots = layout.read_slots[visible]
    return int(np.count_nonzero(np.bincount(slots[slots >= 0], minlength=1)))
