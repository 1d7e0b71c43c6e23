"""Chooses tiles, splits and warps from the shape of the batch alone: no tuning run, no look at lengths on the device.

Plain arithmetic without Triton, so that the rule can be read and tested anywhere. The constants were measured on an
H200; `benchmarks/triton_decode.py` shows what they give on another GPU.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """What a GPU has: multiprocessors, and bytes of shared memory that one program can have."""

    multiprocessors: int
    shared_memory: int


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
    num_splits: int = 0

    @property
    def rows(self) -> int:
        """Query rows for one KV head of the longest query."""
        return self.max_seqlen_q * self.group

    @property
    def vector_bytes(self) -> int:
        """Bytes of one K or V vector in a tile: padded to a power of two."""
        return max(next_power_of_2(self.head_dim), next_power_of_2(self.head_dim_v)) * self.element_size

    def programs(self, tile_rows: int) -> int:
        """Programs without splits, if all queries were as long as the longest."""
        return self.batch * self.num_kv_heads * -(-self.rows // tile_rows)


@dataclass(frozen=True)
class Tile:
    """How a program's work is cut. `resident` is how many programs are meant to share a multiprocessor: while some wait
    for memory the others calculate, and with more than two of them registers must be rationed."""

    rows: int
    keys: int
    num_warps: int
    num_stages: int
    resident: int

    @property
    def max_registers(self) -> int:
        """Registers for a thread, so that `resident` programs fit into the 65,536 of a multiprocessor."""
        return min(255, 65536 // (32 * self.num_warps * self.resident) // 8 * 8)

    def shared_memory(self, vector_bytes: int) -> int:
        """About the bytes of shared memory that it takes: q, and pairs of K and V tiles.

        Triton gives loads that wait for another load (here: for the block table) one buffer for two stages; the loop
        over edge tiles has one pair of its own.
        """
        pairs = (self.num_stages - 1) // 2 + 1
        return vector_bytes * (self.rows + 2 * pairs * self.keys)


@dataclass(frozen=True)
class Settings:
    """A tile, and over how many programs the keys of a sequence are split."""

    tile: Tile
    num_splits: int


# Decode is short of memory bandwidth, up to this many rows.
FEW_ROWS = 64
# One row tile of the smallest matrix product: small tiles of keys, so that many programs have loads under way.
DECODE_KEY_BYTES = 16 << 10
# Several query tokens or a large group: 64 rows are what Hopper's matrix units take at least.
VERIFY_TILES = (
    Tile(rows=64, keys=64, num_warps=4, num_stages=5, resident=2),
    Tile(rows=64, keys=32, num_warps=4, num_stages=3, resident=2),
    Tile(rows=64, keys=16, num_warps=4, num_stages=3, resident=2),
)
MAX_SPLITS = 128
# A split of fewer keys for each row than this costs more in the combination than it gains.
KEYS_PER_SPLIT_AND_ROW = 4
GOOD_ENOUGH = 0.85
# Prefill is short of arithmetic: large tiles, the largest that fits first.
PREFILL_TILES = (
    Tile(rows=256, keys=64, num_warps=8, num_stages=5, resident=1),
    Tile(rows=128, keys=64, num_warps=8, num_stages=5, resident=1),
    Tile(rows=128, keys=32, num_warps=8, num_stages=5, resident=1),
    Tile(rows=64, keys=32, num_warps=4, num_stages=3, resident=2),
)
# fp32 has no tensor cores that round as IEEE does: small tiles, for checking rather than for speed.
FP32_TILE = Tile(rows=16, keys=16, num_warps=4, num_stages=3, resident=2)


def choose_settings(shape: Shape, device: Device) -> Settings:
    """Settings for one call."""
    tile = choose_tile(shape, device)
    return Settings(tile, choose_splits(shape, tile, device))


def choose_tile(shape: Shape, device: Device) -> Tile:
    """The tile: by dtype, by how many rows there are, and by what fits."""
    if shape.element_size > 2:
        return FP32_TILE
    if shape.rows > FEW_ROWS:
        return _prefill_tile(shape, device)
    if shape.rows > 16:
        fits = [tile for tile in VERIFY_TILES if tile.shared_memory(shape.vector_bytes) <= device.shared_memory // 2]
        return fits[0] if fits else VERIFY_TILES[-1]
    return _decode_tile(shape, device)


def _decode_tile(shape: Shape, device: Device) -> Tile:
    """Few query rows: the time goes into reading K and V."""
    if shape.max_seqlen_k <= 128 and shape.vector_bytes <= 256 and shape.programs(16) <= 2 * device.multiprocessors:
        # All keys in one tile, and no queue for the multiprocessors: what counts is the time of a single step.
        return Tile(rows=16, keys=128, num_warps=4, num_stages=3, resident=2)
    keys = max(16, min(128, DECODE_KEY_BYTES // shape.vector_bytes))
    return Tile(rows=16, keys=keys, num_warps=4, num_stages=3, resident=4)


def _prefill_tile(shape: Shape, device: Device) -> Tile:
    """The largest tile that fits into shared memory, has rows to fill, and leaves no multiprocessor without work."""
    fits = [
        tile
        for tile in PREFILL_TILES
        if tile.shared_memory(shape.vector_bytes) <= device.shared_memory and tile.rows <= next_power_of_2(shape.rows)
    ]
    busy = [tile for tile in fits if shape.programs(tile.rows) >= device.multiprocessors]
    not_too_tall = [tile for tile in fits if tile.rows <= 128]
    return (busy or not_too_tall or [PREFILL_TILES[-1]])[0]


def choose_splits(shape: Shape, tile: Tile, device: Device) -> int:
    """How many programs share the keys of a sequence: the fewest that keep the multiprocessors about as busy as any.

    Programs run in waves of `resident` on each multiprocessor; what counts is how full the waves are. Each split leaves
    a partial result to combine, so one more must be worth it.
    """
    if shape.num_splits > 0:
        return shape.num_splits
    programs = max(shape.programs(tile.rows), 1)
    at_once = tile.resident * device.multiprocessors
    most = min(MAX_SPLITS, shape.max_seqlen_k // max(tile.keys, KEYS_PER_SPLIT_AND_ROW * tile.rows))

    def fullness(splits: int) -> float:
        return splits * programs / (-(-splits * programs // at_once) * at_once)

    # Splits are made of whole tiles: of 64 tiles, 48 splits would take two each, and 16 of them none.
    tiles = max(-(-shape.max_seqlen_k // tile.keys), 1)
    choices = [splits for splits in range(1, max(most, 1) + 1) if -(-tiles // -(-tiles // splits)) == splits]
    enough = GOOD_ENOUGH * max(map(fullness, choices))
    return next(splits for splits in choices if fullness(splits) >= enough)


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least `n` (1 for 0)."""
    return 1 << max(n - 1, 0).bit_length()
