"""The work of the oracle cut into pieces that fit: groups of sequences of like lengths, tiles of queries and keys.

Integers only. The groups matter for batches of many short sequences, where one at a time would cost a launch each; the
tiles for long ones, whose scores would never fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pagedbench.layout.batch import BatchLayout, IntArray

_MOST_PADDING = 2.0


@dataclass(frozen=True)
class Group:
    """Sequences worked on together, padded to the longest of them.

    `rows` `(n, longest)` are indices into the rows asked for, −1 where a sequence has fewer; `first_key` `(n,)` the
    index of each sequence's first key in the logical keys, `keys` the most keys that any of them has.
    """

    sequences: IntArray
    rows: IntArray
    first_key: IntArray
    keys: int


@dataclass(frozen=True)
class Span:
    """A half-open range of positions."""

    start: int
    stop: int


def groups(layout: BatchLayout, tokens: IntArray, most_scores: int) -> Iterator[Group]:
    """Groups for the query tokens `tokens` (ascending), at most `most_scores` (query token, key) pairs where many.

    Sequences without a query token among them are in no group; nor are rows of sequences without keys left out.
    """
    sequence = layout.row_sequence()[tokens]
    owners, start, count = np.unique(sequence, return_index=True, return_counts=True)
    keys = layout.total_seqlens[owners].astype(np.int64)
    order = np.lexsort((count, keys))
    for members in _like(count[order], keys[order], most_scores):
        chosen = order[members]
        longest = int(count[chosen].max())
        place = np.arange(longest, dtype=np.int64)
        rows = np.where(place < count[chosen][:, None], start[chosen][:, None] + place, -1)
        first_key = layout.cu_seqlens_k[owners[chosen]].astype(np.int64)
        yield Group(owners[chosen], rows, first_key, int(keys[chosen].max()))


def _like(queries: IntArray, keys: IntArray, most_scores: int) -> Iterator[slice]:
    """Runs of sequences (sorted by keys) whose padded work is little, or not much more than their own."""
    start = 0
    while start < len(keys):
        own, longest, stop = 0, 0, start
        while stop < len(keys):
            wider = max(longest, int(queries[stop]))
            padded = (stop + 1 - start) * wider * max(int(keys[stop]), 1)
            more = own + int(queries[stop]) * max(int(keys[stop]), 1)
            few = padded <= most_scores // 64
            if stop > start and not (few or (padded <= most_scores and padded <= _MOST_PADDING * more)):
                break
            own, longest, stop = more, wider, stop + 1
        yield slice(start, stop)
        start = stop


def spans(length: int, step: int) -> Iterator[Span]:
    """`length` positions, at most `step` at a time."""
    for start in range(0, length, step):
        yield Span(start, min(start + step, length))


def union(starts: NDArray[np.int64], stops: NDArray[np.int64]) -> Span:
    """The range that covers all non-empty ranges; empty if there are none."""
    some = stops > starts
    if not some.any():
        return Span(0, 0)
    return Span(int(starts[some].min()), int(stops[some].max()))
