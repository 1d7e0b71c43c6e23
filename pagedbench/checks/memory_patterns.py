"""What uninitialised memory holds: made visible, so that memory nobody wrote can be told from a result.

Two ways, for memory that a backend allocates itself: torch fills it with NaN, or the allocator is primed with freed
memory that holds a known pattern. The second cannot be sure on a CPU; the first holds for whatever torch allocates.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

FINITE_PATTERN = 0x4242
"""As int16: 48.5 as bf16, 3.13 as fp16, 48.56 as fp32: no NaN, no 0, and unlike a mean of centred values."""

_PRIMED = 4


@contextmanager
def uninitialised_is_nan() -> Iterator[None]:
    """Within: whatever torch allocates without a value holds NaN (integers their maximum)."""
    was = torch.get_deterministic_debug_mode()
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    with warnings.catch_warnings():
        # Only the fill is wanted; that some operation has no deterministic form is not news here.
        warnings.simplefilter("ignore")
        torch.set_deterministic_debug_mode("warn")  # unlike use_deterministic_algorithms, imports no compiler
        torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
        try:
            yield
        finally:
            torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
            torch.set_deterministic_debug_mode(was)


def prime_allocator(*like: torch.Tensor) -> frozenset[int]:
    """Free memory of each tensor's size that holds `FINITE_PATTERN`; its addresses, to confirm that it came back."""
    primed = [torch.empty_like(tensor) for tensor in like for _ in range(_PRIMED)]
    for tensor in primed:
        tensor.view(torch.int16).fill_(FINITE_PATTERN)
    return frozenset(tensor.data_ptr() for tensor in primed)
