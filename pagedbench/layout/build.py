"""From a scenario to the index arrays of its batch: the one entrance to `layout/`.

Makes no numbers and no drawing. What cannot be is refused here, before anything is allocated for it.
"""

from __future__ import annotations

import numpy as np

from pagedbench.errors import Problem, ScenarioError
from pagedbench.layout.arithmetic import key_slots, needed_entries, ragged, reach, slots_of, visible_range
from pagedbench.layout.batch import BatchLayout, Int32Array, IntArray
from pagedbench.layout.placed import placed_table
from pagedbench.layout.refusals import refuse_bad_entries, refuse_shared_writes
from pagedbench.layout.sizes import MAX_ID, Lengths
from pagedbench.layout.written import written_table
from pagedbench.scenario.model import Scenario

# A gigabyte of slot indices; cumulative lengths would overflow int32 not far beyond it.
MAX_TOKENS = 2**27


def build_layout(scenario: Scenario) -> BatchLayout:
    """The layout of the scenario's batch; deterministic in `inputs.seed`.

    Raises ScenarioError for lengths that disagree, a table too narrow, an id outside the pool, a −1 in a needed entry,
    a pool too small, and a slot that one sequence writes and another writes or sees.
    """
    _refuse_bad_lengths(scenario)
    lengths = _lengths(scenario)
    size, append, limits = scenario.cache.block_size, scenario.batch.append, reach(scenario.attention)
    is_written = scenario.cache.block_table is not None
    table = written_table(scenario, lengths, limits) if is_written else placed_table(scenario, lengths)
    needed = needed_entries(lengths.query, lengths.total, limits, size, table.entries.shape[1])
    refuse_bad_entries(scenario, table, needed, lengths)

    query_sequence, query_token = ragged(lengths.query)
    new_key = lengths.cached[query_sequence] + query_token
    writes = slots_of(table.entries, query_sequence, new_key, size, table.num_blocks) if append else _nothing()
    visible_from, visible_to = visible_range(lengths.query, lengths.total, limits)
    layout = BatchLayout(
        block_size=size,
        num_blocks=table.num_blocks,
        query_lens=lengths.query,
        cache_seqlens=lengths.cached.astype(np.int32),
        total_seqlens=lengths.total.astype(np.int32),
        cu_seqlens_q=_cumulative(lengths.query),
        cu_seqlens_k=_cumulative(lengths.total),
        block_table=table.entries.astype(np.int32),
        write_slots=writes,
        read_slots=key_slots(table.entries, lengths.total, size, table.num_blocks),
        visible_from=visible_from,
        visible_to=visible_to,
        needed_blocks=needed,
        dead=lengths.dead,
        append=append,
        trash_block=table.trash_block,
    )
    if is_written:
        refuse_shared_writes(scenario, layout)
    return layout


def _lengths(scenario: Scenario) -> Lengths:
    batch = scenario.batch
    query = np.array(batch.query_lens, dtype=np.int64)
    cached = np.array(batch.cached_lens, dtype=np.int64)
    dead = np.arange(batch.size) >= batch.size - batch.padding_rows
    return Lengths(query, cached, cached + query if batch.append else cached, dead)


def _nothing() -> IntArray:
    return np.zeros(0, dtype=np.int64)


def _cumulative(lengths: IntArray) -> Int32Array:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def _refuse_bad_lengths(scenario: Scenario) -> None:
    """Everything that must hold before there is an array."""
    batch, cache = scenario.batch, scenario.cache
    problems: list[Problem] = []
    if len(batch.query_lens) != len(batch.cached_lens):
        problems.append(
            scenario.problem(
                "batch.cached_lens",
                f"{len(batch.cached_lens)} lengths",
                f"{len(batch.query_lens)}, as many as query_lens",
            )
        )
    for name, values in (("query_lens", batch.query_lens), ("cached_lens", batch.cached_lens)):
        problems += [
            scenario.problem(f"batch.{name}[{i}]", value, "a length from 0 up")
            for i, value in enumerate(values)
            if value < 0
        ]
    if cache.block_size < 1:
        problems.append(scenario.problem("cache.block_size", cache.block_size, "at least 1"))
    if not 0 <= batch.padding_rows <= batch.size:
        problems.append(scenario.problem("batch.padding_rows", batch.padding_rows, f"0 to {batch.size}"))
    if batch.padding_rows and batch.append and not cache.trash_block:
        problems.append(
            scenario.problem(
                "cache.trash_block",
                "false",
                "true: padding rows write their token somewhere",
                "add `trash_block: true` under cache",
            )
        )
    if isinstance(cache.padding, int) and not -MAX_ID - 1 <= cache.padding <= MAX_ID:
        problems.append(scenario.problem("cache.padding", cache.padding, "a number that fits int32"))
    problems += _size_problems(scenario)
    if problems:
        raise ScenarioError(problems)


def _size_problems(scenario: Scenario) -> list[Problem]:
    batch = scenario.batch
    queries = sum(batch.query_lens)
    keys = sum(batch.cached_lens) + (queries if batch.append else 0)
    return [
        scenario.problem(f"batch.{name}", f"{total} {what} in all", f"at most {MAX_TOKENS}")
        for name, what, total in (("query_lens", "query tokens", queries), ("cached_lens", "keys", keys))
        if total > MAX_TOKENS
    ]
