"""A scenario back into a file: the shortest document that loads as the same scenario. The inverse of `loader.py`.

For scenarios made in code (shrunk, generated); one that was read from a file is better copied from there.
"""

from __future__ import annotations

from typing import Any

import yaml

from pagedbench.scenario.model import (
    AUTO_SPLITS,
    UNLIMITED,
    Attention,
    Cache,
    Distribution,
    Inputs,
    PoolLayout,
    Scenario,
)


def dumps(scenario: Scenario) -> str:
    """One YAML document. Expectations and variants are left out: they belong to the file that was written by hand."""
    return yaml.safe_dump(
        as_document(scenario), sort_keys=False, allow_unicode=True, width=100, default_flow_style=None
    )


def as_document(scenario: Scenario) -> dict[str, Any]:
    """The document as plain values, defaults left out."""
    batch: dict[str, Any] = {
        "query_lens": list(scenario.batch.query_lens),
        "cached_lens": list(scenario.batch.cached_lens),
        "append": scenario.batch.append,
    }
    if scenario.batch.padding_rows:
        live = scenario.batch.size - scenario.batch.padding_rows
        batch |= {"query_lens": batch["query_lens"][:live], "cached_lens": batch["cached_lens"][:live]}
        batch["padding_rows"] = scenario.batch.padding_rows
    document: dict[str, Any] = {
        "name": scenario.name,
        "about": scenario.about,
        "batch": batch,
        "cache": _cache(scenario.cache),
        "attention": _attention(scenario.attention),
    }
    inputs = _inputs(scenario.inputs)
    if inputs:
        document["inputs"] = inputs
    if scenario.steps != 1:
        document["steps"] = scenario.steps
    if scenario.repeats != 1:
        document["repeats"] = scenario.repeats
    if scenario.graph_capture_lens is not None:
        document["graph"] = {"capture_lens": list(scenario.graph_capture_lens)}
    if scenario.override.values:
        document["override"] = {**_plain(scenario.override.values), "oracle": scenario.override.oracle}
    return document


def _cache(cache: Cache) -> dict[str, Any]:
    found: dict[str, Any] = {"block_size": cache.block_size}
    if cache.max_blocks_per_seq is not None:
        found["max_blocks_per_seq"] = cache.max_blocks_per_seq
    if cache.num_blocks is not None:
        found["num_blocks"] = cache.num_blocks
    if cache.block_table is not None:
        found["block_table"] = [list(row) for row in cache.block_table]
    elif cache.placement != "shuffled":
        found["placement"] = cache.placement
    if cache.padding != -1:
        found["padding"] = cache.padding
    if cache.trash_block:
        found["trash_block"] = True
    if cache.layout != PoolLayout():
        found["layout"] = _layout(cache.layout)
    return found


def _layout(layout: PoolLayout) -> dict[str, Any]:
    found: dict[str, Any] = {"order": layout.order}
    if layout.form not in ("contiguous", "strided"):
        found["form"] = layout.form
    for name, stride in (("k_stride", layout.k_stride), ("v_stride", layout.v_stride)):
        if stride is not None:
            found[name] = {"block": stride[0], "token": stride[1]}
    return found


def _attention(spec: Attention) -> dict[str, Any]:
    found: dict[str, Any] = {
        "num_heads": spec.num_heads,
        "num_kv_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "dtype": spec.dtype,
        "causal": spec.causal,
    }
    optional = {
        "head_dim_v": (spec.head_dim_v, spec.head_dim),
        "q_dtype": (spec.q_dtype, spec.dtype),
        "kv_dtype": (spec.kv_dtype, spec.dtype),
        "k_scale": (spec.k_scale, 1.0),
        "v_scale": (spec.v_scale, 1.0),
        "softcap": (spec.softcap, None),
        "softmax_scale": (spec.softmax_scale, spec.head_dim**-0.5),
        "num_splits": (spec.num_splits, AUTO_SPLITS),
    }
    found |= {name: value for name, (value, default) in optional.items() if value != default}
    if spec.window_size != (UNLIMITED, UNLIMITED):
        found["window_size"] = list(spec.window_size)
    if spec.sinks is not None:
        found["sinks"] = list(spec.sinks)
    if spec.alibi_slopes is not None:
        found["alibi"] = list(spec.alibi_slopes)
    wide = {name: dtype for name, dtype in spec.index_dtype.items() if dtype != "int32"}
    return found | ({"index_dtype": wide} if wide else {})


def _inputs(inputs: Inputs) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if inputs.seed:
        found["seed"] = inputs.seed
    for name, how in (("q", inputs.q), ("k", inputs.k), ("v", inputs.v)):
        if how != Distribution():
            found[name] = {"distribution": how.distribution, "scale": how.scale, "offset": how.offset}
    if inputs.identical_rows:
        found["identical_rows"] = True
    if inputs.poison != "nan":
        found["poison"] = inputs.poison
    return found


def _plain(value: Any) -> Any:
    """Nested tuples as lists."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, (tuple, list)) else value
