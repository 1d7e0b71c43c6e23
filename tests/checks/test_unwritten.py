from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from pagedbench.backends.base import Output, Traits
from pagedbench.checks.base import CheckResult
from pagedbench.checks.memory_patterns import FilledAsAllocated, uninitialised_is_nan
from pagedbench.checks.unwritten import Unwritten
from pagedbench.scenario.model import Scenario
from pagedbench.tensors.call import Call
from pagedbench.words import AttnPath, Verdict
from tests.checks.kernels import Plain, context
from tests.tensors.cells import scenario


class Skips(Plain):
    """Leaves some rows of the given output memory, or of memory of its own, as they were."""

    def __init__(self, rows: slice, *, own: bool, heads: slice = slice(None), traits: Traits | None = None) -> None:
        super().__init__(traits=traits)
        self.rows, self.heads, self.own = rows, heads, own

    def decode(self, call: Call, plan: object) -> Output:
        assert call.out is not None
        target = torch.empty_like(call.out) if self.own else call.out
        before = target.clone()
        right = super().decode(call, plan)
        written = right.out.clone()
        written[self.rows, self.heads] = before[self.rows, self.heads]
        target.copy_(written)
        return Output(target, right.lse)

    paged_varlen = Plain.paged_varlen


def judged(backend: Plain, wanted: Scenario | None = None, path: AttnPath = AttnPath.DECODE) -> CheckResult:
    return Unwritten().run(context(wanted or scenario(), backend, path))


def test_a_kernel_that_writes_everything_passes() -> None:
    result = judged(Plain())
    assert result.verdict is Verdict.PASS
    assert "in memory that the tool gave" in result.message


@pytest.mark.parametrize("own", [False, True])
def test_a_sequence_that_nobody_wrote_is_named(own: bool) -> None:
    result = judged(Skips(slice(1, 2), own=own))
    assert result.verdict is Verdict.NOT_WRITTEN
    assert result.message == "sequence 1: no row was written, first query token 0, head 0"


@pytest.mark.parametrize("own", [False, True])
def test_a_head_that_nobody_wrote_is_named(own: bool) -> None:
    result = judged(Skips(slice(2, 3), own=own, heads=slice(3, 4)))
    assert result.message == "sequence 2: 1 of 4 rows not written, first query token 0, head 3"


def test_an_unwritten_lse_is_found() -> None:
    class SkipsLse(Plain):
        def decode(self, call: Call, plan: object) -> Output:
            lse = torch.empty(call.q.shape[:2])
            right = super().decode(call, plan)
            lse[:2] = right.lse[:2]  # type: ignore[index]
            return Output(right.out, lse)

    assert judged(SkipsLse()).findings[0].sequence == 2


def test_a_kernel_that_computes_nan_is_not_accused() -> None:
    def tamper(call: Call, output: Output) -> None:
        output.out[1] = torch.nan

    assert judged(Plain(tamper)).verdict is Verdict.PASS


def test_a_kernel_that_is_nan_by_chance_is_not_accused() -> None:
    calls = 0

    def tamper(call: Call, output: Output) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            output.out[1] = torch.nan

    assert judged(Plain(tamper)).verdict is Verdict.PASS


def test_rows_without_keys_may_be_left_where_that_is_declared() -> None:
    wanted = scenario((2, 2), (0, 4), append=False)
    leaves = Traits(empty_rows="untouched", appends=False)
    assert judged(Skips(slice(0, 2), own=False, traits=leaves), wanted).verdict is Verdict.PASS
    assert judged(Skips(slice(0, 2), own=False), wanted).verdict is Verdict.NOT_WRITTEN


def test_padding_rows_may_be_left() -> None:
    wanted = scenario((1, 1, 1), (5, 40, 0), padding_rows=1, cache={"trash_block": True})
    assert judged(Skips(slice(2, 3), own=False), wanted).verdict is Verdict.PASS


def test_memory_is_nan_only_within() -> None:
    before = torch.get_deterministic_debug_mode()
    with uninitialised_is_nan():
        assert torch.empty(64, dtype=torch.bfloat16).isnan().all()
    assert torch.get_deterministic_debug_mode() == before


@pytest.mark.parametrize("compiled", [False, True])
def test_a_compiled_kernel_sees_no_switch_for_which_it_would_be_compiled_anew(compiled: bool) -> None:
    seen = set()

    def tamper(call: Call, output: Output) -> None:
        seen.add(torch.are_deterministic_algorithms_enabled())

    assert judged(Plain(tamper, traits=Traits(out=True, torch_compiled=compiled))).verdict is Verdict.PASS
    assert seen == ({False} if compiled else {False, True})


@pytest.mark.gpu
@pytest.mark.parametrize("own", [False, True])
def test_an_unwritten_row_is_found_on_a_gpu(own: bool) -> None:
    from pagedbench.backends.torch_backend import TorchBackend

    class SkipsOnGpu(TorchBackend):
        def decode(self, call: Call, plan: object) -> Output:
            assert call.out is not None
            target = torch.empty_like(call.out) if own else call.out
            before = target.clone()
            right = super().decode(call, plan)  # type: ignore[arg-type]
            written = right.out.clone()
            written[1] = before[1]
            target.copy_(written)
            return Output(target, right.lse)

    result = Unwritten().run(context(scenario(), SkipsOnGpu(), device="cuda"))
    assert result.verdict is Verdict.NOT_WRITTEN
    assert result.findings[0].sequence == 1


def test_all_memory_that_torch_allocates_can_be_filled() -> None:
    with FilledAsAllocated():
        some = [torch.empty(3), torch.empty(2, dtype=torch.bfloat16), torch.zeros(2).new_empty(3)]
        some += [torch.empty_like(some[0]), torch.empty_strided((2, 2), (1, 2), dtype=torch.float16)]
    for tensor in some:
        assert tensor.isfinite().all()
        assert len(tensor.unique()) == 1
        assert tensor.flatten()[0] != 0


class Compiled(Plain):
    """Its output is made by torch.compile; notes which calls ran uncompiled."""

    def __init__(self) -> None:
        super().__init__()
        self.uncompiled: list[int] = []
        self._finishing = torch.compile(self._copied, backend="eager")

    def _copied(self, out: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            self.uncompiled.append(self.calls)
        return torch.empty_like(out).copy_(out)

    def decode(self, call: Call, plan: object) -> Output:
        right = super().decode(call, plan)
        return Output(self._finishing(right.out), right.lse)


def test_a_compiled_kernel_is_judged_compiled_and_stays_so() -> None:
    """torch compiles nothing within an ordinary dispatch mode, and no longer what it met there."""
    backend = Compiled()
    cell = context(scenario(), backend)
    cell.execute()
    with FilledAsAllocated():
        cell.execute()
    cell.execute()
    assert Unwritten().run(cell).verdict is Verdict.PASS
    assert backend.uncompiled == []


def test_a_higher_order_operator_runs_where_memory_is_filled() -> None:
    """torch refuses one within a mode that does not say that it lets them through."""
    from torch._higher_order_ops.flex_attention import flex_attention

    q = k = v = torch.ones(1, 1, 4, 8)
    blocks = torch.ones(1, 1, 1, dtype=torch.int32), torch.zeros(1, 1, 1, 1, dtype=torch.int32)
    mask = (4, 4, *blocks, None, None, None, None, None, None, 4, 4, lambda b, h, m, n: m >= n)
    with FilledAsAllocated():
        out = flex_attention(q, k, v, lambda score, b, h, m, n: score, mask, 1.0, {})[0]
    assert torch.equal(out, v)


def test_memory_is_filled_without_loading_the_compiler() -> None:
    """It takes seconds, in each process that judges a backend."""
    code = (
        "import sys, torch\n"
        "from pagedbench.checks.memory_patterns import FilledAsAllocated\n"
        "with FilledAsAllocated():\n"
        "    assert torch.empty(3).long() is not None\n"
        "print('torch._dynamo' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("own", [False, True])
def test_what_is_computed_from_memory_that_nobody_set_is_not_called_unwritten(own: bool) -> None:
    class AddsToScratch(Plain):
        """Does not clear the accumulator of the second sequence."""

        def decode(self, call: Call, plan: object) -> Output:
            right = super().decode(call, plan)
            assert call.out is not None
            out = torch.empty_like(right.out) if own else call.out
            scratch = torch.empty(right.out.shape[1:], dtype=torch.float32)
            out.copy_(right.out)
            out[1] = (right.out[1] + scratch).to(out.dtype)
            return Output(out, right.lse)

        paged_varlen = Plain.paged_varlen

    result = judged(AddsToScratch())
    assert result.verdict is Verdict.NOT_WRITTEN
    assert result.message == (
        "sequence 1: every row follows what memory held before the call (not written, or computed from memory that "
        "nobody set), first query token 0, head 0"
    )
