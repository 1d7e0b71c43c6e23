"""Which blocks of the pool a batch gets: one small function a placement, chosen by name.

Only ids are made here. How many blocks a sequence needs, what stands in unused entries, and explicit tables are in
`table.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pagedbench.layout.batch import IntArray
from pagedbench.scenario.model import Placement

# Ids that a kernel which keeps 16 bits of them, signed or not, would take for small ones.
HIGH_IDS = (2**16, 2**15)


@dataclass(frozen=True)
class Demand:
    """What is to be placed: `count` blocks, block i being column `column[i]` of sequence `sequence[i]` (both int64)."""

    sequence: IntArray
    column: IntArray

    @property
    def count(self) -> int:
        """Blocks to place."""
        return len(self.sequence)


Place = Callable[[Demand, int, np.random.Generator], IntArray]


def place(name: Placement, demand: Demand, usable: int, rng: np.random.Generator) -> IntArray:
    """Distinct ids in [0, usable) for the blocks of `demand`, in its order; `usable >= demand.count`."""
    return _PLACEMENTS[name](demand, usable, rng)


def least_pool(name: Placement, count: int) -> int:
    """Blocks that a pool has at least, if the scenario leaves it open, for the placement to be what it says."""
    if name == "high-ids" and count:
        return max(HIGH_IDS[0] + _upper_half(count), count)
    if name == "fragmented":
        return 2 * count
    return count


def _shuffled(demand: Demand, usable: int, rng: np.random.Generator) -> IntArray:
    ids: IntArray = rng.choice(usable, size=demand.count, replace=False).astype(np.int64)
    return ids


def _sequential(demand: Demand, usable: int, rng: np.random.Generator) -> IntArray:
    return np.arange(demand.count, dtype=np.int64)


def _reversed(demand: Demand, usable: int, rng: np.random.Generator) -> IntArray:
    return np.arange(demand.count - 1, -1, -1, dtype=np.int64)


def _interleaved(demand: Demand, usable: int, rng: np.random.Generator) -> IntArray:
    """Sequences take turns, as they do when they grow together."""
    ids = np.empty(demand.count, dtype=np.int64)
    ids[np.lexsort((demand.sequence, demand.column))] = np.arange(demand.count)
    return ids


def _fragmented(demand: Demand, usable: int, rng: np.random.Generator) -> IntArray:
    """Ascending with random holes, as a pool looks after sequences have come and gone."""
    return np.sort(_shuffled(demand, usable, rng))


def _high_ids(demand: Demand, usable: int, rng: np.random.Generator) -> IntArray:
    """Ids just past 2**16 and 2**15 in turn, so that low 16 bits point at other blocks; else the top of the pool."""
    count = demand.count
    if usable < least_pool("high-ids", count) or count // 2 > HIGH_IDS[1]:
        return np.arange(usable - count, usable, dtype=np.int64)
    ids = np.empty(count, dtype=np.int64)
    ids[0::2] = HIGH_IDS[0] + np.arange(_upper_half(count))
    ids[1::2] = HIGH_IDS[1] + np.arange(count // 2)
    return ids


def _upper_half(count: int) -> int:
    return count - count // 2


_PLACEMENTS: dict[Placement, Place] = {
    "shuffled": _shuffled,
    "sequential": _sequential,
    "reversed": _reversed,
    "interleaved": _interleaved,
    "fragmented": _fragmented,
    "high-ids": _high_ids,
    # Which blocks are shared is the table's matter; where they lie is as random as can be.
    "shared-prefix": _shuffled,
}
