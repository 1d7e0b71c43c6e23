"""A backend that is right but for one fault: what the checks are proved on. Slow, plain, on any device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pagedbench.backends.base import Availability, Backend, Output, Traits
from pagedbench.backends.indices import host_arrays
from pagedbench.faults.evaluate import evaluate
from pagedbench.faults.fault import Fault
from pagedbench.faults.indices import Indices, indices_of
from pagedbench.faults.program import AttentionProgram, pools, program_for
from pagedbench.tensors.call import Call, CallSpec

MOST_KEPT = 16
"""Programs kept by a backend: the checks come back to a few layouts again and again."""


@dataclass(frozen=True)
class _Kept:
    """What a backend does on calls of one layout: all but sinks and slopes, which are the call's."""

    spec: CallSpec  # held, so that its id stays its own
    right: AttentionProgram
    faulty: AttentionProgram
    indices: Indices | None


class FaultyBackend(Backend):
    """The program of a right kernel with `fault` in it; with None it is right. It counts its calls, for noise."""

    library = "pagedbench"
    about = "a right kernel with one planted fault"
    traits = Traits(batch_invariant=True, out=True, graph_safe=False)

    def __init__(self, fault: Fault | None = None) -> None:
        self.fault = fault
        self.name = f"faulty:{fault.name}" if fault else "clean"
        self.calls = 0
        self._kept: dict[tuple[object, ...], _Kept] = {}

    def available(self, device: str) -> Availability:
        """Always."""
        return Availability(True, version="1")

    def program(self, call: Call) -> AttentionProgram:
        """What this backend does on `call`."""
        return self._changed(program_for(call))

    def _changed(self, right: AttentionProgram) -> AttentionProgram:
        return right if self.fault is None else self.fault.change(right)

    def varlen(self, call: Call, plan: Any) -> Output:
        """Attention over the gathered keys."""
        return self._run(call)

    def decode(self, call: Call, plan: Any) -> Output:
        """The append, then attention through the block table."""
        return self._run(call)

    def paged_varlen(self, call: Call, plan: Any) -> Output:
        """Attention through the block table."""
        return self._run(call)

    def _run(self, call: Call) -> Output:
        self.calls += 1
        program, indices = self._program(call)
        return evaluate(program, call, call_index=self.calls - 1, indices=indices)

    def _program(self, call: Call) -> tuple[AttentionProgram, Indices | None]:
        """The program of a call and its index tensors, from an earlier call of the same layout where there was one."""
        key = _key(call)
        kept = self._kept.get(key)
        if kept is None:
            right = program_for(call)
            faulty = self._changed(right)
            indices = None if faulty.crash else indices_of(faulty, call.q.device)
            if len(self._kept) == MOST_KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = _Kept(call.spec, right, faulty, indices)
            return faulty, indices
        right = kept.right.replace(
            sinks=None if call.sinks is None else call.sinks.double(),
            alibi=None if call.alibi_slopes is None else call.alibi_slopes.double(),
        )
        if (kept.faulty.sinks, kept.faulty.alibi) == (None, None):
            return kept.faulty, kept.indices
        return self._changed(right), kept.indices


def _key(call: Call) -> tuple[object, ...]:
    """What a program's index tensors depend on."""
    host = host_arrays(call)
    arrays = (host.cu_seqlens_q, host.cu_seqlens_k, host.cache_seqlens, host.total_seqlens, host.block_table)
    places = tuple((pool.shape, pool.stride()) for pool in pools(call))
    return (
        id(call.spec),
        call.k_new is None,
        call.k_scale,
        call.v_scale,
        places,
        *(array.numpy().tobytes() for array in arrays),
    )
