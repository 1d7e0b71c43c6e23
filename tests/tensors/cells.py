"""Scenarios made in code for the tests of tensors, oracle and checks, and the cells made of them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from pagedbench.scenario.model import Attention, Batch, Cache, Distribution, Inputs, Override, PoolLayout, Scenario

DOCS_TABLE = ((2, -1, -1, -1), (0, 1, -1, -1), (3, 5, 6, -1))


def scenario(
    query_lens: tuple[int, ...] = (1, 1, 1),
    cached_lens: tuple[int, ...] = (30, 32, 70),
    *,
    append: bool = True,
    padding_rows: int = 0,
    heads: tuple[int, int] = (4, 2),
    head_dim: int = 16,
    head_dim_v: int | None = None,
    dtype: str = "bfloat16",
    kv_dtype: str | None = None,
    cache: dict[str, object] | None = None,
    attention: dict[str, object] | None = None,
    inputs: Inputs | None = None,
    override: Override | None = None,
    steps: int = 1,
) -> Scenario:
    """A small scenario; the defaults are the guide's decode batch with few and small heads."""
    mathematics = Attention(
        num_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=head_dim,
        head_dim_v=head_dim_v or head_dim,
        dtype=dtype,  # type: ignore[arg-type]
        q_dtype=dtype,  # type: ignore[arg-type]
        kv_dtype=kv_dtype or dtype,  # type: ignore[arg-type]
        softmax_scale=head_dim**-0.5,
    )
    return Scenario(
        name="test",
        about="made in code",
        batch=Batch(query_lens, cached_lens, append, padding_rows),
        cache=Cache(**{"block_size": 32, **(cache or {})}),  # type: ignore[arg-type]
        attention=replace(mathematics, **(attention or {})),  # type: ignore[arg-type]
        inputs=inputs or Inputs(),
        override=override or Override(),
        steps=steps,
    )


def docs_decode(**cache: object) -> Scenario:
    """The guide's decode example with its table."""
    fields = {"block_size": 32, "max_blocks_per_seq": 4, "num_blocks": 8, "block_table": DOCS_TABLE, **cache}
    return scenario(cache=fields)


POOL_LAYOUTS = {
    "contiguous NHD": PoolLayout(),
    "contiguous HND": PoolLayout(order="HND"),
    "interleaved NHD": PoolLayout(form="interleaved-kv"),
    "interleaved HND": PoolLayout(form="interleaved-kv", order="HND"),
    "layers NHD": PoolLayout(form="layer-strided"),
    "layers HND": PoolLayout(form="layer-strided", order="HND"),
    "strided NHD": PoolLayout(form="strided", k_stride=(32 * 40 + 8, 40), v_stride=(32 * 48 + 16, 48)),
    "strided HND": PoolLayout(form="strided", order="HND", k_stride=(2 * 32 * 24, 24), v_stride=(2 * 32 * 16, 16)),
}
"""For blocks of 32 tokens of two KV heads of 16."""


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """Small batches of every kind: empty sequences, more queries than keys, windows, softcap, sinks, GQA."""
    size = draw(st.integers(0, 4))
    causal = draw(st.booleans())
    group, kv_heads = draw(st.sampled_from([(1, 1), (1, 2), (3, 1), (2, 2)]))
    left, right = draw(st.integers(-1, 9)), 0 if causal else draw(st.integers(-1, 9))
    lengths = st.integers(0, 12)
    return scenario(
        tuple(draw(st.lists(st.integers(0, 7), min_size=size, max_size=size))),
        tuple(draw(st.lists(lengths, min_size=size, max_size=size))),
        append=draw(st.booleans()),
        heads=(group * kv_heads, kv_heads),
        head_dim=8,
        head_dim_v=draw(st.sampled_from([8, 16])),
        cache={"block_size": draw(st.sampled_from([1, 3, 4, 16]))},
        attention={
            "causal": causal,
            "window_size": (left, right if left != -1 else -1) if not causal else (left, -1 if left == -1 else 0),
            "softcap": draw(st.sampled_from([None, 1.5])),
            "sinks": draw(st.sampled_from([None, tuple(0.25 * h - 0.5 for h in range(group * kv_heads))])),
            "softmax_scale": draw(st.sampled_from([8**-0.5, 1.0])),
        },
        inputs=Inputs(seed=draw(st.integers(0, 99)), q=Distribution(), k=Distribution(), v=Distribution()),
    )
