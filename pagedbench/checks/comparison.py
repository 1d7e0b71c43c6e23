"""An output against the oracle, row by row: the arithmetic shared by `accuracy` and whoever judges other executions.

Gives distances as shares of the budget; makes no sentence and no verdict.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pagedbench.backends.base import Output, Traits
from pagedbench.checks.budget import RowBudget, row_budget
from pagedbench.checks.rows import live_rows
from pagedbench.layout.batch import BatchLayout
from pagedbench.oracle.reference import Reference
from pagedbench.scenario.model import Attention


@dataclass(frozen=True)
class Distance:
    """How far one quantity is from the oracle in each row, all `(rows, num_heads)`.

    `error` and `budget` fp64; `ratio` their quotient: 0 where both are 0, infinite where the error is not finite or the
    budget 0. Rows that are not judged have ratio 0.
    """

    error: torch.Tensor
    budget: torch.Tensor
    ratio: torch.Tensor


@dataclass(frozen=True)
class Comparison:
    """Distances of the output and of the LSE (None where there is none); `errors`, the output's rows less the oracle's,
    `(rows, num_heads, head_dim_v)` fp64; which rows are `judged`, `(rows,)` bool, None for all."""

    out: Distance
    lse: Distance | None
    errors: torch.Tensor
    judged: torch.Tensor | None


def compare(
    output: Output,
    reference: Reference,
    layout: BatchLayout,
    attention: Attention,
    traits: Traits,
    budget: RowBudget | None = None,
) -> Comparison:
    """Compare a whole output with the oracle's rows. NaN equals nothing; an LSE of −inf equals −inf.

    `budget` is `row_budget`'s of the same reference, attention and traits, where it is at hand.
    """
    rows = reference.rows
    budget = budget or row_budget(reference, attention, traits)
    judged = _judged(reference, layout, traits)
    errors = _rows(output.out, reference).to(torch.float64) - reference.out
    distance = _distance(torch.linalg.vector_norm(errors, dim=-1), budget.out, judged)
    lse = output.lse
    if lse is None:
        return Comparison(distance, None, errors, judged)
    lse = lse if not reference.sampled else lse[rows]
    lse_error = (lse.to(torch.float64) - reference.lse).abs()
    both_empty = (lse == -torch.inf) & (reference.lse == -torch.inf)
    of_lse = _distance(lse_error.masked_fill(both_empty, 0.0), budget.lse, judged)
    return Comparison(distance, of_lse, errors, judged)


def _rows(values: torch.Tensor, reference: Reference) -> torch.Tensor:
    return values[reference.rows] if reference.sampled or len(values) != len(reference.rows) else values


def _judged(reference: Reference, layout: BatchLayout, traits: Traits) -> torch.Tensor | None:
    """`(rows,)` bool, None for all: not padding rows, nor empty rows of a backend that is declared to leave them."""
    judged = live_rows(layout, reference.rows)
    if traits.empty_rows == "untouched":
        seeing = reference.visible > 0
        judged = seeing if judged is None else judged & seeing
    return judged


def _distance(error: torch.Tensor, budget: torch.Tensor, judged: torch.Tensor | None) -> Distance:
    ratio = torch.where(error == 0, 0.0, error / budget).nan_to_num(nan=torch.inf, posinf=torch.inf)
    if judged is not None:
        ratio = torch.where(judged[:, None], ratio, 0.0)
    return Distance(error, budget, ratio)
