from __future__ import annotations

from dataclasses import replace

import pytest

from pagedbench.layout.build import build_layout
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
