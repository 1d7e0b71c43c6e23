from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from pagedbench.backends.base import Traits
from pagedbench.checks.budget import SLACK, row_budget
from pagedbench.oracle.reference import Reference
from tests.tensors.cells import scenario

ATTENTION = scenario().attention


def row(
    o: float = 1.0, p2v2: float = 4.0, peak: float = 1.0, visible: int = 10, p2: float = 0.25, lse: float = 2.0
) -> Reference:
    return Reference(
        rows=torch.tensor([0]),
        out=torch.tensor([[[o]]]).double(),
        lse=torch.tensor([[lse]]).double(),
        p2v2=torch.tensor([[p2v2]]).double(),
        p2=torch.tensor([[p2]]).double(),
        peak=torch.tensor([[peak]]).double(),
        visible=torch.tensor([visible]),
        sampled=False,
        total_rows=1,
    )


def test_it_is_the_formula_of_its_docstring() -> None:
    # bf16 for the weights and the result: 2 * 2^-9 * (|o| = 1 + sqrt(4)), scores in fp32 hardly add.
    assert row_budget(row(), ATTENTION, Traits()).out.item() == pytest.approx(SLACK * 2**-9 * 3, rel=1e-3)


def test_it_scales_with_the_row() -> None:
    small, big = row(0.01, 4e-4), row(100.0, 4e4)
    ratio = row_budget(big, ATTENTION, Traits()).out / row_budget(small, ATTENTION, Traits()).out
    assert ratio.item() == pytest.approx(1e4)


def test_what_a_backend_declares_widens_it() -> None:
    plain = row_budget(row(peak=8.0), ATTENTION, Traits()).out.item()
    eager = row_budget(row(peak=8.0), ATTENTION, Traits(score_rounding=True)).out.item()
    fp8 = row_budget(row(), ATTENTION, Traits(p_dtype="float8_e4m3fn")).out.item()
    assert eager > 8 * plain
    assert fp8 == pytest.approx(SLACK * (2**-5 * 2 + 2**-9), rel=1e-3)
    # A tanh of the hardware counts only where there is a softcap.
    rough = Traits(tanh_error=2.0**-11)
    capped = replace(ATTENTION, softcap=30.0)
    assert row_budget(row(), ATTENTION, rough).out.item() == row_budget(row(), ATTENTION, Traits()).out.item()
    assert row_budget(row(), capped, rough).out.item() > row_budget(row(), capped, Traits()).out.item()
    # An exponential that is a polynomial shows in the LSE first, which is fp32.
    cubic, exact = (row_budget(row(), ATTENTION, Traits(exp_error=error)) for error in (2.0**-13, 0.0))
    assert (cubic.lse - exact.lse).item() == pytest.approx(2.0**-13)
    assert 1 < cubic.out.item() / exact.out.item() < 1.1


def test_a_sink_far_above_the_keys_makes_large_numbers_of_small_scores() -> None:
    # What transformers' eager attention does: scores in bf16, less the largest of them and the sink, in bf16 again.
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(512, 8, generator=generator, dtype=torch.float64).bfloat16()
    v = torch.randn(512, 8, 64, generator=generator, dtype=torch.float64).bfloat16()
    sink = 9.0
    lessened = (scores - sink).bfloat16()
    weights = lessened.float().exp() / (1 + lessened.float().exp().sum(-1, keepdim=True))
    out = torch.bmm(weights.bfloat16()[:, None], v)[:, 0]

    exact = scores.double().exp() / (math.exp(sink) + scores.double().exp().sum(-1, keepdim=True))
    true = torch.bmm(exact[:, None], v.double())[:, 0]
    reference = replace(
        row(),
        out=true[:, None],
        lse=torch.log(math.exp(sink) + scores.double().exp().sum(-1))[:, None],
        p2v2=(exact.square() * v.double().square().sum(-1)).sum(-1)[:, None],
        p2=exact.square().sum(-1)[:, None],
        peak=scores.double().amax(-1)[:, None],
        visible=torch.full((512,), 8),
    )
    attention = replace(ATTENTION, num_heads=1, num_kv_heads=1, sinks=(sink,))
    error = (out.double() - true).norm(dim=-1)
    share = error / row_budget(reference, attention, Traits(score_rounding=True)).out[:, 0]
    assert 0.2 < share.max() < 1
    assert (error / row_budget(reference, attention, Traits()).out[:, 0]).max() > 1


def test_weights_kept_in_fp32_narrow_it() -> None:
    assert row_budget(row(), ATTENTION, Traits(p_dtype="float32")).out.item() == pytest.approx(SLACK * 2**-9, rel=1e-2)


def test_a_row_without_keys_has_none() -> None:
    budget = row_budget(row(0.0, 0.0, -math.inf, visible=0), ATTENTION, Traits())
    assert budget.out.item() == 0.0


def test_the_lse_of_a_row_without_keys_is_its_sink_to_a_few_roundings_or_minus_infinity() -> None:
    def budget(lse: float) -> float:
        return row_budget(row(0.0, 0.0, -math.inf, visible=0, lse=lse), ATTENTION, Traits()).lse.item()

    ulp = 2.0**-23
    assert 2 * ulp < budget(-1.0) < 1e-6
    assert 2 * 8 * ulp < budget(8.0) < 8e-6
    assert budget(0.0) > 0  # log2(exp2(0)) is 0, but a kernel may take its way by another score
    assert budget(-math.inf) == 0


def test_fp8_products_added_with_few_bits_count_where_both_factors_are_fp8() -> None:
    rough = Traits(fp8_score_error=2.0**-13)
    both = replace(ATTENTION, q_dtype="float8_e4m3fn", kv_dtype="float8_e4m3fn")
    keys_only = replace(both, q_dtype="bfloat16")
    assert row_budget(row(peak=3.0), both, rough).lse.item() == pytest.approx(SLACK * 2**-13 * 3, rel=0.05)
    assert row_budget(row(), keys_only, rough).lse.item() == row_budget(row(), keys_only, Traits()).lse.item()


class TestASumOfRoundedWeights:
    """bf16: u is 2^-9. Exact sums of rounded weights against the sums of the weights themselves."""

    traits = Traits(sum_of_rounded_weights=True)

    def budget(self, scores: torch.Tensor, sink: float = -math.inf) -> torch.Tensor:
        lse = torch.logaddexp(scores.logsumexp(-1), scores.new_tensor(sink))[:, None]
        p2 = torch.exp(scores - lse).square().sum(-1, keepdim=True)
        some = Reference(
            rows=torch.arange(len(scores)),
            out=torch.zeros(len(scores), 1, 1).double(),
            lse=lse,
            p2v2=p2,
            p2=p2,
            peak=scores.amax(-1, keepdim=True),
            visible=torch.full((len(scores),), scores.shape[1]),
            sampled=False,
            total_rows=len(scores),
        )
        attention = ATTENTION if sink == -math.inf else replace(ATTENTION, sinks=(sink,))
        return row_budget(some, attention, self.traits).lse[:, 0] - row_budget(some, attention, Traits()).lse[:, 0]

    @pytest.mark.parametrize("spread", [1e-4, 1e-3, 3e-3, 0.01, 0.02, 0.05, 0.3, 1.0, 4.0])
    @pytest.mark.parametrize("keys", [2, 3, 10, 100, 1000])
    @pytest.mark.parametrize("sink", [-math.inf, 1.0])
    def test_is_within_it_however_alike_the_scores_are(self, spread: float, keys: int, sink: float) -> None:
        scores = spread * torch.randn(1000, keys, generator=torch.Generator().manual_seed(keys)).double()
        peak = scores.amax(-1, keepdim=True)
        weights, of_sink = torch.exp(scores - peak), torch.exp(sink - peak[:, 0])
        error = torch.log(weights.bfloat16().double().sum(-1) + of_sink) - torch.log(weights.sum(-1) + of_sink)
        assert bool((error.abs() <= self.budget(scores, sink) + 1e-12).all())

    def test_is_exact_where_all_weights_are_the_largest(self) -> None:
        assert self.budget(torch.zeros(1, 1).double()).item() == pytest.approx(0.0, abs=1e-12)

    def test_is_tight_where_keys_are_many(self) -> None:
        # A thousand keys of normal scores: sum p² is e / 1000, so 5 * 2^-9 * 0.052; a lost key shows in the LSE.
        scores = torch.randn(100, 1000, generator=torch.Generator().manual_seed(0)).double()
        assert float(self.budget(scores).mean()) == pytest.approx(5 * 2**-9 * (math.e / 1000) ** 0.5, rel=0.1)


def test_that_of_the_lse_sees_a_lost_key_among_ten_thousand() -> None:
    lost = -math.log(1 - 1e-4)
    assert row_budget(row(peak=4.0, visible=10_000), ATTENTION, Traits()).lse.item() < lost


def test_a_sum_of_tensor_cores_may_lose_what_fp32_cuts_off_at_every_product() -> None:
    # 131,072 weights of a third in the mean, 16 at a time onto a sum that is cut off to 24 bits.
    keys, weight, total = 131_072, 1 / 3, 0.0
    for _ in range(keys // 16):
        exact = total + 16 * weight
        exponent = math.frexp(exact)[1]
        step = 2.0 ** (exponent - 24)
        total = math.floor(exact / step) * step
    lost = -math.log(total / (keys * weight))
    equal = row(p2=1 / keys, peak=0.0, visible=keys, lse=math.log(keys))
    budget = row_budget(equal, ATTENTION, Traits(sum_of_rounded_weights=True)).lse.item()
    assert 1e-5 < lost < budget


def test_fp16_has_room_for_results_too_small_to_be_normal() -> None:
    half = replace(ATTENTION, dtype="float16", kv_dtype="float16")
    assert row_budget(row(0.0, 1e-20), half, Traits()).out.item() >= 2**-25


@pytest.mark.parametrize(("dtype", "bits"), [(torch.bfloat16, 8), (torch.float16, 11)])
def test_the_worst_rounding_of_a_result_is_within_it(dtype: torch.dtype, bits: int) -> None:
    """Just above a power of two, half way to the next number: the largest relative error that rounding makes."""
    worst = 1 + 2.0**-bits * (1 - 1e-6)
    error = abs(float(torch.tensor(worst, dtype=torch.float64).to(dtype)) - worst)
    name = str(dtype).removeprefix("torch.")
    attention = replace(ATTENTION, dtype=name, kv_dtype=name)
    budget = row_budget(row(o=worst, p2v2=0.0), attention, Traits(p_dtype="float32")).out.item()
    assert 0.99 * budget < error < budget


def test_alibi_counted_from_the_first_key_leaves_fewer_bits_for_the_lse() -> None:
    """As causal FlashAttention-2 does it, all in fp32: slope * j for key j, and slope * position taken off the LSE."""
    slope, keys = 0.5, 2101
    scores = torch.randn(64, keys, generator=torch.Generator().manual_seed(0), dtype=torch.float64).float()
    at = torch.arange(keys)
    told = torch.logsumexp(scores + slope * at, -1) - slope * (keys - 1)
    needed = torch.logsumexp(scores.double() - slope * (keys - 1 - at), -1)
    error = float((told.double() - needed).abs().max())
    reference = replace(row(peak=4.0), visible=torch.tensor([keys]), lse=needed[:1, None])
    attention = replace(ATTENTION, alibi_slopes=(slope,))
    plain, declared = (
        row_budget(reference, attention, Traits(alibi_from_start=start)).lse.item() for start in (False, True)
    )
    assert plain < error < declared < 100 * error
