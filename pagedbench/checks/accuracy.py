"""Output and LSE, row by row, against the oracle.

A row is a (sequence, query token, head); its budget is in `budget.py`, what is asked of all rows together in `lean.py`.
Padding rows of a padded graph are never judged. Which slots a row read is not asked here: that is the footprint.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from pagedbench.backends.base import Output
from pagedbench.checks.base import CheckContext, CheckResult, Finding
from pagedbench.checks.comparison import Comparison, Distance, compare
from pagedbench.checks.lean import lean_of, row_leans, sentence
from pagedbench.checks.rows import place_of
from pagedbench.layout.batch import BatchLayout
from pagedbench.oracle.reference import Reference
from pagedbench.tensors.bits import dtype_name
from pagedbench.words import Verdict

MOST_FINDINGS = 8
_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class Accuracy:
    """Every row within its budget, LSE too; rows that see no key exactly 0; errors that lean to no side."""

    name = "accuracy"
    about = (
        "Output and LSE of every row against an fp64 oracle, within a budget derived from the arithmetic; errors that "
        "lean to no side."
    )

    def not_applicable(self, context: CheckContext) -> str | None:
        """Applies to every cell."""
        return None

    def run(self, context: CheckContext) -> CheckResult:
        """Compare the base execution with the oracle."""
        return judge(context, context.base.output, context.layout, context.reference, self.name)


def judge(context: CheckContext, output: Output, layout: BatchLayout, reference: Reference, check: str) -> CheckResult:
    """The verdict of one execution's output by the row budgets, in the name of a check."""
    wrong_form = _wrong_form(context, output, layout)
    if wrong_form:
        final = not (_is_float(output.out) and _is_float(output.lse))
        return CheckResult(check, Verdict.MISMATCH, wrong_form, (Finding(wrong_form),), final=final)
    if layout.total_q == 0:
        return CheckResult(
            check, Verdict.PASS, "no query tokens: the call ran and its output is empty", metrics=_NOTHING
        )
    traits = context.backend.traits_for(context.path)
    own = reference is context.__dict__.get("reference")  # asking for it would make one
    budget = context.budget if own else None
    comparison = compare(output, reference, layout, context.scenario.attention, traits, budget)
    leans = row_leans(comparison.errors, reference, comparison.judged)
    summary = _Summary.of(comparison, leans)
    metrics = summary.metrics(reference)
    if summary.worst <= 1.0 and summary.worst_lse <= 1.0:
        one_sided = lean_of(summary.lean, leans, comparison.errors, reference, context.scenario, traits)
        if one_sided is not None:
            said = sentence(*one_sided, context.scenario.attention.dtype)
            return CheckResult(check, Verdict.MISMATCH, said, (Finding(said),), metrics)
        return CheckResult(check, Verdict.PASS, summary.sentence(reference, output), metrics=metrics)
    findings = tuple(_findings(output, layout, reference, comparison))
    verdict = Verdict.NON_FINITE if _non_finite(output, reference, comparison) else Verdict.MISMATCH
    return CheckResult(check, verdict, findings[0].message, findings, metrics)


_NOTHING = {"worst_ratio": 0.0, "worst_error": 0.0, "rows": 0.0}


@dataclass(frozen=True)
class _Summary:
    """The figures of a comparison, fetched from the device at once."""

    worst: float
    error: float
    worst_lse: float
    lse_error: float
    has_lse: bool
    lean: float

    @classmethod
    def of(cls, comparison: Comparison, leans: torch.Tensor) -> _Summary:
        figures = [leans.nanmean(), *_worst(comparison.out), *(_worst(comparison.lse) if comparison.lse else ())]
        lean, worst, error, worst_lse, lse_error = (*torch.stack(figures).tolist(), 0.0, 0.0)[:5]
        return cls(worst, error, worst_lse, lse_error, comparison.lse is not None, lean)

    def metrics(self, reference: Reference) -> dict[str, float]:
        figures = {"worst_ratio": self.worst, "worst_error": self.error, "rows": float(reference.out.shape[0])}
        if self.has_lse:
            figures |= {"worst_lse_ratio": self.worst_lse, "worst_lse_error": self.lse_error}
        return figures

    def sentence(self, reference: Reference, output: Output) -> str:
        rows, heads = reference.out.shape[:2]
        sample = f", a sample of {rows} of {reference.total_rows} query tokens" if reference.sampled else ""
        lse = f", LSE at {self.worst_lse:.2f}" if self.has_lse else ", no LSE"
        return f"worst of {rows * heads} rows at {self.worst:.2f} of its budget{lse}{sample}"


def _worst(distance: Distance) -> tuple[torch.Tensor, torch.Tensor]:
    """The worst ratio, and the error where it is."""
    ratio, index = distance.ratio.flatten().max(0)
    return ratio, distance.error.take(index)


def _wrong_form(context: CheckContext, output: Output, layout: BatchLayout) -> str | None:
    attention = context.scenario.attention
    needed = (layout.total_q, attention.num_heads, attention.head_dim_v)
    if tuple(output.out.shape) != needed:
        return f"the output has shape {tuple(output.out.shape)}, needed {needed}"
    lse = output.lse
    if lse is not None and tuple(lse.shape) != needed[:2]:
        return f"the LSE has shape {tuple(lse.shape)}, needed {needed[:2]}"
    dtype = dtype_name(output.out.dtype)
    if dtype != attention.dtype:
        return f"the output is {dtype}, needed {attention.dtype}"
    return None if lse is None or _is_float(lse) else f"the LSE is {dtype_name(lse.dtype)}, needed float32"


def _is_float(values: torch.Tensor | None) -> bool:
    return values is None or values.dtype in _FLOATS


def _non_finite(output: Output, reference: Reference, comparison: Comparison) -> bool:
    """Whether a row that failed is NaN or infinite (for LSE: but for −inf, which is a wrong number, not rubbish)."""
    bad_rows = comparison.out.ratio > 1
    if bool((~output.out[reference.rows].isfinite().all(-1) & bad_rows).any()):
        return True
    if comparison.lse is None or output.lse is None:
        return False
    lse = output.lse[reference.rows]
    return bool(((lse.isnan() | (lse == torch.inf)) & (comparison.lse.ratio > 1)).any())


def _findings(output: Output, layout: BatchLayout, reference: Reference, comparison: Comparison) -> list[Finding]:
    """The worst row of each sequence that fails, of output and of LSE, the worst share of a budget first: that is the
    figure which reports give for the cell. Output before LSE where both are as bad."""
    found: list[tuple[float, Finding]] = []
    for what, distance in (("output", comparison.out), ("LSE", comparison.lse)):
        if distance is not None:
            found += _worst_rows(output, layout, reference, distance, what)
    return [finding for _, finding in sorted(found, key=lambda ranked: -ranked[0])]


def _worst_rows(
    output: Output, layout: BatchLayout, reference: Reference, distance: Distance, what: str
) -> Iterator[tuple[float, Finding]]:
    """The worst row of each sequence that fails in one quantity, with its share of the budget."""
    worst, head = distance.ratio.max(1)
    seen: set[int] = set()
    for index in torch.argsort(worst, descending=True, stable=True).tolist():
        place = place_of(layout, int(reference.rows[index]))
        ratio = float(worst[index])
        if ratio <= 1.0 or len(seen) == MOST_FINDINGS:
            break
        if place.sequence in seen:
            continue
        seen.add(place.sequence)
        yield ratio, _Row(output, layout, reference, distance, index, int(head[index])).finding(what)


@dataclass(frozen=True)
class _Row:
    """The failing row at (`index`, `head`) of the reference, and all there is to say about it."""

    output: Output
    layout: BatchLayout
    reference: Reference
    distance: Distance
    index: int
    head: int

    def finding(self, what: str) -> Finding:
        token = int(self.reference.rows[self.index])
        place = place_of(self.layout, token)
        fact = self._output_fact(token) if what == "output" else self._lse_fact(token)
        sequence_fact = self._sequence_fact(place.sequence) if what == "output" else ""
        return Finding(
            f"{place}, head {self.head}: {fact}{sequence_fact}",
            place.sequence,
            place.query_token,
            self.head,
            place.key if place.key >= 0 else None,
            place.logical_block,
            place.physical_block,
        )

    def _figures(self) -> tuple[float, float]:
        at = (self.index, self.head)
        return float(self.distance.error[at]), float(self.distance.budget[at])

    def _output_fact(self, token: int) -> str:
        row = self.output.out[token, self.head]
        visible = int(self.reference.visible[self.index])
        if not bool(row.isfinite().all()):
            kind = "NaN" if bool(row.isnan().any()) else "infinite"
            return f"output is {kind}" + ("" if visible else " but the row sees no key and must be 0")
        if visible == 0:
            return f"the row sees no key and must be exactly 0, its norm is {float(row.double().norm()):.3g}"
        error, budget = self._figures()
        return (
            f"error {error:.3g} is {_times(error / budget)} times the budget of {budget:.3g}"
            if budget
            else (f"error {error:.3g} where none is permitted")
        )

    def _lse_fact(self, token: int) -> str:
        lse = self.output.lse
        found = float("nan") if lse is None else float(lse[token, self.head])
        needed = float(self.reference.lse[self.index, self.head])
        error, budget = self._figures()
        if not budget or not math.isfinite(error):
            return f"LSE is {found:.6g}, needed {needed:.6g}" + (f" within {budget:.2g}" if budget else "")
        times = f"off by {_times(error / budget)} times the budget of {budget:.2g}"
        return f"LSE is {found:.6g}, needed {needed:.6g}: {times}"

    def _sequence_fact(self, sequence: int) -> str:
        """What holds of the whole sequence's output, when it says more than the worst row."""
        start, stop = (int(self.layout.cu_seqlens_q[sequence + i]) for i in (0, 1))
        rows = self.output.out[start:stop]
        if not bool(rows.any()):
            return f"; all rows of sequence {sequence} are zero"
        if bool(rows.isnan().all()):
            return f"; all rows of sequence {sequence} are NaN"
        return ""


def _times(ratio: float) -> str:
    """`43.4`, `6,696`, `1.2e+07`: so that it can be found again in the table, which has whole numbers."""
    return f"{ratio:,.0f}" if 100 <= ratio < 1e6 else f"{ratio:.3g}"
