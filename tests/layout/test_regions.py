"""Regions of the pool, slot by slot, against hand counts and a slow count from the definitions."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings

from pagedbench.layout.build import build_layout
from pagedbench.layout.regions import Region, slot_regions
from pagedbench.scenario.model import Scenario
from tests.layout.by_hand import keys_after, keys_by_definition, slot_by_definition
from tests.layout.scenarios import docs_decode, scenario, scenarios

V, H, N, T, U, X, F = (
    Region.VISIBLE,
    Region.HIDDEN,
    Region.NEW,
    Region.TAIL,
    Region.UNNEEDED,
    Region.TRASH,
    Region.FREE,
)


def blocks(batch: Scenario) -> list[list[int]]:
    return slot_regions(build_layout(batch)).reshape(-1, batch.cache.block_size).tolist()


def test_the_guides_decode_example() -> None:
    """Blocks 2, 0 1 and 3 5 6 with 30, 32 and 70 keys and one new token each; 4 and 7 belong to nobody."""
    assert blocks(docs_decode()) == [
        [V] * 32,
        [N] + [T] * 31,
        [V] * 30 + [N, T],
        [V] * 32,
        [F] * 32,
        [V] * 32,
        [V] * 6 + [N] + [T] * 25,
        [F] * 32,
    ]


def test_below_the_window() -> None:
    """Key 12 sees 9 to 12; keys 0 to 8 are hidden, also where their block is needed."""
    batch = scenario((1,), (12,), window_size=(3, 0), placement="sequential", num_blocks=4)
    assert blocks(batch) == [[H] * 4, [H] * 4, [H, V, V, V], [N, T, T, T]]


def test_a_sequence_without_query_tokens_hides_its_keys() -> None:
    assert blocks(scenario((0,), (3,), placement="sequential", num_blocks=1)) == [[H, H, H, T]]


def test_trash_and_decoy() -> None:
    batch = scenario(
        (1, 1), (2, 0), padding_rows=1, trash_block=True, padding="decoy", placement="sequential", num_blocks=4
    )
    assert blocks(batch) == [[V, V, N, T], [F] * 4, [U] * 4, [X] * 4]


def test_padding_with_a_block_in_use_does_not_make_it_unneeded() -> None:
    assert blocks(docs_decode(padding=0))[0] == [V] * 32


@settings(max_examples=150, deadline=None)
@given(scenarios())
def test_agrees_with_the_definitions_slot_by_slot(batch: Scenario) -> None:
    layout = build_layout(batch)
    size, table = batch.cache.block_size, layout.block_table.tolist()
    keys = keys_by_definition(batch)
    expected = [F] * (layout.num_blocks * size)
    for row in table:
        for entry in row:
            if 0 <= entry < layout.num_blocks:
                expected[entry * size : (entry + 1) * size] = [U] * size
    for sequence, count in enumerate(keys_after(batch)):
        for column in range(-(-count // size)):
            entry = table[sequence][column]
            expected[entry * size : (entry + 1) * size] = [T] * size
    for sequence, count in enumerate(keys_after(batch)):
        for key in range(count):
            expected[slot_by_definition(table, sequence, key, size)] = H
    for (sequence, _), seen in keys.seen.items():
        for key in seen:
            expected[slot_by_definition(table, sequence, key, size)] = V
    for sequence, written in keys.written.items():
        for key in written:
            expected[slot_by_definition(table, sequence, key, size)] = N
    if layout.trash_block is not None:
        expected[layout.trash_block * size : (layout.trash_block + 1) * size] = [X] * size
    assert slot_regions(layout).tolist() == expected
    assert slot_regions(layout).dtype == np.uint8
