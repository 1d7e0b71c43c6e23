from __future__ import annotations

from dataclasses import replace

import pytest

from pagedbench.layout.build import build_layout
from pagedbench.layout.regions import Region
from pagedbench.layout.variants import moved, same_slots, widened, with_padding
from pagedbench.tensors import prepare as prepare_module
from pagedbench.tensors.arena import GUARD_PATTERN
from pagedbench.tensors.fill import Fill
from pagedbench.tensors.inputs import random_inputs
from pagedbench.tensors.placed import placed
from pagedbench.tensors.prepare import image_of, prepare
from pagedbench.words import AttnPath
from tests.tensors.cells import POOL_LAYOUTS, docs_decode


def test_tables_are_made_once_a_layout() -> None:
    wanted = docs_decode()
    layout = build_layout(wanted)
    assert placed(wanted, layout, "cpu") is placed(wanted, layout, "cpu")
    assert placed(wanted, build_layout(wanted), "cpu") is not placed(wanted, layout, "cpu")


@pytest.mark.parametrize("name", POOL_LAYOUTS)
def test_a_call_from_an_image_has_the_memory_of_a_fresh_one(name: str) -> None:
    wanted = docs_decode(layout=POOL_LAYOUTS[name])
    layout = build_layout(wanted)
    inputs = random_inputs(wanted, layout, "cpu")
    fill = replace(Fill.poison("large"), out=0x4242)
    image = image_of(wanted, layout, inputs, fill, "cpu")
    fresh = prepare(wanted, layout, inputs, AttnPath.DECODE, "cpu", fill=fill)
    copied = prepare(wanted, layout, inputs, AttnPath.DECODE, "cpu", fill=fill, image=image)
    assert copied.arena.equals(fresh.arena)
    assert copied.expected().arena.equals(fresh.expected().arena)


def test_a_call_does_not_change_the_image_it_began_with() -> None:
    wanted = docs_decode()
    layout = build_layout(wanted)
    inputs, fill = random_inputs(wanted, layout, "cpu"), Fill.poison("nan")
    image = image_of(wanted, layout, inputs, fill, "cpu")
    assert image is not None
    before = image.clone()
    prepare(wanted, layout, inputs, AttnPath.DECODE, "cpu", fill=fill, image=image).arena.memory.zero_()
    assert image.equal(before)


def test_a_large_call_has_no_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare_module, "MOST_IMAGE_BYTES", 1024)
    wanted = docs_decode()
    layout = build_layout(wanted)
    inputs = random_inputs(wanted, layout, "cpu")
    assert image_of(wanted, layout, inputs, Fill.poison("nan"), "cpu") is None


def test_an_image_has_no_output_in_it() -> None:
    """Whatever the fill wants there: calls on one image differ in it."""
    wanted = docs_decode()
    layout = build_layout(wanted)
    inputs = random_inputs(wanted, layout, "cpu")
    image = image_of(wanted, layout, inputs, replace(Fill.poison("nan"), out=0), "cpu")
    plan = placed(wanted, layout, "cpu").plan
    start = plan.offsets["out"] // 2
    assert image is not None
    assert (image[start : start + plan.pieces["out"].nbytes // 2] == GUARD_PATTERN).all()


@pytest.mark.parametrize("poison", ["nan", "large", "none"])
def test_an_image_serves_other_tables_over_the_same_slots(poison: str) -> None:
    wanted = docs_decode()
    layout = build_layout(wanted)
    inputs, fill = random_inputs(wanted, layout, "cpu"), Fill.poison(poison)  # type: ignore[arg-type]
    image = image_of(wanted, layout, inputs, fill, "cpu")
    for other in (with_padding(layout, 0), with_padding(layout, "num_blocks"), widened(layout, 7)):
        assert same_slots(other, layout)
        fresh = prepare(wanted, other, inputs, AttnPath.DECODE, "cpu", fill=fill)
        copied = prepare(wanted, other, inputs, AttnPath.DECODE, "cpu", fill=fill, image=image)
        assert copied.arena.equals(fresh.arena)
        assert copied.call.block_table.equal(fresh.call.block_table)


def test_moved_blocks_and_a_block_more_are_other_slots() -> None:
    layout = build_layout(docs_decode())
    assert not same_slots(moved(layout, 1), layout)
    assert not same_slots(with_padding(layout, "decoy"), layout)


def test_a_fill_follows_the_table_where_unread_slots_differ_by_who_names_them() -> None:
    nan = float("nan")
    assert not Fill.poison("nan").follows_table
    assert not Fill.regions().follows_table
    assert Fill.regions(v={Region.TAIL: nan}).follows_table
    assert Fill.regions(k={Region.UNNEEDED: 1.0, Region.FREE: 2.0}).follows_table


def test_slots_of_a_call_are_its_own() -> None:
    """What a kernel does to them reaches no other call."""
    wanted = docs_decode()
    layout = build_layout(wanted)
    batch = placed(wanted, layout, "cpu")
    write, read = batch.slots()
    assert (write.tolist(), read.tolist()) == (layout.write_slots.tolist(), layout.read_slots.tolist())
    write.zero_()
    read.zero_()
    again = batch.slots()
    assert (again[0].tolist(), again[1].tolist()) == (layout.write_slots.tolist(), layout.read_slots.tolist())
