"""A call captured in a CUDA graph at the largest lengths, replayed at the scenario's with another table.

An engine captures once and replays each step: whatever the kernel took from the host at capture time must still be
right. The tensors stay where they are; only what they hold changes between capture and replay.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
import torch

from pagedbench.backends.base import Output, Traits
from pagedbench.backends.execute import Stage, planned, stages, tool_writes
from pagedbench.checks.accuracy import judge
from pagedbench.checks.base import CheckContext, CheckResult
from pagedbench.checks.cache_update import judge_memory
from pagedbench.layout.batch import BatchLayout, IntArray
from pagedbench.tensors.call import Call, HostArrays
from pagedbench.words import AttnPath, Verdict

# The call ran before: only what it makes anew for a stream, or for the lengths of the capture, is to be there.
_WARM_UPS = 1


class GraphReplay:
    """Replays right, cache and guards included."""

    name = "graph-replay"
    about = "Captured in a CUDA graph at the largest lengths, replayed at others with another table, judged again."

    def not_applicable(self, context: CheckContext) -> str | None:
        """CUDA only, and only where a captured call can take other lengths."""
        traits = context.backend.traits_for(context.path)
        if torch.device(context.device).type != "cuda":
            return "CUDA graphs need a CUDA device"
        if context.path is AttnPath.VARLEN:
            return "the gathered keys change their shape with the lengths, which a graph cannot"
        if not traits.graph_safe:
            return f"{context.backend.name} declares that its calls cannot be captured"
        if not traits.graph_table:
            return f"{context.backend.name} takes the block table on the host: a captured call is bound to it"
        if context.scenario.override.values:
            return "the scenario hands over wrong arrays on purpose"
        return None if context.layout.total_q else "there are no query tokens"

    def run(self, context: CheckContext) -> CheckResult:
        """Capture, put the scenario's memory back, replay, judge output and memory."""
        prepared = context.prepare()
        start = prepared.arena.memory.clone()
        lens = capture_lens(context, context.backend.traits_for(context.path))
        captured = _set_for_capture(prepared.call, context.layout, lens)
        graph, output, _kept = _capture(context, captured)  # the graph reads tensors that only the plan holds
        prepared.arena.memory.copy_(start)
        # Libraries that plan on the host do it again for each step.
        planned(context.backend, prepared.call, context.plans)
        graph.replay()
        by_tool = tool_writes(context.backend, prepared.call)
        memory = judge_memory(prepared, self.name, by_tool=by_tool)
        if memory.verdict is not Verdict.PASS:
            return memory
        result = judge(context, output, context.layout, context.reference, self.name)
        return result.opened_by(f"captured at {_described(lens)}")


def capture_lens(context: CheckContext, traits: Traits) -> IntArray:
    """Cached keys of each sequence at capture: the scenario's, or all as long as the longest that the table can hold.

    A backend whose plan has the lengths baked in is captured at those of the replay; the table still changes.
    """
    layout = context.layout
    own = layout.cache_seqlens.astype(np.int64)
    if not traits.graph_lengths:
        return own
    room = layout.max_blocks_per_seq * layout.block_size - (layout.query_lens if layout.append else 0)
    given = context.scenario.graph_capture_lens
    wanted = np.asarray(given, dtype=np.int64) if given else np.full(layout.batch, own.max(initial=0))
    return np.minimum(wanted, room)


def _set_for_capture(call: Call, layout: BatchLayout, lens: IntArray) -> Call:
    """Fill the call's own index arrays for the capture, and give a call on the same tensors with that host side.

    The table then names every block in turn. Sequences share them, which does not matter: nothing captured is judged.
    """
    total = lens + layout.query_lens if layout.append else lens
    columns = np.arange(layout.block_table.size) % max(layout.num_blocks, 1)
    arrays = {
        "cu_seqlens_q": torch.from_numpy(layout.cu_seqlens_q.copy()),
        "cu_seqlens_k": torch.from_numpy(np.concatenate([[0], np.cumsum(total)])),
        "cache_seqlens": torch.from_numpy(lens),
        "total_seqlens": torch.from_numpy(total),
        "block_table": torch.from_numpy(columns.reshape(layout.block_table.shape)),
    }
    host = {name: value.to(getattr(call, name).dtype) for name, value in arrays.items()}
    for name, value in host.items():
        getattr(call, name).copy_(value)
    longest = int(total.max(initial=0))
    spec = dataclasses.replace(call.spec, max_seqlen_k=longest)
    return dataclasses.replace(call, spec=spec, max_seqlen_k=longest, host=HostArrays(**host))


def _capture(context: CheckContext, call: Call) -> tuple[torch.cuda.CUDAGraph, Output, list[Stage]]:
    """Warm up beside the main stream, as torch asks for, then capture all stages; the output is the graph's own.

    The stages come back as well: they hold the plan, whose tensors the graph reads, for as long as it is replayed.
    """
    plan = planned(context.backend, call, context.plans)
    steps = stages(context.backend, call, plan)
    side = _side_stream(torch.cuda.current_device())
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_WARM_UPS):
            for stage in steps:
                stage.run()
    graph = torch.cuda.CUDAGraph()
    output: Output | None = None
    with torch.cuda.stream(side), _capturing(graph):
        for stage in steps:
            output = stage.run()
    torch.cuda.current_stream().wait_stream(side)
    if output is None:
        raise TypeError(f"{context.backend.name} returned no Output from its {call.spec.path} function")
    return graph, output, steps


@lru_cache
def _side_stream(device: int) -> torch.cuda.Stream:
    """One for all captures: libraries set memory aside for every stream that they meet."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@contextmanager
def _capturing(graph: torch.cuda.CUDAGraph) -> Iterator[None]:
    """Within: the current stream is captured. Unlike `torch.cuda.graph`, gives no memory back to the driver before, and
    collects no garbage: that takes longer than all other checks of a small cell."""
    torch.cuda.synchronize()
    graph.capture_begin()
    try:
        yield
    finally:
        graph.capture_end()


def _described(lens: IntArray) -> str:
    if len(lens) == 0 or (lens == lens[0]).all():
        return f"{int(lens[0]) if len(lens) else 0} cached keys a sequence"
    return f"cached lengths {', '.join(map(str, lens[:4].tolist()))}{', …' if len(lens) > 4 else ''}"
