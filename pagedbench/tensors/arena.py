"""One allocation that holds everything a kernel is handed, with guard bands between the pieces.

A kernel that writes past the pool, the output or a table hits a guard band; one comparison of the whole allocation
finds any change anywhere, gaps between strided blocks included. Guards read as NaN in every floating dtype and as an
impossible block id, so that reading past an end shows too. It does not know what the pieces mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

GUARD_PATTERN = 0x7FFF
"""As int16: NaN as fp16, bf16, in pairs as fp32, and both its bytes are NaN as fp8 e4m3; 2,147,450,879 as int32."""

ALIGNMENT = 256
_UNIT = 2
_COMPARE_AT_ONCE = 1 << 27


@dataclass(frozen=True)
class Piece:
    """Memory for `elements` of `dtype`, followed by at least `guard` bytes of guard band."""

    name: str
    dtype: torch.dtype
    elements: int
    guard: int

    @property
    def nbytes(self) -> int:
        """Bytes of the piece itself."""
        return self.elements * self.dtype.itemsize


@dataclass(frozen=True)
class ArenaPlan:
    """Where each piece lies. `offsets` are bytes; nothing is allocated yet."""

    pieces: Mapping[str, Piece]
    offsets: Mapping[str, int]
    total: int


def plan_arena(pieces: Iterable[Piece]) -> ArenaPlan:
    """Lay pieces out one after the other, each aligned to 256 bytes and with a guard band on both sides."""
    named: dict[str, Piece] = {}
    offsets: dict[str, int] = {}
    position, guard_before = 0, 0
    for piece in pieces:
        start = _aligned(position + max(guard_before, piece.guard))
        named[piece.name], offsets[piece.name] = piece, start
        position, guard_before = start + piece.nbytes, piece.guard
    return ArenaPlan(named, offsets, _aligned(position + guard_before))


def _aligned(position: int) -> int:
    return math.ceil(position / ALIGNMENT) * ALIGNMENT


@lru_cache(maxsize=256)
def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a dense array."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        strides[axis - 1] = strides[axis] * shape[axis]
    return tuple(strides)


class Arena:
    """Allocated memory of an `ArenaPlan`; `memory` is int16 `(total / 2,)`."""

    def __init__(self, plan: ArenaPlan, device: torch.device | str, memory: torch.Tensor | None = None) -> None:
        """`memory` is taken over; without it there is the guard pattern everywhere."""
        self.plan = plan
        if memory is None:
            memory = torch.full((plan.total // _UNIT,), GUARD_PATTERN, dtype=torch.int16, device=device)
        self.memory = memory
        self._typed: dict[torch.dtype, torch.Tensor] = {}

    def flat(self, name: str) -> torch.Tensor:
        """A piece as a one-dimensional view of its dtype."""
        return self.strided(name, (self.plan.pieces[name].elements,), (1,))

    def shaped(self, name: str, shape: Sequence[int]) -> torch.Tensor:
        """A piece as a dense view of this shape."""
        return self.strided(name, shape, _dense(tuple(shape)))

    def strided(self, name: str, shape: Sequence[int], stride: Sequence[int], offset: int = 0) -> torch.Tensor:
        """A piece seen through strides; `offset` and `stride` in elements."""
        dtype = self.plan.pieces[name].dtype
        if dtype not in self._typed:
            self._typed[dtype] = self.memory.view(dtype)
        return self._typed[dtype].as_strided(shape, stride, self.plan.offsets[name] // dtype.itemsize + offset)

    def equals(self, other: Arena) -> bool:
        """Whether every byte is the same, guards included; a handful of kernels and one synchronisation."""
        mine, theirs = self.memory.view(torch.int64), other.memory.view(torch.int64)
        same = (
            torch.equal(mine[i : i + _COMPARE_AT_ONCE], theirs[i : i + _COMPARE_AT_ONCE])
            for i in range(0, len(mine), _COMPARE_AT_ONCE)
        )
        return all(same)

    def changed_bytes(self, other: Arena) -> list[tuple[str, int, int]]:
        """Where two arenas of one plan differ: (place, first byte, units of 2 bytes), a place being a piece or a guard.

        The first byte counts from the start of the place. Meant for reporting a failure, not for speed.
        """
        found = []
        for place, start, stop in self._places():
            mine, theirs = self.memory[start:stop], other.memory[start:stop]
            if torch.equal(mine, theirs):  # a tenth of the time that counting takes
                continue
            differs = mine != theirs
            found.append((place, int(differs.to(torch.uint8).argmax()) * _UNIT, int(differs.sum())))
        return found

    def _places(self) -> list[tuple[str, int, int]]:
        places, position = [], 0
        before = "the start"
        for name, piece in self.plan.pieces.items():
            start = self.plan.offsets[name] // _UNIT
            stop = start + math.ceil(piece.nbytes / _UNIT)
            places += [(f"the guard band between {before} and {name}", position, start), (name, start, stop)]
            position, before = stop, name
        return [*places, (f"the guard band after {before}", position, len(self.memory))]
