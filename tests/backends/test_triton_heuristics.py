"""The rule that chooses tiles and splits, on an H200's 132 multiprocessors."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pagedbench.backends.triton_kernels.heuristics import (
    MAX_SPLITS,
    PREFILL_TILES,
    Device,
    Shape,
    Tile,
    choose_settings,
    choose_splits,
    next_power_of_2,
)

H200 = Device(multiprocessors=132, shared_memory=227 << 10)
LAPTOP = Device(multiprocessors=20, shared_memory=99 << 10)
DECODE = Shape(
    batch=1, num_kv_heads=8, group=4, head_dim=128, head_dim_v=128, element_size=2, max_seqlen_q=1, max_seqlen_k=4096
)


def splits(batch: int, keys: int, device: Device = H200) -> int:
    return choose_settings(replace(DECODE, batch=batch, max_seqlen_k=keys), device).num_splits


def test_a_batch_that_fills_the_gpu_is_not_split() -> None:
    assert splits(64, 8192) == 1
    assert splits(256, 2048) == 1


def test_a_long_sequence_alone_is_split_until_the_gpu_is_full() -> None:
    tile = choose_settings(replace(DECODE, max_seqlen_k=131_072), H200).tile
    programs = 8 * splits(1, 131_072)
    assert 0.8 * tile.resident * 132 < programs <= tile.resident * 132


def test_a_wave_that_would_be_half_full_is_split() -> None:
    """40 sequences are 320 programs where 528 run at once; three splits are 960 in two waves: 91 % instead of 61 %."""
    assert splits(40, 8192) == 3


def test_short_keys_are_one_tile_and_never_split() -> None:
    settings = choose_settings(replace(DECODE, batch=3, max_seqlen_k=70), H200)
    assert (settings.tile.keys, settings.num_splits) == (128, 1)
    assert splits(1, 0) == 1


@pytest.mark.parametrize("keys", [64, 100, 1000, 4097, 131_072, 1_000_000])
def test_no_split_is_left_without_a_tile(keys: int) -> None:
    settings = choose_settings(replace(DECODE, max_seqlen_k=keys), H200)
    tiles = -(-keys // settings.tile.keys)
    share = -(-tiles // settings.num_splits)
    assert (settings.num_splits - 1) * share < tiles
    assert settings.num_splits <= MAX_SPLITS


def test_the_number_that_is_asked_for_is_taken() -> None:
    assert choose_settings(replace(DECODE, num_splits=7), H200).num_splits == 7


@pytest.mark.parametrize("device", [H200, LAPTOP])
@pytest.mark.parametrize("head_dim", [64, 80, 128, 192, 256])
@pytest.mark.parametrize("query", [1, 4, 16, 300, 8192])
def test_tiles_fit_into_shared_memory(query: int, head_dim: int, device: Device) -> None:
    shape = replace(DECODE, max_seqlen_q=query, max_seqlen_k=8192, head_dim=head_dim, head_dim_v=head_dim)
    tile = choose_settings(shape, device).tile
    assert tile.shared_memory(shape.vector_bytes) <= device.shared_memory


def test_rows_are_packed_and_padded() -> None:
    assert choose_settings(replace(DECODE, group=7), H200).tile.rows == 16
    assert choose_settings(replace(DECODE, group=8, max_seqlen_q=4), H200).tile.rows == 64
    assert choose_settings(replace(DECODE, max_seqlen_q=8192, max_seqlen_k=8192), H200).tile == PREFILL_TILES[0]


def test_registers_are_rationed_by_how_many_programs_share_them() -> None:
    assert Tile(rows=16, keys=64, num_warps=4, num_stages=3, resident=4).max_registers == 128
    assert Tile(rows=16, keys=64, num_warps=4, num_stages=3, resident=2).max_registers == 255, "the most there are"


def test_an_empty_batch_has_settings() -> None:
    assert choose_splits(replace(DECODE, batch=0), Tile(16, 64, 4, 3, 4), H200) >= 1


def test_next_power_of_2() -> None:
    assert [next_power_of_2(n) for n in (0, 1, 2, 3, 16, 17)] == [1, 1, 2, 4, 16, 32]
