"""An independent layout: plain Python loops straight from the definitions, slow and obvious."""

from __future__ import annotations

from dataclasses import dataclass

from pagedbench.scenario.model import Scenario


@dataclass
class Keys:
    """What each query token of each sequence sees, and which keys are written."""

    seen: dict[tuple[int, int], list[int]]
    written: dict[int, list[int]]


def keys_after(scenario: Scenario) -> list[int]:
    """Keys of each sequence once the step has appended its tokens."""
    batch = scenario.batch
    return [c + (q if batch.append else 0) for q, c in zip(batch.query_lens, batch.cached_lens, strict=True)]


def keys_by_definition(scenario: Scenario) -> Keys:
    """Test every (query token, key) pair against the words of DESIGN section 2."""
    left, right = scenario.attention.window_size
    seen: dict[tuple[int, int], list[int]] = {}
    written: dict[int, list[int]] = {}
    for sequence, (q, k) in enumerate(zip(scenario.batch.query_lens, keys_after(scenario), strict=True)):
        written[sequence] = list(range(k - q, k)) if scenario.batch.append else []
        for i in range(q):
            own = k - q + i
            seen[sequence, i] = [
                j
                for j in range(k)
                if not (scenario.attention.causal and j > own)
                and not (left != -1 and j < own - left)
                and not (right != -1 and j > own + right)
            ]
    return Keys(seen, written)


def slot_by_definition(table: list[list[int]], sequence: int, key: int, block_size: int) -> int:
    """Walk the row block by block until the one that holds the key."""
    block, offset = 0, key
    while offset >= block_size:
        block, offset = block + 1, offset - block_size
    return table[sequence][block] * block_size + offset
