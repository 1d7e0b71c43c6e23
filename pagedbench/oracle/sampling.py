"""Which rows the oracle answers for when all would take too long: the ones where kernels break, then seeded luck.

Knows only the layout; the budget is a fraction of the whole work.
"""

from __future__ import annotations

import numpy as np

from pagedbench.layout.batch import BatchLayout, IntArray

_TILE = 128
"""Kernels work in tiles of queries, mostly of 64 or 128 tokens: their edges are worth a look."""


def sample_rows(layout: BatchLayout, fraction: float, seed: int) -> IntArray:
    """Ascending query tokens: first and last of every sequence whatever they cost, then edges and random ones.

    Of edges (block boundaries of the token's position, changes in what a row may see, query tiles) and of random rows
    as many as keep the visible pairs near `fraction` of all; edges get half of it.
    """
    some = layout.query_lens > 0
    first = layout.cu_seqlens_q[:-1][some].astype(np.int64)
    last = layout.cu_seqlens_q[1:][some].astype(np.int64) - 1
    cost = (layout.visible_to - layout.visible_from).astype(np.float64)
    always = np.unique(np.concatenate([first, last]))
    budget = max(fraction * cost.sum() - cost[always].sum(), 0.0)
    random = np.random.default_rng(seed)
    edges = _take(random.permutation(_edges(layout)), cost, budget / 2)
    rest = _take(random.permutation(layout.total_q), cost, budget - cost[edges].sum())
    return np.unique(np.concatenate([always, edges, rest]))


def _edges(layout: BatchLayout) -> IntArray:
    sequence = layout.row_sequence()
    token = np.arange(layout.total_q, dtype=np.int64) - layout.cu_seqlens_q[sequence]
    position = layout.total_seqlens[sequence] - layout.query_lens[sequence] + token
    at_block = np.isin(position % layout.block_size, (0, layout.block_size - 1))
    at_tile = np.isin(token % _TILE, (0, _TILE - 1))
    # Where a window begins to cut, and where a row first sees a key.
    starts_cutting = np.diff(layout.visible_from > 0, append=False)
    starts_seeing = np.diff(layout.visible_to > layout.visible_from, append=False)
    return np.flatnonzero(at_block | at_tile | starts_cutting | starts_seeing)


def _take(rows: IntArray, cost: np.ndarray, budget: float) -> IntArray:
    return rows[np.cumsum(cost[rows]) <= budget]
