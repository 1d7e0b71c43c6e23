"""The block table of a batch: placed by name or as the scenario writes it, its width, padding and trash block.

Makes the table and the pool's size; what makes no sense is refused here as far as it concerns sizes. Whether the
entries of a table fit the batch is judged in `refusals.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pagedbench.errors import Problem, ScenarioError
from pagedbench.layout.arithmetic import Reach, blocks_for, needed_entries, ragged
from pagedbench.layout.batch import IntArray
from pagedbench.layout.placement import Demand, least_pool, place
from pagedbench.scenario.model import Padding, Scenario

SPARE_COLUMNS = 2
SPARE_BLOCKS_MIN, SPARE_BLOCKS_MAX = 4, 256
MAX_TABLE_ENTRIES = 2**28
MAX_ID = 2**31 - 1


@dataclass(frozen=True)
class Lengths:
    """Lengths of a batch, `(batch,)` int64 each, and which rows are `dead` (padding rows of a CUDA graph)."""

    query: IntArray
    cached: IntArray
    total: IntArray
    dead: NDArray[np.bool_]


@dataclass(frozen=True)
class Table:
    """A block table `(batch, columns)` int64 with its pool, and the block for writes that nobody reads."""

    entries: IntArray
    num_blocks: int
    trash_block: int | None


def make_table(scenario: Scenario, lengths: Lengths, limits: Reach) -> Table:
    """The scenario's own table, or one by its placement. Raises ScenarioError where sizes do not fit together."""
    need = blocks_for(lengths.total, scenario.cache.block_size)
    if scenario.cache.block_table is None:
        return _placed(scenario, lengths, need)
    return _written(scenario, lengths, need, limits)


def padding_id(padding: Padding, num_blocks: int, decoy: int | None) -> int:
    """What stands in an entry that is not allocated; `decoy` is the id of the block that holds decoy data."""
    if padding == "num_blocks":
        return num_blocks
    if padding == "decoy":
        if decoy is None:
            raise ValueError("padding with a decoy needs a block for it")
        return decoy
    return padding


def _placed(scenario: Scenario, lengths: Lengths, need: IntArray) -> Table:
    cache = scenario.cache
    columns = _columns(scenario, lengths, need)
    # Padding rows own nothing: what they name is the trash block.
    sequence, column = ragged(np.where(lengths.dead, 0, need))
    block = _shared_prefix(scenario, lengths, sequence, column) if cache.placement == "shared-prefix" else None
    owners, block = np.unique(np.arange(len(sequence)) if block is None else block, return_inverse=True)
    reserved = int(cache.trash_block) + int(cache.padding == "decoy")
    num_blocks = _pool_size(scenario, least_pool(cache.placement, len(owners)), len(owners) + reserved, reserved)

    rng = np.random.default_rng([scenario.inputs.seed, 0x7AB1E])
    ids = place(cache.placement, Demand(sequence[owners], column[owners]), num_blocks - reserved, rng)
    trash = num_blocks - 1 if cache.trash_block else None
    decoy = num_blocks - reserved if cache.padding == "decoy" else None
    entries = np.full((len(need), columns), padding_id(cache.padding, num_blocks, decoy), dtype=np.int64)
    entries[sequence, column] = ids[block]
    _fill_dead_rows(entries, lengths, trash)
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


def _written(scenario: Scenario, lengths: Lengths, need: IntArray, limits: Reach) -> Table:
    cache = scenario.cache
    columns = _columns(scenario, lengths, need)
    written = _as_array(scenario, lengths, columns)
    needed = needed_entries(lengths.query, lengths.total, limits, cache.block_size, columns)
    reserved = int(cache.trash_block) + int(cache.padding == "decoy")
    # Entries that are not needed may be rubbish: they do not size the pool, but no block they name is a spare one.
    least = int(written[needed].max(initial=-1)) + 1
    num_blocks = _pool_size(scenario, least, reserved, reserved)
    spare = _unnamed_from_the_top(np.unique(written), num_blocks, reserved)
    if len(spare) < reserved:
        more = (
            f"{reserved - len(spare)} more: the table names all, and the trash block or the decoy needs one of its own"
        )
        raise ScenarioError([scenario.problem("cache.num_blocks", num_blocks, more)])
    trash = spare[0] if cache.trash_block else None
    decoy = spare[-1] if cache.padding == "decoy" else None
    entries = np.where(written == -1, padding_id(cache.padding, num_blocks, decoy), written)
    _fill_dead_rows(entries, lengths, trash)
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


def _fill_dead_rows(entries: IntArray, lengths: Lengths, trash: int | None) -> None:
    """Padding rows point at the trash block with every entry, whatever length an engine leaves in them."""
    if trash is not None:
        entries[lengths.dead] = trash


def _columns(scenario: Scenario, lengths: Lengths, need: IntArray) -> int:
    """Columns of the table. Raises ScenarioError when a sequence has more blocks than there are columns."""
    cache = scenario.cache
    widest = int(need.max(initial=0))
    # An engine never makes a table without columns, even if no sequence has a key yet.
    tight = max(widest, 1)
    wanted = cache.max_blocks_per_seq
    rows = cache.block_table
    if wanted == "tight":
        columns = tight
    elif wanted is not None:
        columns = wanted
    elif rows is not None:
        columns = max((len(row) for row in rows), default=0)
    else:
        columns = tight + SPARE_COLUMNS
    problems = _width_problems(scenario, lengths, need, columns)
    if columns * len(need) > MAX_TABLE_ENTRIES:
        problems.append(
            scenario.problem(
                "cache.max_blocks_per_seq",
                f"{len(need)} x {columns} table entries",
                f"at most {MAX_TABLE_ENTRIES}",
                "fewer sequences, or a larger block size",
            )
        )
    if problems:
        raise ScenarioError(problems)
    return columns


def _width_problems(scenario: Scenario, lengths: Lengths, need: IntArray, columns: int) -> list[Problem]:
    cache = scenario.cache
    problems: list[Problem] = []
    if isinstance(cache.max_blocks_per_seq, int):
        wide = [i for i, row in enumerate(cache.block_table or ()) if len(row) > columns]
        problems += [
            scenario.problem(
                f"cache.block_table[{i}]",
                f"{len((cache.block_table or ())[i])} columns",
                f"at most {columns}, as max_blocks_per_seq says",
            )
            for i in wide
        ]
    narrow = np.flatnonzero(need > columns)
    if len(narrow):
        sequence = int(narrow[np.argmax(need[narrow])])
        field = "cache.block_table" if cache.max_blocks_per_seq is None else "cache.max_blocks_per_seq"
        problems.append(
            scenario.problem(
                field,
                f"{columns} columns",
                f"at least {int(need[sequence])}: sequence {sequence} has {int(lengths.total[sequence])} keys"
                f" in blocks of {cache.block_size}",
            )
        )
    return problems


def _pool_size(scenario: Scenario, least: int, count: int, reserved: int) -> int:
    """Blocks in the pool: as the scenario says, or with room for blocks that nobody names."""
    given = scenario.cache.num_blocks
    if given is None:
        return least + reserved + int(np.clip(least // 4, SPARE_BLOCKS_MIN, SPARE_BLOCKS_MAX))
    problem: Problem | None = None
    if given > MAX_ID:
        problem = scenario.problem("cache.num_blocks", given, f"at most {MAX_ID}, the largest id that fits int32")
    elif given < count:
        extra = f", {reserved} of them for the trash block or the decoy" if reserved else ""
        problem = scenario.problem("cache.num_blocks", given, f"at least {count} blocks{extra}")
    if problem is not None:
        raise ScenarioError([problem])
    return given


def _unnamed_from_the_top(named: IntArray, num_blocks: int, count: int) -> list[int]:
    """The highest `count` ids that the table does not name, highest first; fewer if there are not so many."""
    candidates = np.arange(num_blocks - 1, max(num_blocks - 1 - len(named) - count, -1), -1, dtype=np.int64)
    return [int(i) for i in candidates[~np.isin(candidates, named)][:count]]
