"""The layouts of a batch that goes on decoding: the same table and pool, longer from step to step.

The table is that of the last step from the start, as in an engine that reserves blocks ahead; what it names beyond the
keys of a step is padding then.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from pagedbench.layout.arithmetic import key_slots, needed_entries, ragged, reach, slots_of, visible_range
from pagedbench.layout.batch import BatchLayout
from pagedbench.layout.build import build_layout
from pagedbench.scenario.model import Scenario


def step_layouts(scenario: Scenario) -> list[BatchLayout]:
    """One layout for each of `scenario.steps`; raises ScenarioError where the last step does not fit the table or pool.

    Padding rows stay as they are: they decode the same rubbish each time.
    """
    last = build_layout(at_last_step(scenario))
    return [_shortened(scenario, last, scenario.steps - 1 - step) for step in range(scenario.steps)]


def at_last_step(scenario: Scenario) -> Scenario:
    """The scenario with the lengths of its last step; itself if it has one step."""
    batch, ahead = scenario.batch, scenario.steps - 1
    if not ahead or not batch.append:
        return scenario
    live = batch.size - batch.padding_rows
    lengths = zip(batch.cached_lens, batch.query_lens, strict=True)
    grown = tuple(cached + ahead * query * (i < live) for i, (cached, query) in enumerate(lengths))
    return dataclasses.replace(scenario, batch=dataclasses.replace(batch, cached_lens=grown))


def _shortened(scenario: Scenario, last: BatchLayout, steps: int) -> BatchLayout:
    """The layout `steps` steps before the last one."""
    query, size = last.query_lens, last.block_size
    cached = last.cache_seqlens.astype(np.int64) - np.where(last.dead, 0, steps * query)
    total, limits = cached + query, reach(scenario.attention)
    sequence, token = ragged(query)
    visible_from, visible_to = visible_range(query, total, limits)
    return dataclasses.replace(
        last,
        cache_seqlens=cached.astype(np.int32),
        total_seqlens=total.astype(np.int32),
        cu_seqlens_k=np.concatenate([[0], np.cumsum(total)]).astype(np.int32),
        write_slots=slots_of(last.block_table, sequence, cached[sequence] + token, size, last.num_blocks),
        read_slots=key_slots(last.block_table, total, size, last.num_blocks),
        visible_from=visible_from,
        visible_to=visible_to,
        needed_blocks=needed_entries(query, total, limits, size, last.max_blocks_per_seq),
    )
