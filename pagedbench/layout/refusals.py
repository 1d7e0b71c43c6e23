"""What of a block table cannot be: needed entries that name no block, and slots with two masters.

Only judges; never changes a table. Each refusal is a `Problem` at the entry that a user would have to change.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pagedbench.errors import Problem, ScenarioError
from pagedbench.layout.arithmetic import slots_of
from pagedbench.layout.batch import BatchLayout, IntArray
from pagedbench.layout.sizes import Lengths, Table
from pagedbench.scenario.model import Scenario

MOST_SHOWN = 8


def refuse_bad_entries(scenario: Scenario, table: Table, needed: NDArray[np.bool_], lengths: Lengths) -> None:
    """Raise ScenarioError when a needed entry (`(batch, columns)`) is −1 or no block of the pool."""
    bad = np.argwhere(needed & ((table.entries < 0) | (table.entries >= table.num_blocks)))
    if len(bad):
        raise ScenarioError([_bad_entry(scenario, table, lengths, int(b), int(c)) for b, c in bad[:MOST_SHOWN]])


def _bad_entry(scenario: Scenario, table: Table, lengths: Lengths, sequence: int, column: int) -> Problem:
    """Says what the block is needed for: the first key that is written in it, or else the first one that is in it."""
    start, cached = column * scenario.cache.block_size, int(lengths.cached[sequence])
    stop = min(start + scenario.cache.block_size, int(lengths.total[sequence]))
    use = f"writes key {max(start, cached)} in it" if stop > cached else f"has keys {start} to {stop - 1} in it"
    pool = f"a block from 0 to {table.num_blocks - 1}" if table.num_blocks else "a block, but the pool has none"
    return scenario.problem(
        f"cache.block_table[{sequence}][{column}]",
        int(table.entries[sequence, column]),
        f"{pool}: sequence {sequence} {use}",
    )


def refuse_shared_writes(scenario: Scenario, layout: BatchLayout) -> None:
    """Raise ScenarioError when a slot that a live sequence writes is written or seen from anywhere else too.

    The answer would depend on the order of the writes. Blocks named once cannot be concerned, so only the few that are
    named by two needed entries are looked at slot by slot.
    """
    if not layout.append:
        return
    sequence, column = np.nonzero(layout.needed_blocks & ~layout.dead[:, None])
    block = layout.block_table[sequence, column]
    ids, counts = np.unique(block, return_counts=True)
    shared = np.isin(block, ids[counts > 1])
    users, key = _keys_of_entries(layout, sequence[shared], column[shared])
    problems = _conflicts(scenario, layout, users, key)
    if problems:
        raise ScenarioError(problems)


def _keys_of_entries(layout: BatchLayout, sequence: IntArray, column: IntArray) -> tuple[IntArray, IntArray]:
    """`(sequence, key)` of every key in these entries that is seen or written."""
    size = layout.block_size
    start = column * size
    count = np.minimum(start + size, layout.total_seqlens[sequence]) - start
    which = np.repeat(np.arange(len(sequence)), count)
    key = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count) + start[which]
    first_row = layout.cu_seqlens_q[sequence[which]]
    used = key >= layout.visible_from[first_row]
    return sequence[which][used], key[used]


def _conflicts(scenario: Scenario, layout: BatchLayout, sequence: IntArray, key: IntArray) -> list[Problem]:
    slot = slots_of(layout.block_table, sequence, key, layout.block_size, layout.num_blocks)
    written = key >= layout.cache_seqlens[sequence]
    order = np.lexsort((~written, slot))
    slot, sequence, key, written = slot[order], sequence[order], key[order], written[order]
    # Sorted by slot with its writer first: a clash is a user of the slot that follows the writer.
    clash = np.flatnonzero((slot[1:] == slot[:-1]) & written[:-1])
    problems: list[Problem] = []
    seen: set[tuple[int, int]] = set()
    for index in clash:
        writer, other = int(sequence[index]), int(sequence[index + 1])
        at, key_there = int(slot[index]), int(key[index + 1])
        column = int(key[index]) // layout.block_size
        if (writer, column) in seen:
            continue
        seen.add((writer, column))
        verb = "writes" if written[index + 1] else "sees"
        problems.append(
            scenario.problem(
                f"cache.block_table[{writer}][{column}]",
                f"block {at // layout.block_size}",
                f"a block of its own: sequence {writer} writes slot {at},"
                f" which sequence {other} {verb} as key {key_there}",
            )
        )
    return problems[:MOST_SHOWN]


def refuse_long_capture(scenario: Scenario, layout: BatchLayout) -> None:
    """Raise ScenarioError where a graph would be captured at more keys than the table has columns for."""
    room = layout.max_blocks_per_seq * layout.block_size
    keys = np.array(scenario.graph_capture_lens or (), dtype=np.int64)
    new = layout.query_lens[: len(keys)] if layout.append else np.zeros(len(keys), dtype=np.int64)
    bad = np.flatnonzero((keys + new > room) & ~layout.dead[: len(keys)])
    columns = f"{layout.max_blocks_per_seq} columns of {layout.block_size}"
    problems = [
        scenario.problem(f"graph.capture_lens[{i}]", keys[i], f"at most {room - new[i]}: the table has {columns}")
        for i in bad[:MOST_SHOWN]
    ]
    if problems:
        raise ScenarioError(problems)
