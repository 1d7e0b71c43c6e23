"""A backend that is right but for one fault: what the checks are proved on. Slow, plain, on any device."""

from __future__ import annotations

from typing import Any

from pagedbench.backends.base import Availability, Backend, Output, Traits
from pagedbench.faults.evaluate import evaluate
from pagedbench.faults.fault import Fault
from pagedbench.faults.program import AttentionProgram, program_for
from pagedbench.tensors.call import Call


class FaultyBackend(Backend):
    """The program of a right kernel with `fault` in it; with None it is right. It counts its calls, for noise."""

    library = "pagedbench"
    about = "a right kernel with one planted fault"
    traits = Traits(batch_invariant=True, out=True, graph_safe=False)

    def __init__(self, fault: Fault | None = None) -> None:
        self.fault = fault
        self.name = f"faulty:{fault.name}" if fault else "clean"
        self.calls = 0

    def available(self, device: str) -> Availability:
        """Always."""
        return Availability(True, version="1")

    def program(self, call: Call) -> AttentionProgram:
        """What this backend does on `call`."""
        right = program_for(call)
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
        return evaluate(self.program(call), call, call_index=self.calls - 1)
