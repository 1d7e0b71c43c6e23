"""No check minds how the output of a kernel lies in memory."""

from __future__ import annotations

import pytest

from pagedbench.backends.base import Output
from pagedbench.checks.registry import CHECKS
from pagedbench.tensors.call import Call
from pagedbench.words import AttnPath, Verdict
from tests.checks.kernels import Plain, context
from tests.tensors.cells import scenario


class HeadsFirst(Plain):
    """Right, with output and LSE stored head by head, as some libraries have them."""

    def decode(self, call: Call, plan: object) -> Output:
        right = super().decode(call, plan)
        assert right.lse is not None
        out, lse = right.out.transpose(0, 1).contiguous(), right.lse.t().contiguous()
        return Output(out.transpose(0, 1), lse.t())

    paged_varlen = Plain.paged_varlen


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_an_output_stored_head_by_head_is_right(name: str) -> None:
    cell, check = context(scenario((2, 2), (5, 40)), HeadsFirst(), AttnPath.DECODE), CHECKS[name]
    if reason := check.not_applicable(cell):
        pytest.skip(reason)
    result = check.run(cell)
    assert result.verdict is Verdict.PASS, result.message
