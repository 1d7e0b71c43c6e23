"""Whether the errors of all rows lean to one side, as where an output is cut off instead of rounded.

Every row is within its budget then: cutting off costs twice what rounding to nearest does. But roundings to nearest go
both ways and cancel over the rows, and these do not. A row's lean is the part of its error that lies along the row
itself, as a share of it: negative where the output is nearer to zero than it should be. Judges no row alone.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from pagedbench.backends.base import Traits
from pagedbench.checks.budget import UNIT, score_unit
from pagedbench.scenario.model import Attention

_LEAST_ROWS = 32
"""Fewer that differ from each other say nothing: the roundings of a row, and of its equals, may have one direction."""

_STEPS = 4096
"""Of a unit: rows whose leans differ by less are alike, with the noise of fp64."""

_UNITS = 0.7
"""Half of what cutting off comes to in the mean, 1.4 u; rounding to nearest comes to 0."""

_DEVIATIONS = 8.0
_FP32 = 2.0**-23
_MMA_KEYS = 16  # after each so many keys tensor cores cut off what the fp32 sum cannot hold


def leans(out: torch.Tensor, right: torch.Tensor, judged: torch.Tensor | None) -> torch.Tensor:
    """`(rows, num_heads)` fp64: each row's lean, NaN for rows that are not judged (`judged` `(rows,)`, None for all) or
    are 0. `out` and `right` `(rows, num_heads, head_dim_v)`, `right` in fp64."""
    found = (out * right).sum(-1) / right.square().sum(-1) - 1
    return found if judged is None else torch.where(judged[:, None], found, torch.nan)


def may_lean(attention: Attention, traits: Traits, most_keys: int) -> float | None:
    """The mean that a right kernel's leans stay below; None where nothing can be said: sums of fp32 are not rounded at
    the end, and weights of fp8 are so coarse that the small ones are lost."""
    unit = UNIT[attention.dtype]
    if attention.dtype == "float32" or UNIT[traits.p_dtype or attention.kv_dtype] > unit:
        return None
    return _UNITS * unit + score_unit(attention, traits) + _FP32 * most_keys / _MMA_KEYS


def one_sided(found: torch.Tensor, attention: Attention) -> bool:
    """Whether leans have one sign by more than chance: their mean is many times what rows that differ leave open."""
    step = UNIT[attention.dtype] / _STEPS
    apart = np.unique((found[found.isfinite()] / step).round().cpu().numpy())
    if len(apart) < _LEAST_ROWS:
        return False
    return abs(float(apart.mean())) > _DEVIATIONS * float(apart.std()) / math.sqrt(len(apart))


def sentence(mean: float, rows: int, dtype: str) -> str:
    """What leans of this mean say of so many rows."""
    side = "nearer to zero" if mean < 0 else "farther from zero"
    return (
        f"the output of {rows:,} rows lies {abs(mean):.2%} {side} than it should in the mean, where roundings to "
        f"{dtype} cancel: cut off instead of rounded, or scaled?"
    )
