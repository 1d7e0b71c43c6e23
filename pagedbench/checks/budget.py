"""How far a row of a right kernel may be from the oracle, from the arithmetic that the kernel is declared to do.

Output of a row, as the L2 norm over the head dim: err ≤ c (u_o |o| + u_p √(Σ p²|v|²) + u_s √(Σ p²|v|² + |o|²)).
Rounding every weight p to the dtype it has in the product with V is an independent relative error of every term of the
sum, rounding the result one of it, and an error of a score is a relative error of its weight. Each scales with the row,
so a row of 131,072 keys has a budget as tight as one of 70. The terms are added, not their squares: with equal values
in all of V the roundings of a row have one direction. So they have where the weights are alike, 1/255 each say: then
|o| stands for √(Σ p²|v|²) where it is larger. Nothing here looks at what a kernel returned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from pagedbench.backends.base import Traits
from pagedbench.oracle.reference import Reference
from pagedbench.scenario.model import Attention

SLACK = 2.0
"""c: 2 u is the most that rounding to nearest can do to one number, so it covers the result's own rounding for certain
and that of many weights by far."""

UNIT = {"bfloat16": 2.0**-9, "float16": 2.0**-12, "float8_e4m3fn": 2.0**-5, "float32": 2.0**-20}
"""u: about the relative error of a rounding in the mean; fp32 has room for long sums, which are in fp32 everywhere."""

DEVIATIONS = 5.0
"""How many units the sum of many roundings may be off: the LSE is one number, where an output's norm is the mean of a
head dim of them. Roundings to nearest have a standard deviation of 0.8 u, so this is 6 of them: one row in 10⁹."""

_FP32 = 2.0**-24
MMA_KEYS = 16  # that one product of tensor cores adds up in 16-bit dtypes
_SCORE_IN_FP32 = 2.0**-22
_FP16_LEAST_HALF = 2.0**-25
_FP32_LEAST_NORMAL = 2.0**-126
_BLIND_LSE_UNITS = 8.0  # of the sink alone: times log2 e, exp2, log2 and times ln 2, each rounded to fp32


@dataclass(frozen=True)
class RowBudget:
    """`out`, `lse` `(rows, num_heads)` fp64: the largest permitted distance from the oracle; 0 demands equality."""

    out: torch.Tensor
    lse: torch.Tensor


def row_budget(reference: Reference, attention: Attention, traits: Traits) -> RowBudget:
    """The budgets of the reference's rows for a backend with these traits; 0 for rows without keys."""
    o2, p2v2 = reference.out.square().sum(-1), reference.p2v2
    height = score_height(reference, attention, traits)
    unit_p = UNIT[traits.p_dtype or attention.kv_dtype]
    unit_s = score_unit(attention, traits)
    of_weights = torch.where(weights_vary(reference, attention, unit_p), p2v2, p2v2.maximum(o2)).sqrt()
    rounding = UNIT[attention.dtype] * o2.sqrt() + (unit_p + traits.exp_error) * of_weights
    budget = SLACK * (rounding + unit_s * height * (p2v2 + o2).sqrt()) + _subnormal(reference, attention, traits)
    lse = _lse_budget(reference, height, unit_s) + traits.exp_error
    if traits.sum_of_rounded_weights:
        lse = lse + _rounded_sum(reference, attention, UNIT[traits.p_dtype or attention.dtype])
    seeing = (reference.visible > 0)[:, None]
    return RowBudget(torch.where(seeing, budget, 0.0), torch.where(seeing, lse, _blind_lse(reference)))


def score_height(reference: Reference, attention: Attention, traits: Traits) -> torch.Tensor:
    """`(rows, num_heads)` fp64: the size of the numbers that are rounded as scores. Beside a sink they have been
    lessened by the larger of peak and sink, where a backend rounds them, and a sink far above all keys makes large
    numbers of small scores. So does ALiBi counted from the first key: slope * position is added to all of a row."""
    height = reference.peak.abs().clamp(min=1.0)
    if traits.alibi_from_start and attention.alibi_slopes is not None and attention.causal:
        height = height + reference.visible.double()[:, None] * reference.peak.new_tensor(attention.alibi_slopes)
    if traits.score_rounding and attention.sinks is not None:
        height = height + (reference.peak.new_tensor(attention.sinks) - reference.peak).clamp(min=0.0)
    return height


def score_unit(attention: Attention, traits: Traits) -> float:
    """The relative error of a score: fp32 accumulation, two roundings to the input dtype, a tanh of the hardware, fp8
    products that are added with few bits."""
    rounding = 2 * UNIT[attention.dtype] if traits.score_rounding else 0.0
    tanh = traits.tanh_error if attention.softcap is not None else 0.0
    in_fp8 = attention.q_dtype.startswith("float8") and attention.kv_dtype.startswith("float8")
    fp8 = traits.fp8_score_error if in_fp8 else 0.0
    return float((_SCORE_IN_FP32**2 + rounding**2 + tanh**2 + fp8**2) ** 0.5)


def weights_vary(reference: Reference, attention: Attention, unit_p: float) -> torch.Tensor:
    """`(rows, num_heads)` bool: whether the weights of a row are so far apart that each is rounded (to units of
    `unit_p`) by itself; those within a few steps of each other are all rounded to the same side."""
    of_keys = torch.ones_like(reference.lse)
    if attention.sinks is not None:
        of_keys = -torch.expm1(reference.lse.new_tensor(attention.sinks) - reference.lse)
    variation = reference.visible.double()[:, None] * reference.p2 / of_keys.square() - 1  # variance of weight / mean
    return variation > (8 * unit_p) ** 2


def _lse_budget(reference: Reference, height: torch.Tensor, unit_s: float) -> torch.Tensor:
    """LSE is fp32 and computed in fp32: some roundings at the size of the scores and of the LSE, a sum of n weights
    (whose error grows like √n), and the scores' own error, which all scores of a row may share."""
    roundings = 16 * (height + reference.lse.abs()) + reference.visible.double().sqrt()[:, None]
    return _FP32 * roundings + SLACK * unit_s * height


def _blind_lse(reference: Reference) -> torch.Tensor:
    """The LSE of a row without keys is its sink, which kernels take through exp2 and log2 like any other score; without
    a sink it is −inf, exactly."""
    size = reference.lse.abs().clamp(min=1.0)
    return torch.where(reference.lse.isfinite(), _BLIND_LSE_UNITS * _FP32 * size, 0.0)


def _rounded_sum(reference: Reference, attention: Attention, unit_p: float) -> torch.Tensor:
    """What adding up weights, each rounded by itself, on tensor cores does to the logarithm of their sum: Σ p δ, with
    |δ| ≤ 2 u, and the sum's own error: tensor cores cut off what an fp32 sum cannot hold, at every `MMA_KEYS` keys.

    The largest weight is 1 and has no error, so 2 u (1 − largest p) is the most. Independent roundings come to
    u √(Σ p²), which is far less where keys are many; not so where all weights lie within a few steps of 1, since
    those are rounded to the same side.
    """
    most = -torch.log1p(-2 * unit_p * (1 - torch.exp(reference.peak - reference.lse)).clamp(min=0.0))
    independent = most.minimum(DEVIATIONS * unit_p * reference.p2.sqrt())
    of_weights = torch.where(weights_vary(reference, attention, unit_p), independent, most)
    steps = (reference.visible.double()[:, None] / MMA_KEYS - 1).clamp(min=0.0)
    return of_weights + _FP32 * steps


def _subnormal(reference: Reference, attention: Attention, traits: Traits) -> torch.Tensor | float:
    """Absolute error below fp16's smallest normal number: of the output, and of weights rounded as such. Below that of
    fp32, which bf16 shares, GPUs take numbers for 0: the output's, and each of the weights beside a far larger sink."""
    if attention.dtype != "float16":
        values = (reference.p2v2 / reference.p2.clamp(min=torch.finfo(torch.float64).tiny)).sqrt()
        lost = reference.visible.double()[:, None] * values + math.sqrt(attention.head_dim_v)
        return SLACK * _FP32_LEAST_NORMAL * lost
    floor = SLACK * _FP16_LEAST_HALF * math.sqrt(attention.head_dim_v)
    if not traits.score_rounding:
        return floor
    # Weights divided by their sum before they are rounded: a p of 1/131,072 has a bit or two left.
    return floor + SLACK * _FP16_LEAST_HALF * reference.visible.double()[:, None] * reference.p2v2.sqrt()
