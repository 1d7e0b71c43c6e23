"""The L2 cache between calls: emptied by reading, or kept from filling by rotating inputs."""

from __future__ import annotations

import torch

from pagedbench.errors import UsageError

FLUSH_FACTOR = 4
"""The flush reads this many times the L2: caches of this size are not strictly least-recently-used."""


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


def check_rotation(copies: int, bytes_per_copy: int, l2_bytes: int) -> None:
    """Refuse a rotation of inputs that the L2 can hold: its calls would find their inputs warm.

    A copy comes round again after the others were used, so it is those that must exceed the L2.
    """
    others = (copies - 1) * bytes_per_copy
    if others <= l2_bytes:
        needed = l2_bytes // max(bytes_per_copy, 1) + 2
        raise UsageError(
            f"rotating {copies} copies of {bytes_per_copy:,} bytes keeps them in an L2 of {l2_bytes:,} bytes",
            hint=f"rotate at least {needed} copies, or flush the cache",
        )
