"""The same batch, laid out otherwise: what must not change an answer.

Each function returns a new `BatchLayout` with the same lengths and the same visible keys; none makes numbers.
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from pagedbench.layout.arithmetic import key_slots, ragged, slots_of
from pagedbench.layout.batch import BatchLayout, Int32Array
from pagedbench.layout.sizes import padding_id
from pagedbench.scenario.model import Padding


def moved(layout: BatchLayout, seed: int) -> BatchLayout:
    """Every block of the pool at another place (if it has two), the table following; shared blocks stay shared."""
    order = np.random.default_rng([seed, 0x304ED]).permutation(layout.num_blocks)
    # One cycle through all blocks: no block stays where it was.
    new_id = np.empty(layout.num_blocks, dtype=np.int32)
    new_id[order] = np.roll(order, 1)
    table = layout.block_table.copy()
    in_pool = (table >= 0) & (table < layout.num_blocks)
    table[in_pool] = new_id[table[in_pool]]
    trash = None if layout.trash_block is None else int(new_id[layout.trash_block])
    return _with_table(replace(layout, trash_block=trash), table)


def with_padding(layout: BatchLayout, kind: Padding) -> BatchLayout:
    """Another value in every entry that holds no key. A decoy is a block of its own, added to the end of the pool."""
    decoy = layout.num_blocks if kind == "decoy" else None
    num_blocks = layout.num_blocks + (kind == "decoy")
    columns = np.arange(layout.max_blocks_per_seq, dtype=np.int64)
    unused = columns * layout.block_size >= layout.total_seqlens[:, None].astype(np.int64)
    table = np.where(unused, np.int32(padding_id(kind, num_blocks, decoy)), layout.block_table)
    if decoy is None:  # no key is in another slot for it
        return replace(layout, block_table=table)
    return _with_table(replace(layout, num_blocks=num_blocks), table)


def widened(layout: BatchLayout, columns: int, padding: int = -1) -> BatchLayout:
    """A table of `columns` columns in all, the additional ones holding `padding`; ValueError if it were narrower."""
    extra = columns - layout.max_blocks_per_seq
    if extra < 0:
        raise ValueError(f"the table has {layout.max_blocks_per_seq} columns already")
    table = np.pad(layout.block_table, ((0, 0), (0, extra)), constant_values=padding)
    needed = np.pad(layout.needed_blocks, ((0, 0), (0, extra)), constant_values=False)
    return replace(layout, block_table=table, needed_blocks=needed)


def same_slots(layout: BatchLayout, other: BatchLayout) -> bool:
    """Whether two variants differ in their tables alone: each slot of the pool holds the same key, or none, in both.

    By identity, as `with_padding` and `widened` leave arrays: no answer for layouts that were made apart.
    """
    return all(getattr(layout, name) is getattr(other, name) for name in _FIELDS - {"block_table", "needed_blocks"})


_FIELDS = frozenset(field.name for field in fields(BatchLayout))


def _with_table(layout: BatchLayout, table: Int32Array) -> BatchLayout:
    """The layout with another table of the same width, its slots following."""
    pool = (layout.block_size, layout.num_blocks)
    sequence, token = ragged(layout.query_lens)
    new_key = layout.cache_seqlens[sequence] + token
    writes = slots_of(table, sequence, new_key, *pool) if layout.append else layout.write_slots
    return replace(
        layout,
        block_table=table,
        write_slots=writes,
        read_slots=key_slots(table, layout.total_seqlens.astype(np.int64), *pool),
    )
