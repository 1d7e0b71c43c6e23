"""The index arrays of a batch: what every later stage reads, made once from a scenario. Integers only, NumPy only.

`BatchLayout` is the result; `build_layout` (in `build.py`) makes it and refuses what cannot be.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
Int32Array = NDArray[np.int32]


SMALL = 1 << 14


@dataclass(frozen=True)
class BatchLayout:
    """Where every token of a batch lives.

    Lengths (`(batch,)`): `query_lens` new tokens; `cache_seqlens` keys before them; `total_seqlens` keys the step
    attends to (after the append, or the cached ones when nothing is appended).
    `cu_seqlens_q`, `cu_seqlens_k`: `(batch + 1,)` int32, cumulative `query_lens` and `total_seqlens`.
    `block_table`: `(batch, max_blocks_per_seq)` int32.
    `write_slots`: `(total_q,)` int64, the slot of each new token, in query order; empty when nothing is appended.
    `read_slots`: `(total_k,)` int64, the slot of each key, sequence after sequence, in logical order; −1 for a key that
    nobody sees and whose table entry names no block of the pool (only a table written by hand has such).
    `visible_from`, `visible_to`: `(total_q,)` int64, the half-open range of the sequence's keys each query token sees
    (equal when it sees none), from causality, alignment and window.
    `needed_blocks`: `(batch, max_blocks_per_seq)` bool, the table entries that must be right.
    `dead`: `(batch,)` bool, the padding rows of a padded CUDA graph: never judged, they must only be harmless.
    `trash_block`: the block id for writes that nobody reads, or None.
    """

    block_size: int
    num_blocks: int
    query_lens: IntArray
    cache_seqlens: Int32Array
    total_seqlens: Int32Array
    cu_seqlens_q: Int32Array
    cu_seqlens_k: Int32Array
    block_table: Int32Array
    write_slots: IntArray
    read_slots: IntArray
    visible_from: IntArray
    visible_to: IntArray
    needed_blocks: NDArray[np.bool_]
    dead: NDArray[np.bool_]
    append: bool
    trash_block: int | None = None

    @property
    def batch(self) -> int:
        """Sequences, padding rows included."""
        return len(self.query_lens)

    @property
    def total_q(self) -> int:
        """Query tokens of the batch."""
        return int(self.cu_seqlens_q[-1])

    @property
    def total_k(self) -> int:
        """Keys of the batch, shared blocks counted for each sequence that names them."""
        return int(self.cu_seqlens_k[-1])

    @property
    def max_seqlen_q(self) -> int:
        """Longest query, 0 for an empty batch."""
        return int(self.query_lens.max(initial=0))

    @property
    def max_seqlen_k(self) -> int:
        """Longest sequence of keys, 0 for an empty batch."""
        return int(self.total_seqlens.max(initial=0))

    @property
    def max_blocks_per_seq(self) -> int:
        """Columns of the block table."""
        return int(self.block_table.shape[1])

    @property
    def uniform_query_len(self) -> int | None:
        """The number of query tokens if all sequences have the same, else None (0 sequences: None)."""
        if self.batch == 0 or (self.query_lens != self.query_lens[0]).any():
            return None
        return int(self.query_lens[0])

    @property
    def is_small(self) -> bool:
        """Whether what is made from it takes little memory, as for most scenarios that are written to be checked."""
        return max(self.total_q, self.total_k, self.block_table.size, self.num_blocks * self.block_size) <= SMALL

    def row_sequence(self) -> IntArray:
        """`(total_q,)` the sequence of each query token."""
        return np.repeat(np.arange(self.batch, dtype=np.int64), self.query_lens)
