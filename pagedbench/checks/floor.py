"""The floor: the smallest fault that the accuracy check would catch in a scenario, in keys lost and in ulps.

Found by trying: a right kernel in fp64 that loses more and more of the last keys. What is below the floor is the
footprint's to catch, which is exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pagedbench.checks.base import CheckContext
from pagedbench.checks.budget import UNIT, row_budget
from pagedbench.checks.comparison import compare
from pagedbench.errors import PagedbenchError
from pagedbench.faults.evaluate import MOST_SCORES, evaluate, scores_needed
from pagedbench.faults.program import AttentionProgram, program_for
from pagedbench.tensors.call import Call
from pagedbench.tensors.kvcache import PagedKVCache
from pagedbench.words import AttnPath


@dataclass(frozen=True)
class Floor:
    """`keys_lost` of the `keys` of the longest sequence is the fewest whose loss leaves the budget, None if none does;
    `ulps`: an error of so many units in the last place in every element of a typical row reaches the budget."""

    keys_lost: int | None
    keys: int
    ulps: float

    @property
    def sentence(self) -> str:
        """For a person."""
        lost = "no loss of keys" if self.keys_lost is None else f"a loss of {self.keys_lost:,} of {self.keys:,} keys"
        return f"accuracy catches {lost}, or an error of {self.ulps:.2g} ulp in every element of a row"


def floor(context: CheckContext) -> Floor:
    """The floor of a cell; makes a call's memory once and evaluates it about 2 log2(keys) times in fp64.

    PagedbenchError for a prefill too large to evaluate without tiles.
    """
    call = ready_call(context)
    if scores_needed(call) > MOST_SCORES:
        raise PagedbenchError("the scenario is too large to try lost keys on", "ask for the floor of a shorter one")
    keys = context.layout.max_seqlen_k
    return Floor(_fewest(context, call, keys), keys, _ulps(context))


def ready_call(context: CheckContext) -> Call:
    """The scenario's call, with its keys gathered on the varlen path."""
    call = context.prepare().call
    if context.path is AttnPath.VARLEN:
        cache = PagedKVCache(call.k_cache, call.v_cache)
        if call.k_new is not None and call.v_new is not None:
            cache.write(call.k_new, call.v_new, call.write_slots, call.written)
        call.k, call.v = cache.gather(call.read_slots)
    return call


def _fewest(context: CheckContext, call: Call, keys: int) -> int | None:
    """The smallest number of last keys whose loss is seen: doubled until it is, then bisected."""
    seen = 1
    while seen < keys and not _caught(context, call, seen):
        seen *= 2
    seen = min(seen, keys)
    if keys == 0 or not _caught(context, call, seen):
        return None
    unseen = seen // 2
    while seen - unseen > 1:
        middle = (seen + unseen) // 2
        if _caught(context, call, middle):
            seen = middle
        else:
            unseen = middle
    return seen


def _caught(context: CheckContext, call: Call, lost: int) -> bool:
    exact = evaluate(_without_last(program_for(call), lost), call, compute=torch.float64)
    traits = context.backend.traits_for(context.path)
    distance = compare(exact, context.reference, context.layout, context.scenario.attention, traits).out
    longest = int(context.layout.total_seqlens.argmax())
    rows = torch.from_numpy(context.layout.row_sequence() == longest).to(distance.ratio.device)
    return bool((distance.ratio > 1)[rows[context.reference.rows]].any())


def _without_last(program: AttentionProgram, lost: int) -> AttentionProgram:
    """Every sequence loses so many of its last keys."""
    gone = program.position >= (program.facts.total - lost)[:, None]
    return program.replace(weight=program.weight.masked_fill(gone, 0.0))


def _ulps(context: CheckContext) -> float:
    reference, attention = context.reference, context.scenario.attention
    budget = row_budget(reference, attention, context.backend.traits_for(context.path)).out
    size = torch.linalg.vector_norm(reference.out, dim=-1)
    shares = (budget / (2 * UNIT[attention.dtype] * size))[size > 0]
    return float(shares.median()) if len(shares) else 0.0
