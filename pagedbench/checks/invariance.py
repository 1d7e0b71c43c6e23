"""What must not change an answer, and whether it does.

Where the arithmetic is the same (again, moved blocks, padding, a wider table) a repeatable backend must give the same
bits. Where the order of sums may change (strides, batch mates, order, splits, the other path) the difference is
reported, and only rows that leave their budget count; so it is throughout for backends that do not repeat themselves.
The other path has a cell of its own: what is wrong with it is a warning here.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pagedbench.backends.base import Output
from pagedbench.checks.answers import Answer, copied, differing, kept, placed
from pagedbench.checks.base import CheckContext, CheckResult, Finding
from pagedbench.checks.comparison import compare
from pagedbench.checks.rows import place_of
from pagedbench.checks.variations import Variation, not_applied, variations
from pagedbench.errors import said
from pagedbench.tensors.bits import bits
from pagedbench.words import Verdict, worst

_COMPARED_BYTES = 1 << 26
OUTPUT_REUSED = "a later call changed the output of an earlier one: its memory is used again, so copy it before that"


@dataclass(frozen=True)
class Difference:
    """How far a variation came from the base. `runs` of it, `unlike` of them with other bits; `largest` difference of
    the output, `largest_lse` of the LSE, and whether the LSE's is the worse one as a share of its budget, `in_lse`.

    `over` is the worst share of its budget among rows that differ, at query token `row` and `head`; `error` what the
    backend raised, if it did.
    """

    variation: Variation
    runs: int = 0
    unlike: int = 0
    largest: float = 0.0
    largest_lse: float = 0.0
    over: float = 0.0
    row: int = 0
    head: int = 0
    in_lse: bool = False
    error: str | None = None

    @property
    def verdict(self) -> Verdict:
        """UNSTABLE for other bits where there must be none, or for rows beyond their budget; nothing that another
        cell answers for."""
        if self.variation.cell is not None:
            return Verdict.PASS
        if self.error:
            return Verdict.PASS if self.variation.may_refuse else Verdict.ERROR
        unstable = self.over > 1 or (self.variation.bitwise and self.unlike > 0)
        return Verdict.UNSTABLE if unstable else Verdict.PASS

    def with_runs(self, more: int) -> Difference:
        """With more runs."""
        return dataclasses.replace(self, runs=self.runs + more)

    def with_unlike(self, run: Sequence[float]) -> Difference:
        """With one of the runs found to have other bits, whose figures (`_Comparing._figures`) are given."""
        over, row, head, in_lse, largest, largest_lse = run
        found = dataclasses.replace(
            self,
            unlike=self.unlike + 1,
            largest=max(largest, self.largest),
            largest_lse=max(largest_lse, self.largest_lse),
        )
        if over < self.over:
            return found
        return dataclasses.replace(found, over=over, row=int(row), head=int(head), in_lse=bool(in_lse))

    @property
    def warning(self) -> str | None:
        """What is to be said of another cell: it raised, or its own rows are beyond its own budget; or that the backend
        refused what it may refuse."""
        if self.error and self.variation.may_refuse:
            return f"not taken: {self.variation.name} ({self.error})"
        if self.variation.cell is None or not (self.error or self.over > 1):
            return None
        how = f"raised {self.error}" if self.error else "is wrong itself"
        return f"{self.variation.name} {how} (see its own cell)"


class Invariance:
    """Other ways to the same answer."""

    name = "invariance"
    about = (
        "Repeats, moved blocks, padding, width: the same bits. Strides, batch mates, splits, the other path: within "
        "budget."
    )

    def not_applicable(self, context: CheckContext) -> str | None:
        """Needs an output."""
        return None if context.layout.total_q else "there are no query tokens"

    def run(self, context: CheckContext) -> CheckResult:
        """Run every variation that applies, and compare it with the base."""
        comparing = _Comparing(context)
        for variation in variations(context):
            comparing.take(variation)
        found = comparing.differences()
        wrong = sorted((d for d in found if d.verdict is not Verdict.PASS), key=lambda d: -d.over)
        findings = tuple(_finding(context, difference) for difference in wrong)
        own = [d for d in found if d.warning is None]
        message = findings[0].message if findings else _sentence(context, own)
        warnings = tuple(d.warning for d in found if d.warning is not None)
        if comparing.base_changed():
            warnings += (OUTPUT_REUSED,)
        return CheckResult(self.name, worst(d.verdict for d in found), message, findings, _metrics(own), warnings)


class _Comparing:
    """The differences so far, by variation. Answers wait for each other, to be compared at once; large ones do not."""

    def __init__(self, context: CheckContext) -> None:
        self._context, self._base = context, copied(context.base.output)
        self._found: list[Difference] = []
        self._waiting: list[tuple[int, Answer]] = []

    def take(self, variation: Variation) -> None:
        """Run a variation; what the backend raises is its verdict."""
        index = len(self._found)
        self._found.append(Difference(variation))
        try:
            for answer in variation.run():
                self._waiting.append((index, kept(answer, self._base)))
                if len(self._waiting) * self._base.out.nbytes >= _COMPARED_BYTES:
                    self._compare()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            self._waiting = [(other, answer) for other, answer in self._waiting if other != index]
            self._found[index] = Difference(variation, error=f"{type(error).__name__}: {said(error)}")

    def differences(self) -> list[Difference]:
        """Of every variation that was taken."""
        self._compare()
        return self._found

    def base_changed(self) -> bool:
        """Whether the base's output is no longer what it was when the first variation was taken."""
        return not torch.equal(bits(self._context.base.output.out), bits(self._base.out))

    def _compare(self) -> None:
        """Settle what waits: one wait for the device if all are alike, two if not."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        marked = differing(self._base, [answer for _, answer in waiting])
        unlike = [
            (index, answer, rows) for (index, answer), rows in zip(waiting, marked, strict=True) if rows is not None
        ]
        figures = [self._figures(index, *placed(self._base, answer, rows)) for index, answer, rows in unlike]
        for index, runs in Counter(index for index, _ in waiting).items():
            self._found[index] = self._found[index].with_runs(runs)
        for (index, *_), of_run in zip(unlike, torch.stack(figures).tolist() if figures else (), strict=True):
            self._found[index] = self._found[index].with_unlike(of_run)

    def _figures(self, index: int, output: Output, rows: torch.Tensor) -> torch.Tensor:
        """`(6,)` fp64: the worst share of its budget among rows that differ, its query token and head, and whether it
        is the LSE's; the largest difference of a number of the output, and of the LSE."""
        cell = self._found[index].variation.cell or self._context
        gap = _largest_gap(self._base.out, output.out)
        mine, theirs = self._base.lse, output.lse
        of_lse = torch.zeros_like(gap) if mine is None or theirs is None else _largest_gap(mine, theirs)
        return torch.stack([*_worst_share(cell, output, rows), gap, of_lse])


def _largest_gap(mine: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """fp64; infinite where a difference is no number, as of NaN, but for two infinities that are the same."""
    gap = (mine.double() - theirs.double()).abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
    return gap.masked_fill(mine == theirs, 0.0).max()


def _worst_share(context: CheckContext, output: Output, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The worst share of its budget among rows that differ, its query token and head, and whether it is the LSE's; all
    fp64."""
    reference, traits = context.reference, context.backend.traits_for(context.path)
    comparison = compare(output, reference, context.layout, context.scenario.attention, traits, context.budget)
    of_out = share = comparison.out.ratio
    if comparison.lse is not None:
        share = torch.maximum(share, comparison.lse.ratio)
    share = torch.where(rows[reference.rows] if reference.sampled else rows, share, 0.0)
    largest, index = share.flatten().max(0)
    token = reference.rows.take(index // share.shape[1])  # unlike indexing, does not wait for the device
    in_lse = largest > of_out.take(index)
    return largest, token.double(), (index % share.shape[1]).double(), in_lse.double()


def _finding(context: CheckContext, found: Difference) -> Finding:
    name = found.variation.name
    if found.error:
        return Finding(f"{name}: {found.error}")
    place = place_of(context.layout, found.row)
    often = f" in {found.unlike} of {found.runs} runs" if found.runs > 1 else ""
    in_lse = found.in_lse or (not found.largest and found.largest_lse > 0)
    differs, largest = ("its LSE differs", found.largest_lse) if in_lse else ("differs", found.largest)
    rule = "must be the same bits" if found.variation.bitwise else "leaves its budget"
    return Finding(
        f"{name}: {place}, head {found.head}: {differs}{often} by up to {largest:.3g}"
        f" ({found.over:.2f} of its budget), {rule}",
        place.sequence,
        place.query_token,
        found.head,
        place.key if place.key >= 0 else None,
        place.logical_block,
        place.physical_block,
    )


def _sentence(context: CheckContext, found: list[Difference]) -> str:
    same = [_counted(d) for d in found if not d.unlike]
    other = [
        f"{d.variation.name} {d.largest_lse:.2g} of the LSE" if d.in_lse else f"{d.variation.name} {d.largest:.2g}"
        for d in found
        if d.unlike
    ]
    parts = []
    if same:
        parts.append(f"the same bits: {', '.join(same)}")
    if other:
        parts.append(f"within budget, largest difference: {', '.join(other)}")
    missing = not_applied(context)
    if missing:
        parts.append(f"not applicable: {', '.join(missing)}")
    return "; ".join(parts)


def _counted(found: Difference) -> str:
    return f"{found.runs} {found.variation.name}" if found.variation.name == "repeats" else found.variation.name


def _metrics(found: list[Difference]) -> dict[str, float]:
    return {
        "runs": float(sum(d.runs for d in found)),
        "largest_difference": max((d.largest for d in found), default=0.0),
        "worst_ratio": max((d.over for d in found), default=0.0),
    }
