"""Decoding on: the batch takes the scenario's steps one after the other, each judged like a first one.

Each step works on the memory that the step before left, so that what one step corrupts the next one reads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import torch

from pagedbench.backends.execute import tool_writes
from pagedbench.checks.accuracy import judge
from pagedbench.checks.base import CheckContext, CheckResult
from pagedbench.checks.cache_update import judge_memory
from pagedbench.layout.batch import BatchLayout, IntArray
from pagedbench.layout.regions import Region
from pagedbench.layout.steps import at_last_step, step_layouts
from pagedbench.tensors.arena import Arena
from pagedbench.tensors.bits import bits
from pagedbench.tensors.fill import Fill, FillValue
from pagedbench.tensors.inputs import LogicalInputs, random_inputs, random_queries
from pagedbench.tensors.prepare import Prepared
from pagedbench.words import Verdict

FAILED_STEP = "failed_step"
"""The metric that says which step, counted from 1, was wrong."""


class Steps:
    """The scenario's `steps`: output and cache of each."""

    name = "steps"
    about = (
        "Decodes on for the scenario's steps, on the memory that each step leaves; output and cache judged each time."
    )

    def not_applicable(self, context: CheckContext) -> str | None:
        """Needs more than one step, and an append."""
        if context.scenario.steps < 2:
            return "the scenario has one step"
        return None if context.layout.append else "nothing is appended"

    def run(self, context: CheckContext) -> CheckResult:
        """Every step until one is wrong."""
        layouts = step_layouts(context.scenario)
        everything = random_inputs(context.scenario, layouts[-1], context.device)
        before: Arena | None = None
        for step, layout in enumerate(layouts):
            inputs = _inputs_of_step(context, step, everything, layouts[-1], layout)
            result, before = _run_step(dataclasses.replace(context, layout=layout), inputs, before)
            if result.verdict is not Verdict.PASS:
                told = result.opened_by(f"step {step + 1} of {len(layouts)}")
                return dataclasses.replace(told, metrics={**told.metrics, FAILED_STEP: step + 1})
        return CheckResult(self.name, Verdict.PASS, f"{len(layouts)} steps, output and cache right after each")


def at_step(context: CheckContext, step: int) -> CheckContext:
    """The cell of one step, counted from 1, by itself: its lengths and table, with numbers of its own."""
    scenario = at_last_step(dataclasses.replace(context.scenario, steps=step))
    layout = step_layouts(context.scenario)[step - 1]
    return dataclasses.replace(context, scenario=dataclasses.replace(scenario, steps=1), layout=layout)


def _run_step(context: CheckContext, inputs: LogicalInputs, before: Arena | None) -> tuple[CheckResult, Arena]:
    context.__dict__["inputs"] = inputs  # in place of the scenario's own, for the oracle too
    prepared = context.prepare(fill=_fill_for_all_steps(context.poison))
    if before is not None:
        _carry_over(before, prepared)
    start = prepared.arena.memory.clone()
    output = context.execute(prepared).output
    by_tool = tool_writes(context.backend, prepared.call)
    memory = judge_memory(prepared, Steps.name, by_tool=by_tool, start=start)
    if memory.verdict is not Verdict.PASS:
        return memory, prepared.arena
    return judge(context, output, context.layout, context.reference, Steps.name), prepared.arena


def _fill_for_all_steps(poison: Fill) -> Fill:
    """What stands in a block that a later step opens is behind that step's new token: it must be fit to stand there."""

    def values(of_side: Mapping[Region, FillValue]) -> Mapping[Region, FillValue]:
        as_tail = {Region.UNNEEDED: of_side[Region.TAIL]} if Region.TAIL in of_side else {}
        return {**of_side, **as_tail}

    return dataclasses.replace(poison, k=values(poison.k), v=values(poison.v))


def _carry_over(before: Arena, prepared: Prepared) -> None:
    """The pool as the step before left it, in place of a fresh one."""
    for name in before.plan.pieces:
        if name.endswith("_cache"):
            bits(prepared.arena.flat(name)).copy_(bits(before.flat(name)))


def _inputs_of_step(
    context: CheckContext, step: int, everything: LogicalInputs, last: BatchLayout, layout: BatchLayout
) -> LogicalInputs:
    """Keys and values of a step: the first of each sequence's; queries of its own."""
    index = torch.from_numpy(_keys_so_far(last, layout)).to(context.device)
    k = bits(everything.k)[index].view(everything.k.dtype)
    v = bits(everything.v)[index].view(everything.v.dtype)
    seed = context.scenario.inputs.seed + step
    return LogicalInputs(random_queries(context.scenario, layout, context.device, seed), k, v)


def _keys_so_far(last: BatchLayout, layout: BatchLayout) -> IntArray:
    ahead = (last.cu_seqlens_k[:-1] - layout.cu_seqlens_k[:-1]).astype(np.int64)
    return np.repeat(ahead, layout.total_seqlens) + np.arange(layout.total_k, dtype=np.int64)
