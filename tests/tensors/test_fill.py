from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pagedbench.layout.batch import BatchLayout
from pagedbench.layout.build import build_layout
from pagedbench.layout.regions import Region, slot_regions
from pagedbench.scenario.model import Inputs, PoolLayout, Scenario
from pagedbench.tensors.bits import LARGE, bits
from pagedbench.tensors.fill import Fill, FillValue, fill_pool, refill
from pagedbench.tensors.inputs import LogicalInputs, random_inputs
from pagedbench.tensors.pool import Pool, allocate
from pagedbench.tensors.prepare import pool_shape, prepare
from pagedbench.words import AttnPath
from tests.tensors.cells import POOL_LAYOUTS, docs_decode, scenario


def filled(wanted: Scenario, fill: Fill) -> tuple[Pool, LogicalInputs, BatchLayout]:
    layout = build_layout(wanted)
    inputs = random_inputs(wanted, layout, "cpu")
    pool = allocate(pool_shape(wanted, layout), "cpu")
    fill_pool(pool, fill, inputs, layout, wanted.inputs)
    return pool, inputs, layout


def rows_in(cache: torch.Tensor, layout: BatchLayout, region: Region) -> torch.Tensor:
    return cache.flatten(0, 1)[torch.from_numpy(slot_regions(layout) == region)]


@pytest.mark.parametrize("name", POOL_LAYOUTS)
def test_cached_keys_stand_where_the_table_says_and_nan_everywhere_else(name: str) -> None:
    wanted = docs_decode(layout=POOL_LAYOUTS[name])
    pool, inputs, _ = filled(wanted, Fill.poison("nan"))
    # Sequence 1 has 32 keys in block 0; sequence 2 70 keys in blocks 3, 5, 6. Logical keys: 31 + 33 + 71.
    assert torch.equal(pool.k[0], inputs.k[31:63])
    assert torch.equal(pool.v[5], inputs.v[64 + 32 : 64 + 64])
    assert torch.equal(pool.v[6, :6], inputs.v[128:134])
    assert pool.v[6, 6:].isnan().all(), "the new token's slot and the tail"
    assert pool.k[[1, 4, 7]].isnan().all(), "the new block and the free ones"


@pytest.mark.parametrize(("kind", "value"), [("inf", float("inf")), ("large", LARGE[torch.bfloat16])])
def test_other_poisons(kind: str, value: float) -> None:
    pool, _, layout = filled(docs_decode(), Fill.poison(kind))  # type: ignore[arg-type]
    expected = torch.tensor(value, dtype=torch.bfloat16)
    for region in (Region.NEW, Region.TAIL, Region.FREE):
        assert (rows_in(pool.k, layout, region) == expected).all()


def test_without_poison_there_are_decoys_that_look_like_keys() -> None:
    pool, _, layout = filled(docs_decode(), Fill.poison("none"))
    for cache in (pool.k, pool.v):
        free = rows_in(cache, layout, Region.FREE).float()
        assert free.isfinite().all()
        assert free.std() == pytest.approx(1.0, abs=0.1)


def test_keys_below_every_window_are_large_under_nan_and_themselves_without_poison() -> None:
    wanted = scenario((1,), (70,), attention={"window_size": (9, 0)})
    pool, inputs, layout = filled(wanted, Fill.poison("nan"))
    hidden = rows_in(pool.v, layout, Region.HIDDEN)
    assert len(hidden) == 61, "70 + 1 keys, of which the last ten are seen"
    assert (hidden == torch.tensor(LARGE[torch.bfloat16], dtype=torch.bfloat16)).all()
    pool, inputs, layout = filled(wanted, Fill.poison("none"))
    keys = pool.v.flatten(0, 1)[torch.from_numpy(layout.read_slots[:70])]
    assert torch.equal(keys, inputs.v[:70])


def test_regions_are_filled_apart_and_k_and_v_too() -> None:
    fill = Fill.regions(k={Region.TAIL: float("nan")}, v={Region.FREE: 7.0, Region.NEW: "large"})
    pool, _, layout = filled(docs_decode(), fill)
    assert rows_in(pool.k, layout, Region.TAIL).isnan().all()
    assert rows_in(pool.v, layout, Region.TAIL).isfinite().all()
    assert rows_in(pool.k, layout, Region.FREE).isfinite().all()
    assert (rows_in(pool.v, layout, Region.FREE) == 7.0).all()
    assert (rows_in(pool.v, layout, Region.NEW) > 1e29).all()


def test_a_fill_is_the_same_bits_each_time() -> None:
    for poison in ("none", "nan", "large"):
        first, again = (filled(docs_decode(), Fill.poison(poison))[0] for _ in range(2))
        assert torch.equal(bits(first.k), bits(again.k))
        assert torch.equal(bits(first.v), bits(again.v))


def test_what_a_sequence_shares_or_reuses_is_its_visible_owner_s() -> None:
    # Sequence 0 no longer needs its first block (window), which sequence 1 has by now.
    cache = {"block_table": ((0, 1), (0, -1)), "num_blocks": 3, "block_size": 4, "max_blocks_per_seq": 2}
    wanted = scenario((1, 1), (5, 2), cache=cache, attention={"window_size": (1, 0)})
    pool, inputs, layout = filled(replace(wanted, inputs=Inputs(poison="none")), Fill.poison("none"))
    # Logical keys 6, 7, 8 are sequence 1's; it sees 7 and 8, and 8 is the new one.
    assert torch.equal(pool.k[0, 1], inputs.k[7])
    assert layout.read_slots[7] == 1


def test_an_fp8_pool_takes_every_fill() -> None:
    wanted = scenario(kv_dtype="float8_e4m3fn", cache={"layout": PoolLayout(form="interleaved-kv")})
    for poison in ("none", "nan", "large"):
        pool, inputs, layout = filled(wanted, Fill.poison(poison))  # type: ignore[arg-type]
        at = torch.from_numpy(layout.read_slots[:30])
        assert torch.equal(bits(pool.k).flatten(0, 1)[at], bits(inputs.k)[:30])


def test_infinity_in_fp8_which_has_none_is_nan() -> None:
    wanted = scenario(kv_dtype="float8_e4m3fn")
    pool, _, layout = filled(wanted, Fill.poison("inf"))
    assert rows_in(pool.k.float(), layout, Region.FREE).isnan().all()


@pytest.mark.parametrize("value", ["large", float("nan"), float("inf")])
def test_numbers_put_over_decoys_give_the_pool_that_was_filled_with_them(value: FillValue) -> None:
    wanted = docs_decode()
    layout = build_layout(wanted)
    inputs = random_inputs(wanted, layout, "cpu")
    fill = Fill.regions(k={Region.TAIL: value, Region.FREE: value}, v={Region.NEW: value})
    fresh = prepare(wanted, layout, inputs, AttnPath.DECODE, "cpu", fill=fill)
    decoys = prepare(wanted, layout, inputs, AttnPath.DECODE, "cpu", fill=Fill.regions())
    refill(decoys.pool, fill, layout)
    for ours, theirs in ((decoys.pool.k, fresh.pool.k), (decoys.pool.v, fresh.pool.v)):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
