"""Chooses tiles, splits and warps from the shape of the batch alone: no tuning run, no look at lengths on the device.

Plain arithmetic without Triton, so that the rule can be read and tested anywhere. The constants were measured on an
H200 (132 multiprocessors, 228 KiB of shared memory each); `benchmarks/triton_decode.py` measures them again.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """What the rule looks at. `group` is query heads for one KV head; `max_seqlen_k` counts the keys that a row can see
    at most (a window makes it short); `num_splits` is what the caller asks for, 0 for the rule's choice."""

    batch: int
    num_kv_heads: int
    group: int
    head_dim: int
    head_dim_v: int
    element_size: int
    max_seqlen_q: int
    max_seqlen_k: int
    multiprocessors: int
    num_splits: int = 0


@dataclass(frozen=True)
class Settings:
    """How the kernel is cut. `interior` compiles a loop of its own for tiles that need no mask: worth it where the
    arithmetic is the limit, not where it only waits for memory."""

    tile_rows: int
    tile_keys: int
    num_splits: int
    num_warps: int
    num_stages: int
    interior: bool = False


MAX_SPLITS = 128
MIN_KEYS_PER_SPLIT = 256
# Rows up to which the step is short of memory bandwidth rather than of arithmetic.
FEW_ROWS = 64
# Programs that one multiprocessor holds at a time with the tiles chosen below.
RESIDENT_PROGRAMS = 2


def choose_settings(shape: Shape) -> Settings:
    """Settings for one call."""
    rows = shape.max_seqlen_q * shape.group
    padded_dim = max(next_power_of_2(shape.head_dim), next_power_of_2(shape.head_dim_v))
    wide = padded_dim * shape.element_size > 256  # bytes of one K or V row: head dim 128 in 16 bits is the common case
    if rows > FEW_ROWS:
        return _many_rows(shape, rows, wide)
    tile_rows = max(16, next_power_of_2(rows))
    tile_keys = 32 if wide else 64
    splits = choose_splits(shape, shape.batch * shape.num_kv_heads)
    return Settings(tile_rows, tile_keys, splits, num_warps=2 if tile_rows == 16 else 4, num_stages=4)


def _many_rows(shape: Shape, rows: int, wide: bool) -> Settings:
    """Prefill: the limit is arithmetic, tiles are large."""
    tile_rows = 128
    programs = shape.batch * shape.num_kv_heads * -(-rows // tile_rows)
    splits = choose_splits(shape, programs)
    return Settings(tile_rows, 32 if wide else 64, splits, num_warps=8, num_stages=3, interior=True)


def choose_splits(shape: Shape, programs: int) -> int:
    """How many programs share the keys of one sequence: as many as fill the multiprocessors, each with work enough."""
    if shape.num_splits > 0:
        return shape.num_splits
    room = RESIDENT_PROGRAMS * shape.multiprocessors // max(programs, 1)
    worthwhile = shape.max_seqlen_k // MIN_KEYS_PER_SPLIT
    return max(1, min(room, worthwhile, MAX_SPLITS))


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least `n` (1 for 0)."""
    return 1 << max(n - 1, 0).bit_length()
