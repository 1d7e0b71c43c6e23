"""The index arithmetic shared by everything in `layout/`: ragged positions, slots, blocks for a length, visibility.

Knows neither scenarios nor placements; every function is a closed formula over whole arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pagedbench.layout.batch import Int32Array, IntArray
from pagedbench.scenario.model import UNLIMITED, Attention

NO_SLOT = -1


@dataclass(frozen=True)
class Reach:
    """How many keys a query token sees on either side of its own position; None is without limit."""

    left: int | None
    right: int | None


def reach(attention: Attention) -> Reach:
    """The reach that causality and `window_size` leave; causal means nothing to the right."""
    left, right = attention.window_size
    if attention.causal:
        right = 0
    return Reach(None if left == UNLIMITED else left, None if right == UNLIMITED else right)


def blocks_for(lengths: IntArray, block_size: int) -> IntArray:
    """Blocks that hold `lengths` tokens each."""
    return -(-lengths // block_size)


def ragged(lengths: IntArray) -> tuple[IntArray, IntArray]:
    """`(sequence, position)` of every token of a ragged batch, in order; both `(sum(lengths),)` int64."""
    sequence = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
    starts = np.cumsum(lengths) - lengths
    return sequence, np.arange(len(sequence), dtype=np.int64) - np.repeat(starts, lengths)


def slots_of(
    block_table: IntArray | Int32Array, sequence: IntArray, position: IntArray, block_size: int, num_blocks: int
) -> IntArray:
    """The slot of key `position` of `sequence`: `block_id * block_size + offset`, int64.

    `NO_SLOT` where the table entry names no block of the pool, which is legal for keys that nobody sees.
    """
    block = block_table[sequence, position // block_size].astype(np.int64)
    slot = block * block_size + position % block_size
    return np.where((block >= 0) & (block < num_blocks), slot, NO_SLOT)


def key_slots(block_table: IntArray | Int32Array, lengths: IntArray, block_size: int, num_blocks: int) -> IntArray:
    """The slots of all keys, `(sum(lengths),)` int64, sequence after sequence: `slots_of` for whole sequences.

    Goes block by block, so that the work per key is one addition: a batch has many more keys than blocks.
    """
    sequence, column = ragged(blocks_for(lengths, block_size))
    block = block_table[sequence, column].astype(np.int64)
    count = np.minimum(lengths[sequence] - column * block_size, block_size)
    starts = np.cumsum(count) - count
    slots = np.repeat(block * block_size - starts, count)
    slots += np.arange(len(slots), dtype=np.int64)
    lost = (block < 0) | (block >= num_blocks)
    if lost.any():
        slots[np.repeat(lost, count)] = NO_SLOT
    return slots


def visible_range(query_lens: IntArray, total_seqlens: IntArray, limits: Reach) -> tuple[IntArray, IntArray]:
    """Half-open range of keys that each query token sees, `(total_q,)` twice.

    Aligned bottom-right: query token i of q stands at p = k - q + i and sees [max(0, p - left), min(k, p + right + 1)).
    Equal ends, never crossed ones, where it sees nothing.
    """
    sequence, token = ragged(query_lens)
    keys = total_seqlens[sequence]
    place = keys - query_lens[sequence] + token
    start = np.zeros_like(place) if limits.left is None else np.maximum(place - limits.left, 0)
    stop = keys if limits.right is None else np.minimum(keys, place + limits.right + 1)
    return start, np.maximum(stop, start)


def needed_entries(
    query_lens: IntArray, total_seqlens: IntArray, limits: Reach, block_size: int, columns: int
) -> NDArray[np.bool_]:
    """`(batch, columns)`: entries whose block holds a key that some row sees, or a slot that is written.

    The ranges of one sequence's query tokens slide by one key, so together they are one range that ends with the last
    key; it starts where the first query token's does, and new tokens lie inside it.
    """
    first_place = total_seqlens - query_lens
    first_key = np.zeros_like(first_place) if limits.left is None else np.maximum(first_place - limits.left, 0)
    seen = (query_lens > 0) & (total_seqlens > 0)
    column = np.arange(columns, dtype=np.int64)
    in_range = (column >= (first_key // block_size)[:, None]) & (
        column < blocks_for(total_seqlens, block_size)[:, None]
    )
    return in_range & seen[:, None]
