"""Shrinking: from a failing scenario to a smallest one that fails in the same way.

Greedy: reductions are tried in turn, largest first, and one that still fails is kept, until none does. Whether a
scenario fails is asked of the caller, who runs it in a worker; nothing here runs a kernel.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from pagedbench.errors import ScenarioError
from pagedbench.layout.build import build_layout
from pagedbench.layout.overrides import refuse_bad_override
from pagedbench.runner.signals import interruptible
from pagedbench.scenario.model import (
    AUTO_SPLITS,
    UNLIMITED,
    Attention,
    Distribution,
    Inputs,
    PoolLayout,
    Scenario,
)

StillFails = Callable[[Scenario], bool]
_HEAD_DIMS = (16, 32, 64)


@dataclass
class Shrunk:
    """The smallest scenario found, how many were tried, and how many of them were kept; `interrupted_by` is the signal
    that ended the search early."""

    scenario: Scenario
    tried: int = 0
    kept: int = 0
    interrupted_by: signal.Signals | None = None


def shrink(scenario: Scenario, still_fails: StillFails, *, most: int = 400) -> Shrunk:
    """Reduce a failing scenario by at most `most` trials. `still_fails` is only asked about valid scenarios."""
    found = Shrunk(scenario)
    with interruptible() as interruption:
        while found.tried < most and (smaller := _smaller(found, still_fails, most)) is not None:
            found.scenario, found.kept = smaller, found.kept + 1
    found.interrupted_by = interruption.by
    return found


def _smaller(found: Shrunk, still_fails: StillFails, most: int) -> Scenario | None:
    """The first reduction that still fails, or None; counts those that were tried."""
    for candidate in filter(_valid, reductions(found.scenario)):
        if found.tried >= most:
            break
        fails = still_fails(candidate)
        found.tried += 1
        if fails:
            return candidate
    return None


def reductions(scenario: Scenario) -> Iterator[Scenario]:
    """Scenarios that are each simpler in one respect; every chain of them ends."""
    yield from _fewer_sequences(scenario)
    yield from _shorter(scenario)
    yield from _simpler_attention(scenario)
    yield from _simpler_cache(scenario)
    yield from _simpler_inputs(scenario)


def _valid(scenario: Scenario) -> bool:
    try:
        refuse_bad_override(scenario, build_layout(scenario))
    except ScenarioError:
        return False
    return True


def _with_sequences(scenario: Scenario, kept: list[int]) -> Scenario:
    batch, table = scenario.batch, scenario.cache.block_table
    live = batch.size - batch.padding_rows
    return replace(
        scenario,
        batch=replace(
            batch,
            query_lens=tuple(batch.query_lens[i] for i in kept),
            cached_lens=tuple(batch.cached_lens[i] for i in kept),
            padding_rows=sum(i >= live for i in kept),
        ),
        cache=replace(scenario.cache, block_table=None if table is None else tuple(table[i] for i in kept)),
    )


def _fewer_sequences(scenario: Scenario) -> Iterator[Scenario]:
    """Halves first, then all but one."""
    size = scenario.batch.size
    everyone = list(range(size))
    if size > 3:
        yield _with_sequences(scenario, everyone[: size // 2])
        yield _with_sequences(scenario, everyone[size // 2 :])
    if size > 1:
        for leaver in reversed(everyone):
            yield _with_sequences(scenario, [i for i in everyone if i != leaver])


def _shorter(scenario: Scenario) -> Iterator[Scenario]:
    """Every length on its own: none, one block and a key, a half, one less."""
    batch, size = scenario.batch, scenario.cache.block_size
    for name, least in (("query_lens", 1), ("cached_lens", 0)):
        lengths: tuple[int, ...] = getattr(batch, name)
        for index, length in enumerate(lengths):
            wanted = {least, 1, size + 1, length // 2, length - 1}
            for shorter in sorted(n for n in wanted if least <= n < length):
                changed = (*lengths[:index], shorter, *lengths[index + 1 :])
                yield replace(scenario, batch=replace(batch, **{name: changed}))  # type: ignore[arg-type]


def _simpler_attention(scenario: Scenario) -> Iterator[Scenario]:
    spec = scenario.attention
    changes: list[dict[str, object]] = [
        {"softcap": None},
        {"sinks": None},
        {"alibi_slopes": None},
        {"window_size": (UNLIMITED, UNLIMITED)},
        {"num_splits": AUTO_SPLITS},
        {"index_dtype": {}},
        {"causal": True},
        {"softmax_scale": spec.head_dim**-0.5},
        {"model": None},
    ]
    for change in changes:
        simpler = replace(spec, **change)  # type: ignore[arg-type]
        if simpler != spec and not (change.get("causal") and spec.window_size[1] > 0):
            yield replace(scenario, attention=simpler)
    yield from (replace(scenario, attention=fewer) for fewer in _fewer_heads(spec))
    yield from (replace(scenario, attention=narrower) for narrower in _narrower(spec))


def _fewer_heads(spec: Attention) -> Iterator[Attention]:
    """One KV head, two, then no grouping."""
    for heads, kv_heads in ((1, 1), (spec.group_size, 1), (2 * spec.group_size, 2), (2, 2)):
        if heads < spec.num_heads and kv_heads <= spec.num_kv_heads:
            sinks = None if spec.sinks is None else spec.sinks[:heads]
            slopes = None if spec.alibi_slopes is None else spec.alibi_slopes[:heads]
            yield replace(spec, num_heads=heads, num_kv_heads=kv_heads, sinks=sinks, alibi_slopes=slopes)


def _narrower(spec: Attention) -> Iterator[Attention]:
    if spec.head_dim_v != spec.head_dim:
        yield replace(spec, head_dim_v=spec.head_dim)
    default_scale = spec.softmax_scale == spec.head_dim**-0.5
    for dim in _HEAD_DIMS:
        if dim < min(spec.head_dim, spec.head_dim_v):
            scale = dim**-0.5 if default_scale else spec.softmax_scale
            yield replace(spec, head_dim=dim, head_dim_v=dim, softmax_scale=scale)


def _simpler_cache(scenario: Scenario) -> Iterator[Scenario]:
    cache = scenario.cache
    changes: list[dict[str, object]] = [
        {"layout": PoolLayout()},
        {"block_table": None, "num_blocks": None} if cache.block_table is not None else {},
        {"max_blocks_per_seq": "tight"},
        {"num_blocks": None},
        {"trash_block": False},
        {"padding": -1},
        {"placement": "shuffled"},
    ]
    for change in changes:
        simpler = replace(cache, **change)  # type: ignore[arg-type]
        if simpler != cache:
            yield replace(scenario, cache=simpler)


def _simpler_inputs(scenario: Scenario) -> Iterator[Scenario]:
    inputs = scenario.inputs
    for name in ("q", "k", "v"):
        if getattr(inputs, name) != Distribution():
            yield replace(scenario, inputs=replace(inputs, **{name: Distribution()}))  # type: ignore[arg-type]
    if inputs.identical_rows or inputs.poison != "nan":
        yield replace(scenario, inputs=Inputs(seed=inputs.seed, q=inputs.q, k=inputs.k, v=inputs.v))
    if scenario.steps > 1:
        yield replace(scenario, steps=1)
    if scenario.repeats > 1:
        yield replace(scenario, repeats=1)
