"""The paged K and V pool inside an arena: its strides for every `PoolLayout`, and access to it by slot.

K and V are NHD views `(num_blocks, block_size, num_kv_heads, head_dim[_v])` whatever order memory has. It does not
decide what stands in which slot: that is `fill.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from pagedbench.scenario.model import PoolLayout
from pagedbench.tensors.arena import Arena, Piece, plan_arena
from pagedbench.tensors.bits import bits

LAYERS = 3
"""Layers in a layer-strided pool; the call uses the middle one, so that there is a neighbour on either side."""

_MIN_GUARD = 4096
_MAX_GUARD = 1 << 20


@dataclass(frozen=True)
class PoolShape:
    """Sizes of the pool and the way it lies in memory. Strides are in elements."""

    num_blocks: int
    block_size: int
    num_kv_heads: int
    head_dim: int
    head_dim_v: int
    dtype: torch.dtype
    layout: PoolLayout

    @property
    def slots(self) -> int:
        """Slots of the pool."""
        return self.num_blocks * self.block_size

    @cached_property
    def placings(self) -> tuple[Placing, Placing]:
        """`placings` of this shape, found once: each call's memory asks."""
        return placings(self)

    def view_shape(self, head_dim: int) -> tuple[int, int, int, int]:
        """The shape of a K or V view."""
        return (self.num_blocks, self.block_size, self.num_kv_heads, head_dim)


@dataclass(frozen=True)
class Placing:
    """Where K or V lies: the piece of the arena, its first element there, NHD strides, and the elements it spans."""

    piece: str
    offset: int
    stride: tuple[int, int, int, int]
    span: int


def placings(shape: PoolShape) -> tuple[Placing, Placing]:
    """How K and V lie in memory, by the form of the layout."""
    form = shape.layout.form
    k_block, v_block = _block_elements(shape, shape.head_dim), _block_elements(shape, shape.head_dim_v)
    if form == "interleaved-kv":
        both = k_block + v_block
        span = shape.num_blocks * both
        return (
            Placing("kv_cache", 0, _dense(shape, shape.head_dim, both), span),
            Placing("kv_cache", k_block, _dense(shape, shape.head_dim_v, both), span),
        )
    if form == "layer-strided":
        return (
            _layered("k_cache", shape, shape.head_dim, k_block),
            _layered("v_cache", shape, shape.head_dim_v, v_block),
        )
    return (
        _apart("k_cache", shape, shape.head_dim, shape.layout.k_stride),
        _apart("v_cache", shape, shape.head_dim_v, shape.layout.v_stride),
    )


def _block_elements(shape: PoolShape, head_dim: int) -> int:
    return shape.block_size * shape.num_kv_heads * head_dim


def _dense(shape: PoolShape, head_dim: int, block_stride: int) -> tuple[int, int, int, int]:
    if shape.layout.order == "HND":
        return (block_stride, head_dim, shape.block_size * head_dim, 1)
    return (block_stride, shape.num_kv_heads * head_dim, head_dim, 1)


def _layered(piece: str, shape: PoolShape, head_dim: int, block: int) -> Placing:
    stride = _dense(shape, head_dim, LAYERS * block)
    return Placing(piece, (LAYERS // 2) * block, stride, shape.num_blocks * LAYERS * block)


def _apart(piece: str, shape: PoolShape, head_dim: int, given: tuple[int, int] | None) -> Placing:
    if given is None:
        block = _block_elements(shape, head_dim)
        return Placing(piece, 0, _dense(shape, head_dim, block), shape.num_blocks * block)
    block, token = given
    head = shape.block_size * token if shape.layout.order == "HND" else head_dim
    stride = (block, token, head, 1)
    last = [size - 1 for size in shape.view_shape(head_dim)]
    used = sum(n * s for n, s in zip(last, stride, strict=True)) + 1 if shape.num_blocks else 0
    return Placing(piece, 0, stride, max(used, shape.num_blocks * block))


def pool_pieces(shape: PoolShape) -> list[Piece]:
    """The arena pieces that hold K and V, one block of guard on either side (4 KiB to 1 MiB)."""
    widest = max(shape.head_dim, shape.head_dim_v)
    guard = min(max(_block_elements(shape, widest) * shape.dtype.itemsize, _MIN_GUARD), _MAX_GUARD)
    spans = {placing.piece: placing.span for placing in shape.placings}
    return [Piece(name, shape.dtype, span, guard) for name, span in spans.items()]


class Pool:
    """The pool of one arena: `k`, `v` are NHD views into it."""

    def __init__(self, arena: Arena, shape: PoolShape) -> None:
        self.arena = arena
        self.shape = shape
        at_k, at_v = shape.placings
        self.k = arena.strided(at_k.piece, shape.view_shape(shape.head_dim), at_k.stride, at_k.offset)
        self.v = arena.strided(at_v.piece, shape.view_shape(shape.head_dim_v), at_v.stride, at_v.offset)


def allocate(shape: PoolShape, device: torch.device | str) -> Pool:
    """A pool in an arena of its own, holding the guard pattern (NaN) everywhere."""
    return Pool(Arena(plan_arena(pool_pieces(shape)), device), shape)


def put_slots(cache: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> None:
    """Write `rows` `(n, num_kv_heads, head_dim)` into the slots `(n,)` int64 of a view, bit for bit, any strides."""
    _check_rows(cache, rows)
    raw = bits(cache)
    if raw.is_contiguous():  # one kernel, as an engine writes; slots need no splitting into block and offset
        raw.flatten(0, 1).index_copy_(0, slots, bits(rows).expand(len(slots), *rows.shape[1:]))
        return
    block, offset = _split(slots, cache.shape[1])
    raw[block, offset] = bits(rows)


def take_slots(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """The rows `(n, num_kv_heads, head_dim)` of the slots `(n,)` int64 of a view, dense, bit for bit, any strides."""
    raw = bits(cache)
    if raw.is_contiguous():
        return raw.flatten(0, 1).index_select(0, slots).view(cache.dtype)
    block, offset = _split(slots, cache.shape[1])
    return raw[block, offset].view(cache.dtype)


def _split(slots: torch.Tensor, block_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    block = torch.div(slots, block_size, rounding_mode="floor")
    return block, slots - block * block_size


def _check_rows(cache: torch.Tensor, rows: torch.Tensor) -> None:
    if rows.dtype != cache.dtype or rows.shape[1:] != cache.shape[2:]:
        raise ValueError(
            f"rows of {tuple(rows.shape[1:])} {rows.dtype} do not fit a cache of {tuple(cache.shape[2:])} {cache.dtype}"
        )
