"""The L2 cache between calls: emptied by reading.

Before a graph's replay too: a flush outside the graph leaves its inputs as cold as copies taken in turn would, and
costs no memory for the copies.
"""

from __future__ import annotations

import torch

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
