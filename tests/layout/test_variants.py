"""Variants of a layout keep the batch and change only where it lies."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedbench.layout.build import build_layout
from pagedbench.layout.regions import Region, slot_regions
from pagedbench.layout.variants import moved, widened, with_padding
from pagedbench.scenario.model import Scenario
from tests.layout.scenarios import docs_decode, scenario, scenarios


@settings(max_examples=100, deadline=None)
@given(scenarios(), st.integers(0, 5))
def test_moving_renames_every_block_the_same_way_everywhere(batch: Scenario, seed: int) -> None:
    before = build_layout(batch)
    after = moved(before, seed)
    size = before.block_size
    renamed = {b // size: a // size for b, a in zip(before.read_slots.tolist(), after.read_slots.tolist(), strict=True)}
    assert all(old != new for old, new in renamed.items())
    assert len(set(renamed.values())) == len(renamed)
    assert after.write_slots.tolist() == [renamed[s // size] * size + s % size for s in before.write_slots.tolist()]
    count = lambda layout: np.bincount(slot_regions(layout), minlength=len(Region)).tolist()  # noqa: E731
    assert count(after) == count(before)


def test_shared_blocks_stay_shared() -> None:
    layout = moved(build_layout(scenario((1, 1), (4, 4), placement="shared-prefix")), 3)
    assert layout.block_table[0, 0] == layout.block_table[1, 0]


def test_the_trash_block_moves_along() -> None:
    layout = moved(build_layout(scenario((1, 1), (4, 0), padding_rows=1, trash_block=True)), 3)
    assert (layout.block_table[1] == layout.trash_block).all()


def test_minus_one_stays_minus_one() -> None:
    assert (moved(build_layout(docs_decode()), 1).block_table == -1).sum() == 6


@pytest.mark.parametrize(("kind", "stands"), [(-1, -1), (0, 0), ("num_blocks", 8), ("decoy", 8), (5, 5)])
def test_padding_replaces_the_entries_without_a_key(kind: int | str, stands: int) -> None:
    layout = with_padding(build_layout(docs_decode()), kind)  # type: ignore[arg-type]
    assert layout.block_table.tolist() == [[2, stands, stands, stands], [0, 1, stands, stands], [3, 5, 6, stands]]
    assert layout.read_slots.tolist() == build_layout(docs_decode()).read_slots.tolist()


def test_a_decoy_gets_a_block_of_its_own() -> None:
    layout = with_padding(build_layout(docs_decode()), "decoy")
    assert layout.num_blocks == 9
    assert (slot_regions(layout)[8 * 32 :] == Region.UNNEEDED).all()


def test_widening_adds_columns_that_nobody_needs() -> None:
    layout = widened(build_layout(docs_decode()), 6)
    assert layout.block_table[2].tolist() == [3, 5, 6, -1, -1, -1]
    assert layout.needed_blocks[2].tolist() == [True, True, True, False, False, False]


def test_widening_does_not_narrow() -> None:
    with pytest.raises(ValueError, match="4 columns already"):
        widened(build_layout(docs_decode()), 3)
