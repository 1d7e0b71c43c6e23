"""The block table as a scenario writes it, completed: padding, trash block, the pool that it points into.

Whether its entries fit the batch is judged in `refusals.py`.
"""

from __future__ import annotations

import numpy as np

from pagedbench.errors import Problem, ScenarioError
from pagedbench.layout.arithmetic import Reach, needed_entries
from pagedbench.layout.batch import IntArray
from pagedbench.layout.sizes import MAX_ID, Lengths, Table, columns_of, fill_dead_rows, padding_id, pool_size
from pagedbench.scenario.model import Scenario


def written_table(scenario: Scenario, lengths: Lengths, limits: Reach) -> Table:
    """The scenario's own table; −1 in it stands for whatever `padding` says. Raises ScenarioError where sizes clash."""
    cache = scenario.cache
    columns = columns_of(scenario, lengths)
    written = _as_array(scenario, lengths, columns)
    needed = needed_entries(lengths.query, lengths.total, limits, cache.block_size, columns)
    reserved = int(cache.trash_block) + int(cache.padding == "decoy")
    # Entries that are not needed may be rubbish: they do not size the pool, but no block they name is a spare one.
    least = int(written[needed].max(initial=-1)) + 1
    num_blocks = pool_size(scenario, least, reserved, reserved)
    spare = _unnamed_from_the_top(np.unique(written), num_blocks, reserved)
    if len(spare) < reserved:
        more = (
            f"{reserved - len(spare)} more: the table names all, and the trash block or the decoy needs one of its own"
        )
        raise ScenarioError([scenario.problem("cache.num_blocks", num_blocks, more)])
    trash = spare[0] if cache.trash_block else None
    decoy = spare[-1] if cache.padding == "decoy" else None
    entries = np.where(written == -1, padding_id(cache.padding, num_blocks, decoy), written)
    fill_dead_rows(entries, lengths, trash)
    return Table(entries, num_blocks, trash)


def _as_array(scenario: Scenario, lengths: Lengths, columns: int) -> IntArray:
    """The written rows as `(batch, columns)`; what is not written is −1, what `tight` leaves no column for is cut."""
    rows = scenario.cache.block_table or ()
    problems = _row_problems(scenario, lengths, rows)
    if problems:
        raise ScenarioError(problems)
    entries = np.full((len(lengths.dead), columns), -1, dtype=np.int64)
    for index, row in enumerate(rows):
        width = min(len(row), columns)
        entries[index, :width] = row[:width]
    return entries


def _row_problems(scenario: Scenario, lengths: Lengths, rows: tuple[tuple[int, ...], ...]) -> list[Problem]:
    batch, live = len(lengths.dead), int((~lengths.dead).sum())
    if len(rows) not in (batch, live):
        return [scenario.problem("cache.block_table", f"{len(rows)} rows", f"{batch} rows, one a sequence")]
    problems: list[Problem] = []
    for index, row in enumerate(rows):
        place = f"cache.block_table[{index}]"
        problems += [
            scenario.problem(f"{place}[{column}]", entry, "a number that fits int32")
            for column, entry in enumerate(row)
            if not -MAX_ID - 1 <= entry <= MAX_ID
        ]
        if lengths.dead[index] and any(entry != -1 for entry in row):
            problems.append(scenario.problem(place, list(row), "−1 everywhere: padding rows own no block"))
    return problems


def _unnamed_from_the_top(named: IntArray, num_blocks: int, count: int) -> list[int]:
    """The highest `count` ids that the table does not name, highest first; fewer if there are not so many."""
    candidates = np.arange(num_blocks - 1, max(num_blocks - 1 - len(named) - count, -1), -1, dtype=np.int64)
    return [int(i) for i in candidates[~np.isin(candidates, named)][:count]]
