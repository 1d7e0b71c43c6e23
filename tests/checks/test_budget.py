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


def row(o: float = 1.0, p2v2: float = 4.0, peak: float = 1.0, visible: int = 10) -> Reference:
    return Reference(
        rows=torch.tensor([0]),
        out=torch.tensor([[[o]]]).double(),
        lse=torch.tensor([[2.0]]).double(),
        p2v2=torch.tensor([[p2v2]]).double(),
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


def test_weights_kept_in_fp32_narrow_it() -> None:
    assert row_budget(row(), ATTENTION, Traits(p_dtype="float32")).out.item() == pytest.approx(SLACK * 2**-9, rel=1e-2)


def test_a_row_without_keys_has_none() -> None:
    budget = row_budget(row(0.0, 0.0, -math.inf, visible=0), ATTENTION, Traits())
    assert budget.out.item() == 0.0


def test_that_of_the_lse_sees_a_lost_key_among_ten_thousand() -> None:
    lost = -math.log(1 - 1e-4)
    assert row_budget(row(peak=4.0, visible=10_000), ATTENTION, Traits()).lse.item() < lost


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
