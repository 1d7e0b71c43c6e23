from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pagedbench.backends.base import Availability, Backend, Output, Traits
from pagedbench.checks.graph_replay import GraphReplay, capture_lens
from pagedbench.scenario.model import Override
from pagedbench.tensors.call import Call
from pagedbench.words import AttnPath, Verdict
from tests.checks.kernels import Plain, context
from tests.tensors.cells import scenario


class TestDoesNotApply:
    def reason(
        self, path: AttnPath = AttnPath.DECODE, device: str = "cuda", traits: Traits | None = None
    ) -> str | None:
        return GraphReplay().not_applicable(context(scenario(), Plain(traits=traits), path, device))

    def test_without_a_gpu(self) -> None:
        assert self.reason(device="cpu") == "CUDA graphs need a CUDA device"

    def test_to_keys_that_are_gathered(self) -> None:
        assert "change their shape" in (self.reason(AttnPath.VARLEN) or "")

    def test_to_a_backend_that_cannot_be_captured(self) -> None:
        assert "cannot be captured" in (self.reason(traits=Traits(graph_safe=False)) or "")

    def test_to_arrays_that_are_wrong_on_purpose(self) -> None:
        wanted = replace(scenario(), override=Override({"max_seqlen_k": 1}))
        assert GraphReplay().not_applicable(context(wanted, Plain(), device="cuda"))

    def test_but_to_everything_else(self) -> None:
        assert self.reason() is None


class TestCaptureLengths:
    def lens(self, traits: Traits | None = None, given: tuple[int, ...] | None = None) -> list[int]:
        wanted = replace(scenario(), graph_capture_lens=given)
        return capture_lens(context(wanted, Plain()), traits or Traits()).tolist()

    def test_are_the_longest_for_all(self) -> None:
        assert self.lens() == [70, 70, 70]

    def test_are_the_scenario_s_if_it_gives_some(self) -> None:
        assert self.lens(given=(40, 50, 90)) == [40, 50, 90]

    def test_are_at_most_what_the_table_holds(self) -> None:
        # Three blocks for 71 keys and two spare columns: 160 slots, one for the new token.
        assert self.lens(given=(9999, 1, 1)) == [159, 1, 1]

    def test_are_those_of_the_replay_where_the_plan_has_them_baked_in(self) -> None:
        assert self.lens(Traits(graph_lengths=False)) == [30, 32, 70]


class GraphKernel(Backend):
    """Attention over every slot of the table with masks: no length comes from the host, so it can be captured."""

    name = "graph"

    def available(self, device: str) -> Availability:
        return Availability(True)

    def decode(self, call: Call, plan: object) -> Output:
        size = call.spec.block_size
        place = call.cache_seqlens.long()
        rows = torch.arange(call.spec.batch, device=call.q.device)
        block = call.block_table[rows, place // size].long()
        call.k_cache[block, place % size] = call.k_new  # type: ignore[index]
        call.v_cache[block, place % size] = call.v_new  # type: ignore[index]
        blocks = call.block_table.clamp(min=0).long()
        k = call.k_cache[blocks].flatten(1, 2).float().repeat_interleave(call.spec.group_size, 2)
        v = call.v_cache[blocks].flatten(1, 2).float().repeat_interleave(call.spec.group_size, 2)
        seen = torch.arange(k.shape[1], device=call.q.device) < call.total_seqlens[:, None]
        scores = torch.einsum("bhd,bkhd->bhk", call.q.float(), k) * call.spec.softmax_scale
        scores = torch.where(seen[:, None], scores, -torch.inf)
        lse = torch.logsumexp(scores, -1)
        weights = torch.exp(scores - lse[..., None])
        out = torch.einsum("bhk,bkhd->bhd", weights, torch.where(seen[..., None, None], v, 0.0))
        return Output(out.to(call.q.dtype), lse)


@pytest.mark.gpu
@pytest.mark.parametrize("given", [None, (100, 120, 90), (3, 3, 3)])
def test_a_replay_at_other_lengths_is_right(given: tuple[int, ...] | None) -> None:
    wanted = replace(scenario(), graph_capture_lens=given)
    result = GraphReplay().run(context(wanted, GraphKernel(), device="cuda"))
    assert result.verdict is Verdict.PASS, result.message
    assert result.message.startswith("captured at")


@pytest.mark.gpu
def test_padding_rows_stay_harmless_in_a_replay() -> None:
    wanted = scenario((1, 1, 1), (30, 70, 0), padding_rows=1, cache={"trash_block": True})
    assert GraphReplay().run(context(wanted, GraphKernel(), device="cuda")).verdict is Verdict.PASS


@pytest.mark.gpu
def test_lengths_taken_at_capture_are_found() -> None:
    class BakedLengths(GraphKernel):
        def plan(self, call: Call) -> object:
            assert call.host is not None
            return call.host.total_seqlens.to(call.q.device)

        def decode(self, call: Call, plan: torch.Tensor) -> Output:  # type: ignore[override]
            return super().decode(replace(call, total_seqlens=plan), plan)

    result = GraphReplay().run(context(scenario(), BakedLengths(), device="cuda"))
    assert result.verdict.is_wrong
