"""A block table by placement: as many blocks as the batch needs, where the placement puts them.

Which ids a placement gives is in `placement.py`; the table that a scenario writes itself is in `written.py`.
"""

from __future__ import annotations

import numpy as np

from pagedbench.errors import ScenarioError
from pagedbench.layout.arithmetic import blocks_for, ragged
from pagedbench.layout.batch import IntArray
from pagedbench.layout.placement import Demand, least_pool, place
from pagedbench.layout.sizes import Lengths, Table, columns_of, fill_dead_rows, padding_id, pool_size
from pagedbench.scenario.model import Scenario


def placed_table(scenario: Scenario, lengths: Lengths) -> Table:
    """The table of the scenario's placement. Raises ScenarioError where sizes do not fit together."""
    cache = scenario.cache
    need = blocks_for(lengths.total, cache.block_size)
    columns = columns_of(scenario, lengths)
    # Padding rows own nothing: what they name is the trash block.
    sequence, column = ragged(np.where(lengths.dead, 0, need))
    block = _shared_prefix(scenario, lengths, sequence, column) if cache.placement == "shared-prefix" else None
    owners, block = np.unique(np.arange(len(sequence)) if block is None else block, return_inverse=True)
    reserved = int(cache.trash_block) + int(cache.padding == "decoy")
    num_blocks = pool_size(scenario, least_pool(cache.placement, len(owners)), len(owners) + reserved, reserved)

    rng = np.random.default_rng([scenario.inputs.seed, 0x7AB1E])
    ids = place(cache.placement, Demand(sequence[owners], column[owners]), num_blocks - reserved, rng)
    trash = num_blocks - 1 if cache.trash_block else None
    decoy = num_blocks - reserved if cache.padding == "decoy" else None
    entries = np.full((len(need), columns), padding_id(cache.padding, num_blocks, decoy), dtype=np.int64)
    entries[sequence, column] = ids[block]
    fill_dead_rows(entries, lengths, trash)
    return Table(entries, num_blocks, trash)


def _shared_prefix(scenario: Scenario, lengths: Lengths, sequence: IntArray, column: IntArray) -> IntArray:
    """For each entry the entry that owns its block: whole cached blocks common to all sequences that have any.

    Whole cached blocks are never written, so sharing them is what a prefix cache does.
    """
    whole = np.where(lengths.dead, 0, lengths.cached // scenario.cache.block_size)
    sharers = np.flatnonzero(whole)
    if len(sharers) < 2:
        raise ScenarioError(
            [
                scenario.problem(
                    "cache.placement",
                    "shared-prefix",
                    f"two sequences with at least {scenario.cache.block_size} cached keys (one whole block)",
                    "longer cached_lens, or another placement",
                )
            ]
        )
    prefix = int(whole[sharers].min())
    owner = np.arange(len(sequence), dtype=np.int64)
    shared = (whole[sequence] > 0) & (column < prefix)
    first_entry = int(np.searchsorted(sequence, sharers[0]))
    owner[shared] = first_entry + column[shared]
    return owner
