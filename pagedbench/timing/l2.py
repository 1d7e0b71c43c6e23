"""The L2 cache between calls: emptied by reading, or kept from filling by rotating inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pagedbench.errors import UsageError
from pagedbench.timing.clock import Job

FLUSH_FACTOR = 2
"""The flush reads this many times the L2: such caches are not strictly least-recently-used. On an H200, 1.1 to 8 times
read the same."""


class ReadFlush:
    """Empties the L2 by reading a buffer several times its size.

    Reading, not writing: lines that a flush leaves dirty are written back while the next kernel runs, and slow it.
    """

    def __init__(self, device: str, l2_bytes: int) -> None:
        words = max(FLUSH_FACTOR * l2_bytes, 1 << 20) // 4
        self._buffer = torch.ones(words, dtype=torch.float32, device=device)
        self._sum = torch.empty((), dtype=torch.float32, device=device)

    def __call__(self) -> None:
        """Queue the read."""
        torch.sum(self._buffer, dim=0, out=self._sum)


@dataclass(frozen=True)
class Rotation:
    """The same call on several copies of its inputs, taken in turn: cold without a flush, in a graph too."""

    copies: Sequence[Job]
    bytes_per_copy: int

    def check(self, l2_bytes: int) -> None:
        """Refuse a rotation that the L2 can hold: its calls would find their inputs warm.

        A copy comes round again after the others were used, so it is those that must exceed the L2.
        """
        others = (len(self.copies) - 1) * self.bytes_per_copy
        if others <= l2_bytes:
            needed = l2_bytes // max(self.bytes_per_copy, 1) + 2
            raise UsageError(
                f"rotating {len(self.copies)} copies of {self.bytes_per_copy:,} bytes keeps them in an L2 of "
                f"{l2_bytes:,} bytes",
                hint=f"rotate at least {needed} copies, or flush the cache",
            )
