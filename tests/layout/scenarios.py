"""Scenarios made in code for the tests of `layout/`, and a strategy that draws them at random."""

from __future__ import annotations

from hypothesis import strategies as st

from pagedbench.scenario.model import Attention, Batch, Cache, Inputs, Scenario


def attention(*, causal: bool = True, window_size: tuple[int, int] = (-1, -1)) -> Attention:
    return Attention(num_heads=8, num_kv_heads=2, head_dim=64, head_dim_v=64, causal=causal, window_size=window_size)


def scenario(
    query_lens: tuple[int, ...],
    cached_lens: tuple[int, ...],
    *,
    append: bool = True,
    padding_rows: int = 0,
    causal: bool = True,
    window_size: tuple[int, int] = (-1, -1),
    seed: int = 0,
    **cache: object,
) -> Scenario:
    cache.setdefault("block_size", 4)
    return Scenario(
        name="test",
        about="made in code",
        batch=Batch(query_lens, cached_lens, append, padding_rows),
        cache=Cache(**cache),  # type: ignore[arg-type]
        attention=attention(causal=causal, window_size=window_size),
        inputs=Inputs(seed=seed),
    )


def docs_decode(**cache: object) -> Scenario:
    """The guide's decode example: queries 1, 1, 1; keys 30, 32, 70; block size 32; four blocks a sequence."""
    table = ((2, -1, -1, -1), (0, 1, -1, -1), (3, 5, 6, -1))
    fields = {"block_size": 32, "max_blocks_per_seq": 4, "num_blocks": 8, "block_table": table, **cache}
    return scenario((1, 1, 1), (30, 32, 70), **fields)


def docs_varlen(*, append: bool) -> Scenario:
    """The guide's varlen example: queries 10, 3, 1; keys 0, 1, 7."""
    return scenario((10, 3, 1), (0, 1, 7), append=append, block_size=32)


PLACEMENTS = ("shuffled", "sequential", "reversed", "interleaved", "fragmented", "high-ids")


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """Small batches of every kind that the language can say without a table of its own."""
    size = draw(st.integers(0, 5))
    causal = draw(st.booleans())
    ends = st.integers(-1, 9)
    return scenario(
        tuple(draw(st.lists(st.integers(0, 6), min_size=size, max_size=size))),
        tuple(draw(st.lists(st.integers(0, 14), min_size=size, max_size=size))),
        append=draw(st.booleans()),
        causal=causal,
        window_size=(draw(ends), 0 if causal else draw(ends)),
        seed=draw(st.integers(0, 3)),
        block_size=draw(st.integers(1, 5)),
        placement=draw(st.sampled_from(PLACEMENTS)),
        max_blocks_per_seq=draw(st.sampled_from([None, "tight"])),
        padding=draw(st.sampled_from([-1, 0, "num_blocks", "decoy", 12345])),
        trash_block=draw(st.booleans()),
    )
