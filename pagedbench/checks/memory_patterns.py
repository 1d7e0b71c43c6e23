"""What uninitialised memory holds: made visible, so that memory nobody wrote can be told from a result.

NaN is what torch itself can fill it with. For a finite pattern the allocator is primed with freed memory that holds it,
which the address confirms (a GPU's caching allocator gives it back, a CPU's often does not); or torch's own allocations
are filled as they are made, which reaches whatever goes through its dispatcher.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pagedbench.backends.base import Output
from pagedbench.checks.base import CheckContext
from pagedbench.tensors.arena import GUARD_PATTERN
from pagedbench.tensors.bits import bits

FINITE_PATTERN = 0x4242
"""As int16: 48.5 as bf16, 3.13 as fp16, 48.56 as fp32: no NaN, no 0, and unlike a mean of centred values."""

_PRIMED = 4


@contextmanager
def memory_is_nan(context: CheckContext) -> Iterator[None]:
    """Within: what the context's backend allocates without a value holds NaN.

    Torch's own fill is a global switch: what `torch.compile` made would be made again, without it, for the fill alone.
    Freed memory of the answer's size is left in its place instead.
    """
    if context.backend.traits_for(context.path).torch_compiled:
        prime_allocator(*tensors_of(context.base.output), pattern=GUARD_PATTERN)
        yield
    else:
        with uninitialised_is_nan():
            yield


def tensors_of(output: Output) -> list[torch.Tensor]:
    """Output and LSE, where there is one."""
    lse = output.lse
    return [output.out] if lse is None else [output.out, lse]


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


class FilledAsAllocated(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within: whatever torch allocates without a value through its dispatcher holds `FINITE_PATTERN`.

    What `torch.compile` made runs as it does outside. By default torch compiles nothing within a mode, and never again
    what it met there: a compiled backend would be judged by another kernel, now and in every cell that follows.
    """

    supports_higher_order_operators = True

    def __new__(cls):  # type: ignore[no-untyped-def]
        """One that keeps the compiler's hands off where the compiler is loaded; loading it takes seconds."""
        return super().__new__(_BesideACompiler if "torch._dynamo" in sys.modules else cls)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether torch wraps `__torch_dispatch__` so that it is not compiled, for which it loads the compiler."""
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compile without this mode; run what was compiled within it."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Let the operation run; fill what it allocated."""
        result = func(*args, **(kwargs or {}))
        if func in _ALLOCATING and result.is_floating_point() and result.numel():
            bits(result).fill_(finite_pattern(result.element_size()))
        return result


class _BesideACompiler(FilledAsAllocated):  # type: ignore[no-untyped-call]
    """The same, never compiled."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_dispatch__(func, types, args, kwargs)


_ATEN = torch.ops.aten
_ALLOCATING = frozenset(
    (
        _ATEN.empty.memory_format,
        _ATEN.empty_strided.default,
        _ATEN.empty_permuted.default,
        _ATEN.empty_like.default,
        _ATEN.new_empty.default,
        _ATEN.new_empty_strided.default,
    )
)


def finite_pattern(nbytes: int) -> int:
    """`FINITE_PATTERN` as an integer of so many bytes, as which `bits` shows a number."""
    return int.from_bytes((FINITE_PATTERN & 0xFF).to_bytes(1, "little") * nbytes, "little", signed=nbytes > 1)


def prime_allocator(*like: torch.Tensor, pattern: int = FINITE_PATTERN) -> frozenset[int]:
    """Free memory of each tensor's size that holds `pattern` (int16); its addresses, to confirm that it came back."""
    primed = [
        torch.full((-(-tensor.nbytes // 2),), pattern, dtype=torch.int16, device=tensor.device)
        for tensor in like
        for _ in range(_PRIMED)
    ]
    return frozenset(tensor.data_ptr() for tensor in primed)
