"""What each slot of the pool is to a batch: seen, hidden, new, tail, trash, or nobody's.

Fills and checks go by regions, so that a leak can be named after what leaked.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from pagedbench.layout.batch import BatchLayout, Int32Array, IntArray


class Region(IntEnum):
    """What a slot is. Where several hold (a shared or reused block), the first of this order wins."""

    TRASH = 0
    """In the block for writes that nobody reads."""
    NEW = 1
    """Written by the append."""
    VISIBLE = 2
    """Holds a key that some live row sees."""
    HIDDEN = 3
    """Holds a key that no row sees: below every window, or of a sequence without query tokens."""
    TAIL = 4
    """The rest of a partly used block."""
    UNNEEDED = 5
    """In a block that only entries without a key name: padding, a decoy."""
    FREE = 6
    """In a block that nobody names."""


def slot_regions(layout: BatchLayout) -> NDArray[np.uint8]:
    """`(num_blocks * block_size,)` uint8: the `Region` of each slot, by what live sequences do with it."""
    size = layout.block_size
    regions = np.full((layout.num_blocks, size), Region.FREE, dtype=np.uint8)
    holds_keys, padding = _named_blocks(layout)
    # From the weakest claim to the strongest: later ones overwrite.
    regions[padding] = Region.UNNEEDED
    regions[holds_keys] = Region.TAIL
    slots = regions.reshape(-1)
    hidden, visible = _key_slots(layout)
    slots[hidden] = Region.HIDDEN
    slots[visible] = Region.VISIBLE
    if layout.append:
        writes = layout.write_slots
        slots[writes[~layout.dead[layout.row_sequence()]] if layout.dead.any() else writes] = Region.NEW
    if layout.trash_block is not None:
        regions[layout.trash_block] = Region.TRASH
    return slots


def _named_blocks(layout: BatchLayout) -> tuple[Int32Array, Int32Array]:
    """Blocks of the pool named by entries that hold a key, and by entries that hold none."""
    table = layout.block_table
    in_pool = (table >= 0) & (table < layout.num_blocks)
    columns = np.arange(layout.max_blocks_per_seq, dtype=np.int64)
    has_key = columns * layout.block_size < layout.total_seqlens[:, None]
    return table[in_pool & has_key], table[in_pool & ~has_key]


def _key_slots(layout: BatchLayout) -> tuple[IntArray, IntArray]:
    """Slots of the keys of live sequences: those that no row sees, and those that some row sees."""
    slot, starts = layout.read_slots, layout.cu_seqlens_k[:-1]
    seen = np.arange(layout.total_k) >= np.repeat(starts + first_visible_key(layout), layout.total_seqlens)
    unseen = ~seen
    if layout.dead.any():
        live = np.repeat(~layout.dead, layout.total_seqlens)
        seen, unseen = seen & live, unseen & live
    return slot[unseen & (slot >= 0)], slot[seen]


def first_visible_key(layout: BatchLayout) -> IntArray:
    """`(batch,)` the first key of each sequence that any of its query tokens sees; its length where none is seen.

    What a sequence sees is one range that ends with its last key: its last query token stands there.
    """
    first = layout.total_seqlens.astype(np.int64)
    seeing = np.flatnonzero((layout.query_lens > 0) & (layout.total_seqlens > 0))
    first[seeing] = layout.visible_from[layout.cu_seqlens_q[seeing]]
    return first
