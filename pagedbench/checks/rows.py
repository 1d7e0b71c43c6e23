"""Where a row is: names the sequence, query token, head and blocks of a (query token, head) for findings.

Shared by all checks that judge rows; judges nothing itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from pagedbench.layout.batch import BatchLayout
from pagedbench.tensors.transfer import to_device


@dataclass(frozen=True)
class Place:
    """A query token's place: `key` is its own position among its sequence's keys, negative if before the first.

    `logical_block` and `physical_block` are those of that position, None where it has no block.
    """

    sequence: int
    query_token: int
    key: int
    logical_block: int | None
    physical_block: int | None

    def __str__(self) -> str:
        """The block is said to be the newest key's: it tells rows apart, and is not where the fault need be."""
        block = "no block" if self.logical_block is None else f"logical block {self.logical_block}"
        physical = "" if self.physical_block is None else f", physical block {self.physical_block}"
        return f"sequence {self.sequence}, query token {self.query_token} (its newest key in {block}{physical})"


def place_of(layout: BatchLayout, row: int) -> Place:
    """The place of the query token with index `row` in the batch."""
    sequence = int(np.searchsorted(layout.cu_seqlens_q, row, side="right")) - 1
    token = row - int(layout.cu_seqlens_q[sequence])
    key = int(layout.total_seqlens[sequence]) - int(layout.query_lens[sequence]) + token
    column = key // layout.block_size
    if key < 0 or column >= layout.max_blocks_per_seq:
        return Place(sequence, token, key, None, None)
    block = int(layout.block_table[sequence, column])
    return Place(sequence, token, key, column, block if block >= 0 else None)


def live_rows(layout: BatchLayout, rows: torch.Tensor) -> torch.Tensor | None:
    """Which of the query tokens `rows` are judged: `(len(rows),)` bool on their device; None for all of them."""
    if not layout.dead.any():
        return None
    return to_device(~layout.dead[layout.row_sequence()], rows.device)[rows]
