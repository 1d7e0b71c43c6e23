"""In the worker: several sides of one scenario, timed side by side on one pool.

Each side was judged as a cell of its own before (`cell.py`); here its output on the shared pool is looked at once more,
before and after timing, and a side that is wrong gets no time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Protocol

import torch

from pagedbench.backends.registry import find_backend
from pagedbench.checks.base import CheckContext, CheckResult
from pagedbench.runner.cell import release_memory, threads_for
from pagedbench.runner.common import Common
from pagedbench.runner.timed import TimedCall, judge_buffers, timed_call
from pagedbench.runner.versus_job import VersusJob
from pagedbench.runner.work import work_of
from pagedbench.tensors.prepare import Prepared, call_spec
from pagedbench.timing.interleave import Interleaved, Side, interleave
from pagedbench.words import AttnPath, Verdict


class Tell(Protocol):
    """Sends an event to the parent at once."""

    def __call__(self, event: str, **values: object) -> None:
        """`stage` with `name`."""


def versus(job: VersusJob, tell: Tell, common: Common | None = None) -> dict[str, Any]:
    """Time the sides of a job. Plain data: `work`, `sides`, `pairs` by the numbers of the job's sides.

    `common` is what the judging of the sides left to use again; it is let go afterwards.
    """
    shared = common or Common()
    try:
        return _versus(job, tell, shared)
    finally:
        shared.forget_values()
        release_memory(job.device)


def _versus(job: VersusJob, tell: Tell, common: Common) -> dict[str, Any]:
    tell("stage", name="its preparation")
    contexts = _contexts(job, common)
    with threads_for(contexts[0]):
        return _beside_each_other(job, tell, contexts)


def _beside_each_other(job: VersusJob, tell: Tell, contexts: Sequence[CheckContext]) -> dict[str, Any]:
    """The sides of prepared contexts, looked at and timed with as many threads as a cell of the batch has."""
    prepared = contexts[0].prepare()
    calls = [_side_call(context, prepared) for context in contexts]
    tell("stage", name="a look at the outputs")
    looks = [_first_look(context, shared, call) for context, (shared, call) in zip(contexts, calls, strict=True)]
    right = [index for index, look in enumerate(looks) if look.verdict is Verdict.PASS]
    outputs = [call.output.out for _, call in calls]
    differences = {(a, b): _difference(outputs[a], outputs[b]) for a in right for b in right if a < b}
    tell("stage", name="its timing")
    sides = [Side(":".join(job.sides[i]), calls[i][1].job, calls[i][1].subject) for i in right]
    found = interleave(sides, device=job.device, options=job.timing) if sides else Interleaved((), ())
    work = work_of(job.scenario.attention, contexts[0].layout)
    return {
        "work": {"bytes": work.bytes, "flops": work.flops},
        "sides": [
            {**side, "ignores_splits": context.backend.traits_for(context.path).ignores_splits}
            for side, context in zip(_sides(looks, right, found, [c for _, c in calls]), contexts, strict=True)
        ],
        "pairs": _pairs(right, found, differences),
    }


def _contexts(job: VersusJob, common: Common) -> list[CheckContext]:
    """A context a side, all with the same inputs and the same reference."""
    made: list[CheckContext] = []
    for backend, path in job.sides:
        context = common.context(job.scenario, find_backend(backend), AttnPath(path), job.device)
        if made:
            context.inputs, context.reference = made[0].inputs, made[0].reference
        made.append(context)
    return made


def _side_call(context: CheckContext, prepared: Prepared) -> tuple[Prepared, TimedCall]:
    """The side's own call on the shared pool: paths differ in the facts of the call, in what varlen gathers, and each
    side has an output of its own, so that none is judged by another's."""
    spec = call_spec(context.scenario, context.layout, context.path, context.device)
    own = None if prepared.call.out is None else torch.empty_like(prepared.call.out)
    shared = replace(prepared, call=replace(prepared.call, spec=spec, out=own))
    return shared, timed_call(context, shared)


def _first_look(context: CheckContext, shared: Prepared, call: TimedCall) -> CheckResult:
    """How one call of the side is judged."""
    for stage in call.job:
        stage.run()
    if context.device == "cuda":
        torch.cuda.synchronize()
    return judge_buffers(context, shared, call.output)


def _difference(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double() - b.double()).abs().max()) if a.numel() else 0.0


def _sides(
    looks: Sequence[CheckResult], right: Sequence[int], found: Interleaved, calls: Sequence[TimedCall]
) -> list[dict[str, Any]]:
    """For each side its verdict, what was wrong, and its times; the last look counts."""
    sides: list[dict[str, Any]] = [
        {"verdict": look.verdict.value, "wrong": None if look.verdict is Verdict.PASS else look.message, "timing": None}
        for look in looks
    ]
    for index, measurement in zip(right, found.sides, strict=True):
        last = calls[index].judged[-1]
        sides[index]["timing"] = measurement.to_dict()
        sides[index]["verdict"] = last.verdict.value
    return sides


def _pairs(right: Sequence[int], found: Interleaved, differences: dict[tuple[int, int], float]) -> list[dict[str, Any]]:
    return [
        {
            **asdict(pair.comparison),
            "a": right[pair.a],
            "b": right[pair.b],
            "difference": differences[right[pair.a], right[pair.b]],
        }
        for pair in found.pairs
    ]
