"""The batch that wrong arrays describe: what an oracle must answer when it takes an `override` at its word.

Only arrays that say where sequences begin and end, and the block table, change what a batch is; maxima do not.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from pagedbench.errors import PagedbenchError
from pagedbench.layout.arithmetic import blocks_for, key_slots, needed_entries, ragged, reach, slots_of, visible_range
from pagedbench.layout.batch import BatchLayout, IntArray
from pagedbench.scenario.model import Scenario


class NoBatch(PagedbenchError):
    """Arrays that describe no batch: lengths that run backwards, or are not one a sequence."""


def layout_as_given(scenario: Scenario, layout: BatchLayout, *, paged: bool) -> BatchLayout:
    """The layout with the override's arrays in place of its own, and everything that follows from them.

    `paged`: keys and new tokens are where the given block table and lengths have them; else (the varlen path) where the
    slot arrays say. Raises NoBatch.
    """
    given = scenario.override.values
    query = _lengths(given.get("cu_seqlens_q"), None, layout.query_lens)
    total = _lengths(given.get("cu_seqlens_k"), given.get("total_seqlens"), layout.total_seqlens.astype(np.int64))
    if "cache_seqlens" in given:
        total = _array(given["cache_seqlens"]) + (query if layout.append else 0)
    table = _array(given["block_table"]).astype(np.int32) if "block_table" in given else layout.block_table
    cached = _array(given["cache_seqlens"]) if "cache_seqlens" in given else layout.cache_seqlens.astype(np.int64)
    if any(len(lengths) != layout.batch or (lengths < 0).any() for lengths in (query, total, cached)):
        raise NoBatch(f"the overridden lengths describe no batch of {layout.batch} sequences")
    if paged and (blocks_for(total, layout.block_size) > table.shape[1]).any():
        raise NoBatch(f"the overridden lengths need more blocks than the table has columns ({table.shape[1]:,})")
    limits, pool = reach(scenario.attention), (layout.block_size, layout.num_blocks)
    writes, reads = (
        _array(given.get("write_slots", layout.write_slots)),
        _array(given.get("read_slots", layout.read_slots)),
    )
    if paged:
        sequence, token = ragged(query)
        writes = slots_of(table, sequence, cached[sequence] + token, *pool) if layout.append else writes
        reads = key_slots(table, total, *pool)
    visible_from, visible_to = visible_range(query, total, limits)
    return dataclasses.replace(
        layout,
        query_lens=query,
        cache_seqlens=cached.astype(np.int32),
        total_seqlens=total.astype(np.int32),
        cu_seqlens_q=_cumulative(query),
        cu_seqlens_k=_cumulative(total),
        block_table=table,
        write_slots=writes,
        read_slots=reads,
        visible_from=visible_from,
        visible_to=visible_to,
        needed_blocks=needed_entries(query, total, limits, layout.block_size, table.shape[1]),
    )


def _lengths(cumulative: object | None, lengths: object | None, own: IntArray) -> IntArray:
    if cumulative is not None:
        return np.diff(_array(cumulative))
    return own if lengths is None else _array(lengths)


def _array(value: object) -> IntArray:
    return np.asarray(value, dtype=np.int64)


def _cumulative(lengths: IntArray) -> NDArray[np.int32]:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
