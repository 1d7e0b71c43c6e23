"""The CUDA clock on a real device: promises that hold whatever the device is."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from pagedbench.timing.interleave import Side, interleave
from pagedbench.timing.measure import measure
from pagedbench.timing.options import TimingOptions

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def product():
    left = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
    return SimpleNamespace(name="attention", run=lambda: torch.mm(left, left))


def test_kernel_time_comes_from_the_profiler_and_agrees_with_the_graph(product):
    found = measure([product], device="cuda")
    assert found.kernel.method.startswith("profiler")
    assert found.kernel.median <= found.graph.median < found.kernel.median + 10_000


def test_two_stages_are_seen_apart(product):
    copy = SimpleNamespace(name="gather", run=lambda: torch.zeros(1 << 20, device="cuda").clone())
    found = measure([copy, product], device="cuda", options=TimingOptions(quantities=("kernel",)))
    assert [stage.name for stage in found.stages] == ["gather", "attention"]
    assert all(stage.median > 0 for stage in found.stages)
    assert found.kernels >= 3


def test_a_call_that_synchronises_cannot_be_captured_and_is_still_timed(product):
    def run() -> None:
        torch.mm(torch.ones(64, 64, device="cuda"), torch.ones(64, 64, device="cuda")).sum().item()

    found = measure([SimpleNamespace(name="attention", run=run)], device="cuda")
    assert found.graph is None
    assert found.kernel.median > 0
    assert any("cannot be captured" in note for note in found.notes)


def test_a_side_is_not_told_from_itself(product):
    found = interleave([Side("a", [product]), Side("b", [product])], device="cuda")
    assert found.pairs[0].comparison.verdict == "no difference shown"
