from __future__ import annotations

import pytest
import torch

from pagedbench.scenario.model import PoolLayout
from pagedbench.tensors.bits import bits
from pagedbench.tensors.pool import LAYERS, Pool, PoolShape, allocate, placings, put_slots, take_slots
from tests.tensors.cells import POOL_LAYOUTS

BLOCKS, SIZE, HEADS, DIM = 5, 32, 2, 16


def pool_of(layout: PoolLayout, dtype: torch.dtype = torch.bfloat16, blocks: int = BLOCKS) -> Pool:
    return allocate(PoolShape(blocks, SIZE, HEADS, DIM, DIM, dtype, layout), "cpu")


@pytest.mark.parametrize("name", POOL_LAYOUTS)
def test_views_are_nhd_whatever_memory_has(name: str) -> None:
    pool = pool_of(POOL_LAYOUTS[name])
    assert pool.k.shape == pool.v.shape == (BLOCKS, SIZE, HEADS, DIM)


def strides(layout: PoolLayout) -> tuple[tuple[int, ...], tuple[int, ...]]:
    pool = pool_of(layout)
    return pool.k.stride(), pool.v.stride()


def test_strides_are_those_that_engines_have() -> None:
    block = SIZE * HEADS * DIM
    assert strides(POOL_LAYOUTS["contiguous NHD"])[0] == (block, HEADS * DIM, DIM, 1)
    assert strides(POOL_LAYOUTS["contiguous HND"])[0] == (block, DIM, SIZE * DIM, 1)
    # One tensor (num_blocks, 2, block_size, heads, dim): K and V of a block are neighbours.
    assert strides(POOL_LAYOUTS["interleaved NHD"]) == ((2 * block, HEADS * DIM, DIM, 1),) * 2
    assert strides(POOL_LAYOUTS["layers NHD"])[0] == (LAYERS * block, HEADS * DIM, DIM, 1)
    assert strides(POOL_LAYOUTS["strided NHD"]) == ((1288, 40, DIM, 1), (1552, 48, DIM, 1))
    assert strides(POOL_LAYOUTS["strided HND"])[0] == (1536, 24, SIZE * 24, 1)


@pytest.mark.parametrize("name", POOL_LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float8_e4m3fn])
def test_what_is_put_into_slots_is_taken_from_them_and_nothing_else_changes(name: str, dtype: torch.dtype) -> None:
    pool = pool_of(POOL_LAYOUTS[name], dtype)
    slots = torch.tensor([0, 159, 31, 32, 77])
    rows = torch.randn(5, HEADS, DIM).to(dtype)
    v_before, guard_units = bits(pool.v).clone(), int((pool.arena.memory == 0x7FFF).sum())
    put_slots(pool.k, slots, rows)
    assert torch.equal(bits(take_slots(pool.k, slots)), bits(rows))
    assert torch.equal(bits(pool.v), v_before)
    changed = guard_units - int((pool.arena.memory == 0x7FFF).sum())
    assert changed <= rows.numel() * dtype.itemsize // 2


@pytest.mark.parametrize("name", POOL_LAYOUTS)
def test_a_slot_is_block_times_size_plus_offset(name: str) -> None:
    pool = pool_of(POOL_LAYOUTS[name])
    rows = torch.arange(BLOCKS * SIZE).view(-1, 1, 1).expand(-1, HEADS, DIM).to(torch.bfloat16)
    put_slots(pool.v, torch.arange(BLOCKS * SIZE), rows)
    assert pool.v[3, 7, 1, 5] == 3 * SIZE + 7


@pytest.mark.parametrize("name", POOL_LAYOUTS)
def test_a_pool_without_blocks_is_legal(name: str) -> None:
    pool = pool_of(POOL_LAYOUTS[name], blocks=0)
    assert pool.k.shape[0] == 0
    assert take_slots(pool.k, torch.zeros(0, dtype=torch.int64)).shape == (0, HEADS, DIM)


@pytest.mark.parametrize("name", POOL_LAYOUTS)
def test_views_stay_inside_their_piece(name: str) -> None:
    shape = PoolShape(BLOCKS, SIZE, HEADS, DIM, DIM, torch.bfloat16, POOL_LAYOUTS[name])
    for placing in placings(shape):
        last = sum((n - 1) * s for n, s in zip(shape.view_shape(DIM), placing.stride, strict=True))
        assert placing.offset + last < placing.span


def test_rows_of_another_dtype_or_shape_are_refused() -> None:
    pool = pool_of(PoolLayout())
    with pytest.raises(ValueError, match="do not fit"):
        put_slots(pool.k, torch.tensor([0]), torch.zeros(1, HEADS, DIM))
    with pytest.raises(ValueError, match="do not fit"):
        put_slots(pool.k, torch.tensor([0]), torch.zeros(1, HEADS, DIM + 1, dtype=torch.bfloat16))
