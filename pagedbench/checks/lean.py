"""Whether the errors of all rows lean to one side, as where an output is cut off instead of rounded.

Every row is within its budget then: cutting off costs twice what rounding to nearest does. But roundings to nearest go
both ways and cancel over the rows, and these do not. A row's lean is the part of its error that lies along the row
itself, as a share of it: negative where the output is nearer to zero than it should be. Judges no row alone, and takes
back what roundings to nearest may come to where numbers are alike.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from pagedbench.backends.base import Traits
from pagedbench.checks.budget import MMA_KEYS, SLACK, UNIT, score_height, score_unit, weights_vary
from pagedbench.oracle.reference import Reference
from pagedbench.scenario.model import Attention, Scenario
from pagedbench.tensors.bits import torch_dtype

_LEAST_ROWS = 32
"""Fewer that differ from each other say nothing: the roundings of a row, and of its equals, may have one direction."""

_STEPS = 4096
"""Of a unit: rows whose leans differ by less are alike, with the noise of fp64."""

_UNITS = 0.7
"""Half of what cutting off comes to in the mean, 1.4 u; rounding to nearest comes to 0."""

_DEVIATIONS = 8.0
_FP32 = 2.0**-23  # what tensor cores may cut off a sum, at every `MMA_KEYS` keys


def row_leans(errors: torch.Tensor, reference: Reference, judged: torch.Tensor | None) -> torch.Tensor:
    """`(rows, num_heads)` fp64: each row's lean, NaN for rows that are not judged (`judged` `(rows,)`, None for all) or
    are 0. `errors` are the output's rows less the oracle's, `(rows, num_heads, head_dim_v)` fp64."""
    found = _along(errors, reference)
    return found if judged is None else torch.where(judged[:, None], found, torch.nan)


def lean_of(
    mean: float, leans: torch.Tensor, errors: torch.Tensor, reference: Reference, scenario: Scenario, traits: Traits
) -> tuple[float, int] | None:
    """How far an output leans, and how many rows say so; None where a right kernel's may lean as far.

    `leans` are its `row_leans`, `mean` is their mean, on the host: where that is small, as it nearly always is, nothing
    more is asked of the device.
    """
    attention = scenario.attention
    unit = UNIT[attention.dtype]
    if not abs(mean) > _UNITS * unit or _of_one_direction(scenario, traits):
        return None
    rows = leans.isfinite() & weights_vary(reference, attention, UNIT[traits.p_dtype or attention.kv_dtype])
    if not _beyond_chance(leans[rows], unit):
        return None
    lean, drift = float(leans[rows].mean()), _drift(rows, reference, attention, traits)
    # Where an output's numbers are alike, the nearest of its dtype is on the same side of all of them.
    nearest = reference.out * (1 + math.copysign(drift, lean))
    nearest = nearest.to(torch_dtype(attention.dtype)).to(torch.float64)
    beyond = float(_along(errors + reference.out - nearest, reference)[rows].mean())
    side = math.copysign(1.0, lean)
    return (lean, int(rows.sum())) if side * lean - drift > _UNITS * unit < side * beyond else None


def sentence(lean: float, rows: int, dtype: str) -> str:
    """What such a lean of so many rows means."""
    side = "nearer to zero" if lean < 0 else "farther from zero"
    return (
        f"the output of {rows:,} rows lies {abs(lean):.2%} {side} than it should in the mean, where roundings to "
        f"{dtype} cancel: cut off instead of rounded, or scaled?"
    )


def _along(error: torch.Tensor, reference: Reference) -> torch.Tensor:
    return (error * reference.out).sum(-1) / reference.out.square().sum(-1)


def _of_one_direction(scenario: Scenario, traits: Traits) -> bool:
    """Whether roundings to nearest may have one direction in all rows: no rounding at the end, but sums of fp32;
    weights so coarse that the small ones are lost; the few numbers of 8 bits times a scale; a sink that weighs outputs
    which were rounded before, and may be alike; one query for all rows."""
    attention, inputs = scenario.attention, scenario.inputs
    scaled = attention.kv_dtype.startswith("float8") and abs(math.frexp(attention.v_scale)[0]) != 0.5
    return (
        attention.dtype == "float32"
        or UNIT[traits.p_dtype or attention.kv_dtype] > UNIT[attention.dtype]
        or scaled
        or (traits.rounded_partials and attention.sinks is not None)
        or inputs.identical_rows
        or inputs.q.distribution == "constant"
    )


def _drift(rows: torch.Tensor, reference: Reference, attention: Attention, traits: Traits) -> float:
    """What errors of scores, which all scores may share, and sums on tensor cores may come to in the mean of `rows`."""
    height = float(score_height(reference, attention, traits)[rows].mean())
    return SLACK * score_unit(attention, traits) * height + _FP32 * int(reference.visible.max()) / MMA_KEYS


def _beyond_chance(leans: torch.Tensor, unit: float) -> bool:
    """Whether leans have one sign by more than chance: their mean is many times what rows that differ leave open."""
    apart = np.unique((leans / (unit / _STEPS)).round().cpu().numpy())
    if len(apart) < _LEAST_ROWS:
        return False
    return abs(float(apart.mean())) > _DEVIATIONS * float(apart.std()) / math.sqrt(len(apart))
