"""The scenarios on which faults are proved to be caught: a small set that lets every fault show, and long decode
steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files

from pagedbench.errors import UsageError
from pagedbench.scenario.model import Scenario
from pagedbench.words import AttnPath

LONG_KEYS = 8192
"""Trials with a sequence of so many keys are long: a few checks find their faults, the others take minutes."""
LONG_CHECKS = ("accuracy", "cache-update", "footprint", "leaks")

_FILE = "selftest.yaml"
_LONG = """
name: keys-{keys}
about: A decode step whose longest sequence has {keys} keys.
batch: {{query_lens: [1, 1], cached_lens: [{cached}, {half}]}}
cache: {{block_size: 16}}
attention: {{num_heads: 8, num_kv_heads: 2, head_dim: 64, dtype: bfloat16, sinks: {sink}}}
"""
_BIG_POOL = """
name: big-pool
about: A pool of more than 2³¹ elements, and a sequence in its last blocks.
batch: {query_lens: [1, 1], cached_lens: [300, 70]}
cache: {block_size: 256, num_blocks: 8200, block_table: [[8197, 8194], [3, -1]]}
attention: {num_heads: 8, num_kv_heads: 8, head_dim: 128, dtype: bfloat16}
"""


@dataclass(frozen=True)
class Trial:
    """A scenario on one path. `only` names the faults that it is for, where it is not for all."""

    scenario: Scenario
    path: AttnPath
    only: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """As printed."""
        return f"{self.scenario.name}:{self.path}"

    @property
    def long(self) -> bool:
        """Whether it is tried with `LONG_CHECKS` alone."""
        return self.keys >= LONG_KEYS

    @property
    def keys(self) -> int:
        """Keys of its longest sequence."""
        batch = self.scenario.batch
        return max(q + k for q, k in zip(batch.query_lens, batch.cached_lens, strict=True))

    @property
    def slots(self) -> int:
        """Slots that its pool has at least: what it costs."""
        cache = self.scenario.cache
        return max(self.keys, (cache.num_blocks or 0) * cache.block_size)


def trials(lengths: Sequence[int] = (), device: str = "cpu") -> list[Trial]:
    """The small set, and a decode step of each length; on a GPU, which has the memory, a pool that 32 bits cannot
    address. UsageError for a length below 2."""
    from pagedbench.scenario.loader import loads

    small = loads(files("pagedbench.faults").joinpath(_FILE).read_text(encoding="utf-8"), _FILE)
    long = [loads(_long(keys))[0] for keys in lengths]
    found = [Trial(scenario, _path(scenario)) for scenario in [*small, *long]]
    ragged = next(trial.scenario for trial in found if trial.scenario.name == "ragged")
    found += [Trial(ragged, AttnPath.VARLEN), Trial(_with_alibi(ragged), AttnPath.PAGED_VARLEN)]
    if device == "cuda":
        found.append(Trial(loads(_BIG_POOL)[0], AttnPath.DECODE, frozenset({"int32-overflow"})))
    return found


def _long(keys: int) -> str:
    if keys < 2:
        raise UsageError(f"a length of {keys} has nothing to lose", "lengths are numbers of keys, at least 2")
    return _LONG.format(keys=keys, cached=keys - 1, half=keys // 2, sink=2.0)


def _path(scenario: Scenario) -> AttnPath:
    return AttnPath.DECODE if set(scenario.batch.query_lens) == {1} else AttnPath.PAGED_VARLEN


def _with_alibi(scenario: Scenario) -> Scenario:
    """ALiBi is proved before the scenario language offers it."""
    slopes = tuple(2.0 ** -(1 + head) for head in range(scenario.attention.num_heads))
    return replace(scenario, name="alibi", attention=replace(scenario.attention, alibi_slopes=slopes))
