"""Blindness: what a scenario could not have shown, though it looks made for it, and what to change.

A pass that could not have failed is worth a warning beside it. Decided from the scenario and its layout, before any
number is made; what a fault does to a batch exactly is `faults/effect.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from pagedbench.layout.batch import BatchLayout
from pagedbench.scenario.model import Distribution, Override, Scenario
from pagedbench.words import AttnPath

PREFIX = "BLIND: "
_NOT_TAKEN = {
    AttnPath.VARLEN: frozenset({"block_table", "cache_seqlens", "total_seqlens"}),
    AttnPath.DECODE: frozenset({"read_slots"}),
    AttnPath.PAGED_VARLEN: frozenset({"read_slots"}),
}
# Relative effects below this drown in the rounding of the output.
_UNIT = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-20}
# The largest of a few thousand normal scores, in standard deviations.
_LARGEST_SCORE = 4.0
_16_BITS = 1 << 16
# A scenario with more keys is made for length, and its round lengths for comparison with others.
_MADE_FOR_EDGES = 1024


def blindness(scenario: Scenario, layout: BatchLayout) -> list[str]:
    """Warnings, each beginning with `BLIND: `, in the order of the scenario file."""
    if layout.total_q == 0:
        return [f"{PREFIX}there is no query token, so no output can be wrong; give a sequence one"]
    if layout.total_k == 0:
        return []
    return [PREFIX + text for rule in _RULES for text in rule(scenario, layout)]


def unreached(override: Override, path: AttnPath, appends: bool) -> list[str]:
    """A warning for overridden arrays that a kernel on this path does not take: there, nothing was overridden.

    `appends`: whether the kernel writes the new tokens itself, by the block table and not by slots.
    """
    without = _NOT_TAKEN[path] | ({"write_slots"} if appends and path is not AttnPath.VARLEN else set())
    lost = sorted(without & override.values.keys())
    if not lost:
        return []
    return [f"{PREFIX}the override of {', '.join(lost)} does not reach the {path} path, whose kernel takes none"]


def _blocks(layout: BatchLayout) -> np.ndarray:
    live = np.where(layout.dead, 0, layout.total_seqlens).astype(np.int64)
    return -(-live // layout.block_size)


def _one_block(scenario: Scenario, layout: BatchLayout) -> Iterator[str]:
    if int(_blocks(layout).max()) <= 1:
        yield (
            f"every sequence fits into one block, so an order of blocks cannot be wrong; "
            f"give one more than {layout.block_size} keys"
        )


def _linear_table(scenario: Scenario, layout: BatchLayout) -> Iterator[str]:
    blocks = _blocks(layout)
    if int(blocks.sum()) <= 1:
        return
    named = np.arange(layout.max_blocks_per_seq) < blocks[:, None]
    ids = layout.block_table[named]
    if np.array_equal(ids, ids[0] + np.arange(len(ids))):
        yield (
            "the block table is linear, so a kernel that ignores it passes; use placement: shuffled or another table"
        )


def _no_partial_block(scenario: Scenario, layout: BatchLayout) -> Iterator[str]:
    live = layout.total_seqlens[~layout.dead]
    if layout.max_seqlen_k > _MADE_FOR_EDGES:
        return
    if layout.block_size > 1 and not (live % layout.block_size).any():
        yield (
            f"no sequence ends inside a block, so reading its unused rest cannot show; "
            f"make one length no multiple of {layout.block_size}"
        )


def _wide_window(scenario: Scenario, layout: BatchLayout) -> Iterator[str]:
    spec = scenario.attention
    left, right = spec.window_size
    if left == -1 and (right == -1 or spec.causal):
        return
    hides = (layout.visible_to - layout.visible_from) < _seen_without_window(scenario, layout)
    if not hides.any():
        # A limit on one side leaves the other at −1; with causal, the right one says nothing more.
        needed = min(side for side in ((left,) if spec.causal else (left, right)) if side >= 0) + 1
        size = f"window of {left + 1:,} keys" if spec.causal else f"window {[left, right]}"
        yield f"the {size} hides none of the keys; make a sequence longer than {needed:,}"


def _seen_without_window(scenario: Scenario, layout: BatchLayout) -> np.ndarray:
    """`(total_q,)` keys that each row would see if there were no window."""
    sequence = layout.row_sequence()
    total = layout.total_seqlens[sequence].astype(np.int64)
    if not scenario.attention.causal:
        return total
    token = np.arange(layout.total_q) - layout.cu_seqlens_q[:-1][sequence]
    seen: np.ndarray = np.clip(total - layout.query_lens[sequence] + token + 1, 0, total)
    return seen


def _far_softcap(scenario: Scenario, layout: BatchLayout) -> Iterator[str]:
    cap = scenario.attention.softcap
    if cap is None:
        return
    score = _LARGEST_SCORE * score_deviation(scenario)
    if score - cap * math.tanh(score / cap) < _unit(scenario):
        wanted = cap / max(score_deviation(scenario), 1e-9) * _spread(scenario.inputs.q)
        yield (
            f"scores of up to about {score:.2g} hardly feel a softcap of {cap:g}; "
            f"set inputs.q.scale to about {wanted:.2g}"
        )


def _small_sink(scenario: Scenario, layout: BatchLayout) -> Iterator[str]:
    sinks = scenario.attention.sinks
    seen = layout.visible_to - layout.visible_from
    if sinks is None or not seen.any():
        return
    fewest = int(seen[seen > 0].min())
    level = math.log(fewest) + score_deviation(scenario) ** 2 / 2
    if math.exp(min(0.0, max(sinks) - level)) < _unit(scenario):
        yield (
            f"sinks of at most {max(sinks):g} take no visible share beside {fewest:,} key{'s' if fewest > 1 else ''}; "
            f"set attention.sinks near {level:.1f}"
        )


def _one_sign(scenario: Scenario, layout: BatchLayout) -> Iterator[str]:
    v = scenario.inputs.v
    if v.distribution == "constant" or abs(v.offset) >= _LARGEST_SCORE * _spread(v):
        yield (
            "all values of V have one sign, so that the mean of V is close to every right output; "
            "set inputs.v.offset to 0"
        )


def _flat_scores(scenario: Scenario, layout: BatchLayout) -> Iterator[str]:
    if int((layout.visible_to - layout.visible_from).max()) > 1 and score_deviation(scenario) < _unit(scenario):
        yield (
            "all scores are nearly equal, so scale and softmax cannot be wrong; raise inputs.q.scale or inputs.k.scale"
        )


def _low_ids(scenario: Scenario, layout: BatchLayout) -> Iterator[str]:
    if scenario.cache.placement == "high-ids" and scenario.cache.block_table is None:
        needed = layout.block_table[layout.needed_blocks]
        if len(needed) and int(needed.max()) < _16_BITS:
            yield (
                f"no needed block id reaches {_16_BITS:,}, so ids cut to 16 bits pass; "
                f"raise cache.num_blocks beyond {_16_BITS:,}"
            )


def _idle_splits(scenario: Scenario, layout: BatchLayout) -> Iterator[str]:
    splits = scenario.attention.num_splits
    if splits > 1 and int(_blocks(layout).max()) < splits:
        yield f"{splits} splits of at most {int(_blocks(layout).max())} blocks leave some empty; make a sequence longer"


def _no_poison(scenario: Scenario, layout: BatchLayout) -> Iterator[str]:
    if scenario.inputs.poison == "none":
        yield "slots that must not be read hold plausible numbers; a leak shows only in the check of leaks"


_RULES: tuple[Callable[[Scenario, BatchLayout], Iterator[str]], ...] = (
    _one_block,
    _linear_table,
    _no_partial_block,
    _low_ids,
    _wide_window,
    _far_softcap,
    _small_sink,
    _idle_splits,
    _one_sign,
    _flat_scores,
    _no_poison,
)


def score_deviation(scenario: Scenario) -> float:
    """The standard deviation of a score before the softcap, from the distributions of Q and K."""
    spec, inputs = scenario.attention, scenario.inputs
    return spec.softmax_scale * math.sqrt(spec.head_dim) * _magnitude(inputs.q) * _spread(inputs.k)


def _spread(how: Distribution) -> float:
    if how.distribution == "constant":
        return 0.0
    return how.scale if how.distribution == "normal" else how.scale / math.sqrt(3)


def _magnitude(how: Distribution) -> float:
    """Root mean square."""
    constant = how.scale if how.distribution == "constant" else 0.0
    return math.hypot(_spread(how), how.offset + constant)


def _unit(scenario: Scenario) -> float:
    return _UNIT.get(scenario.attention.dtype, _UNIT["bfloat16"])
