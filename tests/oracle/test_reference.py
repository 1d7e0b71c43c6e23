"""The oracle against hand counts, torch's own attention, a slow dense attention and properties."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedbench.layout.batch import BatchLayout
from pagedbench.layout.build import build_layout
from pagedbench.oracle import reference as module
from pagedbench.oracle.reference import Limits, NoReference, Reference, attention_flops, reference
from pagedbench.scenario.model import Scenario
from pagedbench.tensors.inputs import LogicalInputs, random_inputs
from tests.tensors.cells import scenario, scenarios

TINY = Limits(scores=64, flops=math.inf)
"""Tiles of a few scores: every loop of the oracle turns more than once."""


def inputs_of(wanted: Scenario, layout: BatchLayout) -> LogicalInputs:
    return random_inputs(wanted, layout, "cpu")


def answer(wanted: Scenario, inputs: LogicalInputs | None = None, **how: object) -> Reference:
    layout = build_layout(wanted)
    values = inputs or inputs_of(wanted, layout)
    return reference(values, layout, wanted.attention, device="cpu", **how)  # type: ignore[arg-type]


def dense(wanted: Scenario, inputs: LogicalInputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and LSE with one whole score matrix a sequence, masks written from the words of the design."""
    batch, a = wanted.batch, wanted.attention
    out, lse, q_at, k_at = [], [], 0, 0
    for q_len, cached in zip(batch.query_lens, batch.cached_lens, strict=True):
        k_len = cached + (q_len if batch.append else 0)
        q, k, v = inputs.q[q_at : q_at + q_len], inputs.k[k_at : k_at + k_len], inputs.v[k_at : k_at + k_len]
        q_at, k_at = q_at + q_len, k_at + k_len
        k, v = (t.double().repeat_interleave(a.group_size, 1) for t in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q.double(), k) * a.softmax_scale
        if a.softcap is not None:
            scores = a.softcap * torch.tanh(scores / a.softcap)
        own = torch.arange(q_len)[:, None] + k_len - q_len
        key = torch.arange(k_len)[None, :]
        if a.alibi_slopes is not None:
            scores = scores - torch.tensor(a.alibi_slopes)[:, None, None] * (own - key).abs()
        left, right = a.window_size
        seen = torch.ones(q_len, k_len, dtype=torch.bool)
        if a.causal:
            seen &= key <= own
        if left != -1:
            seen &= key >= own - left
        if right != -1:
            seen &= key <= own + right
        scores = scores.masked_fill(~seen, -math.inf)
        sink = torch.full((a.num_heads, q_len, 1), -math.inf).double()
        if a.sinks is not None:
            sink[:] = torch.tensor(a.sinks)[:, None, None]
        row_lse = torch.logsumexp(torch.cat([scores, sink], -1), -1)
        weights = torch.exp(scores - row_lse.masked_fill(row_lse == -math.inf, 0.0)[..., None])
        out.append(torch.einsum("hqk,khd->qhd", weights, v))
        lse.append(row_lse.T)
    if not out:
        return torch.zeros(0, a.num_heads, a.head_dim_v).double(), torch.zeros(0, a.num_heads).double()
    return torch.cat(out), torch.cat(lse)


def assert_same(found: Reference, out: torch.Tensor, lse: torch.Tensor) -> None:
    torch.testing.assert_close(found.out, out, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(found.lse, lse, rtol=1e-11, atol=1e-12)


class TestByHand:
    """One head of dim 1, scale 1: scores are products of numbers that one can multiply in the head."""

    def cell(self, q: list[float], k: list[float], v: list[float], cached: int, **attention: object) -> Reference:
        wanted = scenario((len(q),), (cached,), append=len(k) > cached, heads=(1, 1), head_dim=1, dtype="float32")
        wanted = replace(wanted, attention=replace(wanted.attention, softmax_scale=1.0, **attention))  # type: ignore[arg-type]
        column = [torch.tensor(values).view(-1, 1, 1) for values in (q, k, v)]
        return answer(wanted, LogicalInputs(*column))

    def test_two_keys_with_weights_one_and_three(self) -> None:
        # scores 0 and ln 3: weights 1/4 and 3/4; output 1/4 * 8 + 3/4 * 4 = 5; LSE ln 4.
        found = self.cell([1.0], [0.0, math.log(3)], [8.0, 4.0], cached=2)
        assert found.out.item() == pytest.approx(5.0)
        assert found.lse.item() == pytest.approx(math.log(4), rel=1e-7)
        # sum p^2 v^2 = (1/4 * 8)^2 + (3/4 * 4)^2 = 4 + 9.
        assert found.p2v2.item() == pytest.approx(13.0)
        assert found.p2.item() == pytest.approx(1 / 16 + 9 / 16)
        assert found.peak.item() == pytest.approx(math.log(3), rel=1e-7)
        assert found.visible.tolist() == [2]

    def test_causal_is_aligned_to_the_last_key(self) -> None:
        # Two query tokens, three keys, all scores 0: the first sees two keys, the second three.
        found = self.cell([0.0, 0.0], [0.0, 0.0, 0.0], [6.0, 0.0, 3.0], cached=1)
        assert found.out.flatten().tolist() == pytest.approx([3.0, 3.0])
        assert found.visible.tolist() == [2, 3]
        assert found.lse.flatten().tolist() == pytest.approx([math.log(2), math.log(3)])

    def test_rows_that_see_no_key_are_zero_with_lse_minus_infinity(self) -> None:
        # Four query tokens, one key, causal: only the last one sees it.
        found = self.cell([0.0] * 4, [0.0], [7.0], cached=1)
        assert found.out.flatten().tolist() == [0.0, 0.0, 0.0, 7.0]
        assert found.lse.flatten().tolist() == [-math.inf] * 3 + [0.0]
        assert found.visible.tolist() == [0, 0, 0, 1]

    def test_a_window_of_two_keys_holds_the_token_itself_and_one_before(self) -> None:
        found = self.cell([0.0, 0.0], [0.0] * 4, [8.0, 4.0, 2.0, 6.0], cached=2, window_size=(1, 0))
        assert found.out.flatten().tolist() == pytest.approx([3.0, 4.0])

    def test_a_sink_takes_weight_and_gives_nothing(self) -> None:
        # Two keys of score 0 and a sink of ln 2: the keys weigh 1/4 each.
        found = self.cell([0.0], [0.0, 0.0], [8.0, 4.0], cached=2, sinks=(math.log(2),))
        assert found.out.item() == pytest.approx(3.0)
        assert found.lse.item() == pytest.approx(math.log(4))

    def test_the_lse_of_a_row_without_keys_is_the_sink(self) -> None:
        found = self.cell([0.0, 0.0], [0.0], [7.0], cached=1, sinks=(0.5,))
        assert found.lse.flatten().tolist() == pytest.approx([0.5, math.log(1 + math.exp(0.5))])
        assert found.out[0].item() == 0.0

    def test_softcap_acts_on_the_scaled_score(self) -> None:
        found = self.cell([3.0], [1.0, 0.0], [1.0, 0.0], cached=2, softcap=2.0)
        capped = 2.0 * math.tanh(3.0 / 2.0)
        assert found.out.item() == pytest.approx(math.exp(capped) / (math.exp(capped) + 1))

    def test_alibi_lowers_a_score_by_slope_times_distance(self) -> None:
        # The last token is at 2; keys at 0, 1, 2 are 2, 1, 0 away; slope ln 2 halves a weight for each.
        found = self.cell([0.0], [0.0, 0.0, 0.0], [7.0, 7.0, 0.0], cached=2, alibi_slopes=(math.log(2),))
        assert found.out.item() == pytest.approx(7.0 * (0.25 + 0.5) / 1.75)


@pytest.mark.parametrize("limits", [None, TINY])
@given(wanted=scenarios())
@settings(max_examples=40, deadline=None)
def test_it_equals_a_dense_attention(limits: Limits | None, wanted: Scenario) -> None:
    inputs = inputs_of(wanted, build_layout(wanted))
    assert_same(answer(wanted, inputs, limits=limits), *dense(wanted, inputs))


@pytest.mark.parametrize("causal", [False, True])
def test_it_equals_torch_s_own_math_attention(causal: bool) -> None:
    wanted = scenario((37,), (0,), heads=(6, 2), head_dim=32, dtype="float32", attention={"causal": causal})
    inputs = inputs_of(wanted, build_layout(wanted))
    q, k, v = (t.double().transpose(0, 1)[None] for t in (inputs.q, inputs.k, inputs.v))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    torch.testing.assert_close(answer(wanted, inputs, limits=TINY).out, out[0].transpose(0, 1), rtol=1e-11, atol=1e-12)


def test_alibi_equals_a_dense_attention_on_many_heads() -> None:
    slopes = tuple(2.0**-i for i in range(4))
    wanted = scenario((5, 3), (9, 0), attention={"alibi_slopes": slopes})
    inputs = inputs_of(wanted, build_layout(wanted))
    assert_same(answer(wanted, inputs, limits=TINY), *dense(wanted, inputs))


class TestProperties:
    """What holds for any attention, whatever its numbers."""

    def free(self, keys: int = 40, **more: object) -> tuple[Scenario, LogicalInputs]:
        wanted = scenario((3,), (keys,), append=False, dtype="float32", attention={"causal": False, **more})
        return wanted, inputs_of(wanted, build_layout(wanted))

    def test_the_order_of_keys_does_not_matter_without_causality(self) -> None:
        wanted, inputs = self.free()
        order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
        shuffled = replace(inputs, k=inputs.k[order], v=inputs.v[order])
        assert_same(answer(wanted, shuffled), answer(wanted, inputs).out, answer(wanted, inputs).lse)

    def test_two_halves_merge_by_their_lse(self) -> None:
        wanted, inputs = self.free()
        half, _ = self.free(20)
        parts = [
            answer(half, replace(inputs, k=inputs.k[part], v=inputs.v[part])) for part in (slice(20), slice(20, 40))
        ]
        lse = torch.logaddexp(parts[0].lse, parts[1].lse)
        out = sum(p.out * torch.exp(p.lse - lse)[..., None] for p in parts)
        assert_same(answer(wanted, inputs), out, lse)  # type: ignore[arg-type]

    def test_constant_values_come_out_as_they_are(self) -> None:
        wanted, inputs = self.free()
        constant = replace(inputs, v=torch.full_like(inputs.v, 2.5))
        torch.testing.assert_close(answer(wanted, constant).out, torch.full((3, 4, 16), 2.5).double())

    def test_a_shift_of_all_scores_shifts_the_lse_alone(self) -> None:
        # One more head dim that is 1 in every key adds q's entry there to every score.
        wanted, inputs = self.free()
        shift = replace(inputs, k=inputs.k.clone(), q=inputs.q.clone())
        shift.k[..., 0], shift.q[..., 0] = 1.0, 0.0
        base = answer(wanted, shift)
        shift.q[..., 0] = 300.0 / wanted.attention.softmax_scale
        moved = answer(wanted, shift)
        torch.testing.assert_close(moved.out, base.out, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(moved.lse, base.lse + 300.0, rtol=1e-9, atol=1e-9)

    def test_huge_scores_do_not_overflow(self) -> None:
        wanted, inputs = self.free()
        found = answer(wanted, replace(inputs, q=inputs.q * 1e5))
        assert found.out.isfinite().all()
        assert found.lse.isfinite().all()

    def test_a_sequence_s_answer_does_not_depend_on_its_mates(self) -> None:
        together = scenario((2, 3, 1), (30, 0, 9))
        inputs = inputs_of(together, build_layout(together))
        alone = scenario((3,), (0,))
        own = LogicalInputs(inputs.q[2:5], inputs.k[32:35], inputs.v[32:35])
        torch.testing.assert_close(answer(together, inputs).out[2:5], answer(alone, own).out, rtol=1e-12, atol=1e-13)

    def test_weights_squared_are_between_those_of_one_key_and_of_many(self) -> None:
        wanted, inputs = self.free()
        found = answer(wanted, replace(inputs, v=torch.ones_like(inputs.v)))
        # |v|² is 16, and 1/n <= sum p² <= 1.
        assert ((found.p2v2 >= 16 / 40) & (found.p2v2 <= 16)).all()

    @given(st.integers(1, 60))
    @settings(max_examples=10, deadline=None)
    def test_any_tile_size_gives_the_same_answer(self, scores: int) -> None:
        wanted = scenario((7, 1), (5, 33))
        found = answer(wanted, limits=Limits(scores, math.inf))
        assert_same(found, answer(wanted).out, answer(wanted).lse)


def test_quantised_keys_and_values_are_multiplied_by_their_scales() -> None:
    scales = {"k_scale": 0.5, "v_scale": 0.25}
    wanted = scenario((1,), (20,), kv_dtype="float8_e4m3fn", attention=scales)
    inputs = inputs_of(wanted, build_layout(wanted))
    plain = scenario((1,), (20,), dtype="float32")
    exact = LogicalInputs(inputs.q.float(), inputs.k.float() * 0.5, inputs.v.float() * 0.25)
    found, needed = answer(wanted, inputs), answer(plain, exact)
    assert_same(found, needed.out, needed.lse)
    torch.testing.assert_close(found.p2v2, needed.p2v2)
    torch.testing.assert_close(found.p2, needed.p2)


class TestRows:
    def test_rows_asked_for_are_those_of_the_whole_answer(self) -> None:
        wanted = scenario((10, 3, 1), (0, 1, 7))
        rows = torch.tensor([0, 4, 9, 12, 13])
        whole, some = answer(wanted), answer(wanted, rows=rows, limits=TINY)
        assert some.sampled
        assert some.total_rows == 14
        assert_same(some, whole.out[rows], whole.lse[rows])

    def test_where_all_would_take_too_long_a_seeded_sample_is_answered(self) -> None:
        wanted = scenario((600, 1, 5), (0, 40, 64), cache={"block_size": 16})
        layout = build_layout(wanted)
        few = Limits(1 << 20, attention_flops(layout, wanted.attention) / 10)
        found = answer(wanted, limits=few)
        rows = found.rows.tolist()
        assert found.sampled
        assert found.total_rows == 606
        assert len(rows) < 200
        assert {0, 599, 600, 601, 605} <= set(rows), "first and last row of every sequence"
        assert rows == sorted(set(rows))
        assert answer(wanted, limits=few).rows.tolist() == rows
        assert answer(wanted, limits=few, seed=1).rows.tolist() != rows

    def test_a_sample_holds_rows_at_block_boundaries(self) -> None:
        wanted = scenario((512,), (0,), cache={"block_size": 64})
        few = Limits(1 << 20, attention_flops(build_layout(wanted), wanted.attention) / 20)
        rows = answer(wanted, limits=few).rows
        at_edge = (rows % 64 == 0) | (rows % 64 == 63)
        assert int(at_edge.sum()) > len(rows) / 4, "where by luck it were one in 32"

    def test_an_empty_batch_has_an_empty_answer(self) -> None:
        found = answer(scenario((), ()))
        assert found.out.shape == (0, 4, 16)
        assert not found.sampled


def test_running_out_of_memory_is_no_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("tried to allocate")

    monkeypatch.setattr(module.torch, "bmm", no_memory)
    with pytest.raises(NoReference, match="ran out of memory"):
        answer(scenario())


def test_memory_does_not_grow_with_the_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    largest = 0
    product = torch.bmm

    def watched(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        nonlocal largest
        result = product(a, b)
        largest = max(largest, result.numel(), a.numel(), b.numel())
        return result

    monkeypatch.setattr(module.torch, "bmm", watched)
    limits = Limits(1 << 14, math.inf)
    answer(scenario((300,), (3000,)), limits=limits)
    answer(scenario((1,), (60_000,)), limits=limits)
    assert largest <= 2 * limits.scores


@pytest.mark.gpu
def test_a_gpu_gives_the_same_answer() -> None:
    wanted = scenario((10, 3, 1, 100), (0, 1, 700, 33), attention={"sinks": (0.1, 0.2, 0.3, 0.4), "softcap": 2.0})
    layout = build_layout(wanted)
    on_gpu = reference(random_inputs(wanted, layout, "cuda"), layout, wanted.attention, device="cuda")
    needed = answer(wanted)
    torch.testing.assert_close(on_gpu.out.cpu(), needed.out, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(on_gpu.lse.cpu(), needed.lse, rtol=1e-11, atol=1e-12)
