"""The batch of a cell with other batch mates: some of its sequences, in another order, or one of them several times.

Layouts and inputs only; what may differ then is judged in `invariance.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch

from pagedbench.layout.arithmetic import key_slots, ragged, slots_of
from pagedbench.layout.batch import BatchLayout, Int32Array, IntArray
from pagedbench.tensors.bits import bits
from pagedbench.tensors.inputs import LogicalInputs
from pagedbench.tensors.transfer import all_to_device


@dataclasses.dataclass(frozen=True)
class Rearranged:
    """A batch of chosen sequences. `tokens` `(total_q,)`: for each of its query tokens the one it was; so `keys`."""

    layout: BatchLayout
    inputs: LogicalInputs
    tokens: IntArray
    keys: IntArray


def chosen(layout: BatchLayout, inputs: LogicalInputs, order: Sequence[int]) -> Rearranged:
    """The sequences `order` of a batch, each at most once, in the same blocks of the same pool."""
    pick = np.asarray(order, dtype=np.int64)
    return _rearranged(layout, inputs, pick, layout.block_table[pick], layout.num_blocks)


def copies(layout: BatchLayout, inputs: LogicalInputs, sequence: int, count: int) -> Rearranged:
    """One sequence `count` times, each copy in blocks of its own at the end of the pool."""
    row = layout.block_table[sequence]
    named = np.flatnonzero((row >= 0) & (row < layout.num_blocks))
    table = np.tile(row, (count, 1))
    fresh = np.arange(count * len(named), dtype=np.int32).reshape(count, len(named))
    table[:, named] = layout.num_blocks + fresh
    pick = np.full(count, sequence, dtype=np.int64)
    return _rearranged(layout, inputs, pick, table, layout.num_blocks + fresh.size)


def _rearranged(
    layout: BatchLayout, inputs: LogicalInputs, pick: IntArray, table: Int32Array, num_blocks: int
) -> Rearranged:
    query, total = layout.query_lens[pick], layout.total_seqlens[pick].astype(np.int64)
    tokens = _members(layout.cu_seqlens_q, pick, query)
    sequence, token = ragged(query)
    position = layout.cache_seqlens[pick][sequence] + token
    pool = (layout.block_size, num_blocks)
    rearranged = dataclasses.replace(
        layout,
        num_blocks=num_blocks,
        query_lens=query,
        cache_seqlens=layout.cache_seqlens[pick],
        total_seqlens=layout.total_seqlens[pick],
        cu_seqlens_q=_cumulative(query),
        cu_seqlens_k=_cumulative(total),
        block_table=table,
        write_slots=slots_of(table, sequence, position, *pool) if layout.append else layout.write_slots,
        read_slots=key_slots(table, total, *pool),
        visible_from=layout.visible_from[tokens],
        visible_to=layout.visible_to[tokens],
        needed_blocks=layout.needed_blocks[pick],
        dead=layout.dead[pick],
    )
    keys = _members(layout.cu_seqlens_k, pick, total)
    return Rearranged(rearranged, _taken(inputs, tokens, keys), tokens, keys)


def _members(cumulative: Int32Array, pick: IntArray, lengths: IntArray) -> IntArray:
    """The indices of all tokens of the picked sequences, in the order of the pick."""
    sequence, position = ragged(lengths)
    return cumulative[:-1][pick].astype(np.int64)[sequence] + position


def _cumulative(lengths: IntArray) -> Int32Array:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def _taken(inputs: LogicalInputs, tokens: IntArray, keys: IntArray) -> LogicalInputs:
    of_queries, of_keys = all_to_device([tokens, keys], inputs.q.device)

    def rows(values: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return bits(values).index_select(0, index).view(values.dtype)

    return LogicalInputs(rows(inputs.q, of_queries), rows(inputs.k, of_keys), rows(inputs.v, of_keys))
