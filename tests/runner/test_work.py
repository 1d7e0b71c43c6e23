"""The bytes and FLOPs of a batch, against hand counts."""

from __future__ import annotations

from pagedbench.layout.build import build_layout
from pagedbench.runner.work import visible_slots, work_of
from pagedbench.scenario.loader import load_scenarios, loads
from pagedbench.scenario.model import Scenario

TEMPLATE = """
name: small
batch: {{query_lens: {q}, cached_lens: {k}, append: {append}{batch}}}
cache: {{block_size: 4{cache}}}
attention: {{num_heads: 4, num_kv_heads: 2, head_dim: 16, causal: true{attention}}}
"""


def scenario(q: list[int], k: list[int], append: str = "true", **extra: str) -> Scenario:
    more = {name: f", {extra[name]}" if name in extra else "" for name in ("batch", "cache", "attention")}
    return loads(TEMPLATE.format(q=q, k=k, append=append, **more))[0]


def test_the_documented_decode_example() -> None:
    """31 + 33 + 71 keys, 3 of them written too; 8 KV heads of 128 + 128; 32 heads; 2 bytes each."""
    example = load_scenarios(["docs-decode"])[0]
    work = work_of(example.attention, build_layout(example))
    assert work.bytes == (135 + 3) * 8 * 256 * 2 + 2 * 3 * 32 * 128 * 2
    assert work.flops == 2 * 256 * 135 * 32


def test_nothing_is_written_without_append() -> None:
    one = scenario([1], [5], append="false")
    assert work_of(one.attention, build_layout(one)).bytes == 5 * 2 * 32 * 2 + 2 * 4 * 16 * 2


def test_a_window_hides_keys_from_every_row() -> None:
    """Two query tokens at positions 8 and 9, window 3: keys 6 to 9 are seen by one or both."""
    windowed = scenario([2], [8], attention="window: 3")
    assert visible_slots(build_layout(windowed)) == 4
    assert work_of(windowed.attention, build_layout(windowed)).flops == 2 * 32 * (3 + 3) * 4


def test_causal_rows_without_keys_cost_nothing() -> None:
    """Five query tokens, two keys, bottom-right: the last two rows see one and two keys."""
    blind = scenario([5], [2], append="false")
    assert work_of(blind.attention, build_layout(blind)).flops == 2 * 32 * (1 + 2) * 4


def test_shared_blocks_count_once_in_bytes_and_for_each_row_in_flops() -> None:
    shared = scenario([1, 1], [8, 8], append="false", cache="block_table: [[0, 1], [0, 2]], num_blocks: 3")
    assert visible_slots(build_layout(shared)) == 12
    assert work_of(shared.attention, build_layout(shared)).flops == 2 * 32 * 16 * 4


def test_padding_rows_do_not_count() -> None:
    plain, padded = scenario([1], [5]), scenario([1], [5], batch="padding_rows: 2", cache="trash_block: true")
    assert work_of(plain.attention, build_layout(plain)) == work_of(padded.attention, build_layout(padded))
