"""Sizes that a block table must fit: lengths in, columns and pool out. What makes no sense is refused here.

Makes no table: `placed.py` and `written.py` do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pagedbench.errors import Problem, ScenarioError
from pagedbench.layout.arithmetic import blocks_for
from pagedbench.layout.batch import IntArray
from pagedbench.scenario.model import Cache, Padding, Scenario

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


def padding_id(padding: Padding, num_blocks: int, decoy: int | None) -> int:
    """What stands in an entry that is not allocated; `decoy` is the id of the block that holds decoy data."""
    if padding == "num_blocks":
        return num_blocks
    if padding == "decoy":
        if decoy is None:
            raise ValueError("padding with a decoy needs a block for it")
        return decoy
    return padding


def fill_dead_rows(entries: IntArray, lengths: Lengths, trash: int | None) -> None:
    """Padding rows point at the trash block with every entry, whatever length an engine leaves in them."""
    if trash is not None:
        entries[lengths.dead] = trash


def columns_of(scenario: Scenario, lengths: Lengths) -> int:
    """Columns of the table. Raises ScenarioError when a sequence has more blocks than there are columns."""
    need = blocks_for(lengths.total, scenario.cache.block_size)
    columns = _wanted_columns(scenario.cache, int(need.max(initial=0)))
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


def _wanted_columns(cache: Cache, widest: int) -> int:
    # An engine never makes a table without columns, even if no sequence has a key yet.
    tight = max(widest, 1)
    if cache.max_blocks_per_seq == "tight":
        return tight
    if cache.max_blocks_per_seq is not None:
        return cache.max_blocks_per_seq
    if cache.block_table is not None:
        return max((len(row) for row in cache.block_table), default=0)
    return tight + SPARE_COLUMNS


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


def pool_size(scenario: Scenario, least: int, count: int, reserved: int) -> int:
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
