"""The features that backends are asked about: each is one tiny scenario, and its question is «can you make this call?».

The same scenarios are run by `probe.py`, so that what is claimed and what is tried cannot drift apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from pagedbench.backends.base import Backend
from pagedbench.errors import said
from pagedbench.layout.build import build_layout
from pagedbench.scenario.model import AUTO_SPLITS, Attention, Batch, Cache, PoolLayout, Scenario
from pagedbench.tensors.prepare import call_spec
from pagedbench.words import AttnPath

Change = Callable[[Scenario], Scenario]
FP8 = "float8_e4m3fn"

# What every other feature is a change of: ordinary enough for any backend (blocks of 256 suit all of them, and as many
# KV heads as heads: with fewer, and one token each, FlashAttention-2 returns a wrong LSE through a block table).
ORDINARY = Scenario(
    name="feature",
    about="Two sequences, one new token each.",
    batch=Batch((1, 1), (37, 70)),
    cache=Cache(block_size=256, num_blocks=4),
    attention=Attention(num_heads=8, num_kv_heads=8, head_dim=64, head_dim_v=64, softmax_scale=64**-0.5),
)


@dataclass(frozen=True)
class Feature:
    """A name for the table, and the scenario that needs the feature; `hint` if ignoring it leaves the numbers right."""

    name: str
    scenario: Scenario
    hint: bool = False

    def paths(self, backend: Backend) -> tuple[AttnPath, ...]:
        """The backend's paths on which the feature makes sense: decode is for equal query lengths."""
        ragged = len(set(self.scenario.batch.query_lens)) > 1
        return tuple(path for path in backend.paths if not (ragged and path is AttnPath.DECODE))


def _batch(queries: tuple[int, ...], cached: tuple[int, ...], *, append: bool = True) -> Scenario:
    return replace(ORDINARY, batch=Batch(queries, cached, append))


def _cache(**changes: Any) -> Scenario:
    return replace(ORDINARY, cache=replace(ORDINARY.cache, num_blocks=None, **changes))


def _attention(**changes: Any) -> Scenario:
    return replace(ORDINARY, attention=replace(ORDINARY.attention, **changes))


def _dtype(dtype: str) -> Scenario:
    return _attention(dtype=dtype, q_dtype=dtype, kv_dtype=dtype)


def _head_dim(head_dim: int, head_dim_v: int | None = None) -> Scenario:
    return _attention(head_dim=head_dim, head_dim_v=head_dim_v or head_dim, softmax_scale=head_dim**-0.5)


def _features() -> dict[str, Scenario]:
    scaled = {"k_scale": 0.5, "v_scale": 2.0}
    return {
        "bfloat16": _dtype("bfloat16"),
        "float16": _dtype("float16"),
        "float32": _dtype("float32"),
        "fp8 K and V": _attention(kv_dtype=FP8, **scaled),
        "fp8 q, K and V": _attention(q_dtype=FP8, kv_dtype=FP8, **scaled),
        **{f"block size {size}": _cache(block_size=size) for size in (1, 3, 16, 48, 64, 128, 256)},
        "HND pool": _cache(layout=PoolLayout(order="HND")),
        "interleaved K and V": _cache(layout=PoolLayout(form="interleaved-kv")),
        "4 query tokens each": _batch((4, 4), (37, 70)),
        "ragged queries": _batch((5, 1), (37, 70)),
        "nothing appended": _batch((1, 1), (37, 70), append=False),
        "a sequence without query": _batch((3, 0), (37, 70)),
        "a sequence without keys": _batch((1, 1), (0, 70), append=False),
        "rows that see no key": _batch((9, 9), (4, 70), append=False),
        "not causal": replace(_attention(causal=False), batch=Batch((6, 6), (37, 70))),
        "sliding window": _attention(window_size=(15, 0)),
        "window, both sides": replace(_attention(causal=False, window_size=(15, 3)), batch=Batch((6, 6), (37, 70))),
        "softcap": _attention(softcap=1.0),
        "sinks": _attention(sinks=tuple(i / 4 for i in range(8))),
        "ALiBi": _attention(alibi_slopes=tuple(2.0**-i for i in range(1, 9))),
        "softmax scale": _attention(softmax_scale=0.3),
        "1 split": _attention(num_splits=1),
        "3 splits": _attention(num_splits=3),
        **{f"head dim {size}": _head_dim(size) for size in (80, 96, 128, 192, 256)},
        "head dims 192 and 128": _head_dim(192, 128),
        "GQA, 4 heads a KV head": _attention(num_kv_heads=2),
        "GQA, 7 heads a KV head": _attention(num_heads=14, num_kv_heads=2),
        "MQA": _attention(num_kv_heads=1),
        "int64 block table": _attention(index_dtype={"block_table": "int64"}),
    }


FEATURES: tuple[Feature, ...] = tuple(
    Feature(name, scenario, hint=scenario.attention.num_splits != AUTO_SPLITS) for name, scenario in _features().items()
)


def claim(backend: Backend, feature: Feature, path: AttnPath, device: str) -> str | None:
    """Why the backend says that it lacks the feature on a path, or None if it says that it has it. Never raises."""
    layout = build_layout(feature.scenario)
    try:
        return backend.unsupported(call_spec(feature.scenario, layout, path, device))
    except Exception as error:  # a library that cannot even be asked has nothing to offer
        return f"{type(error).__name__}: {' '.join(said(error).split())}"
