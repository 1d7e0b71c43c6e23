"""What must not change an answer, and whether it does.

Where the arithmetic is the same (again, moved blocks, padding, a wider table) a repeatable backend must give the same
bits. Where the order of sums may change (batch mates, order, splits, the other path) the difference is reported, and
only rows that leave their budget count; so it is throughout for backends that do not repeat themselves. The other path
has a cell of its own: what is wrong with it is a warning here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from pagedbench.backends.base import Output
from pagedbench.checks.base import CheckContext, CheckResult, Finding
from pagedbench.checks.comparison import compare
from pagedbench.checks.rows import place_of
from pagedbench.checks.variations import Variation, copied, not_applied, variations
from pagedbench.tensors.bits import bits
from pagedbench.words import Verdict, worst

_COMPARED_BYTES = 1 << 26


@dataclass(frozen=True)
class Difference:
    """How far a variation came from the base. `runs` of it, `unlike` of them with other bits; `largest` difference.

    `over` is the worst share of its budget among rows that differ, at query token `row` and `head`; `error` what the
    backend raised, if it did.
    """

    variation: Variation
    runs: int = 0
    unlike: int = 0
    largest: float = 0.0
    over: float = 0.0
    row: int = 0
    head: int = 0
    error: str | None = None

    @property
    def verdict(self) -> Verdict:
        """UNSTABLE for other bits where there must be none, or for rows beyond their budget; nothing that another
        cell answers for."""
        if self.variation.cell is not None:
            return Verdict.PASS
        if self.error:
            return Verdict.ERROR
        unstable = self.over > 1 or (self.variation.bitwise and self.unlike > 0)
        return Verdict.UNSTABLE if unstable else Verdict.PASS

    @property
    def warning(self) -> str | None:
        """What is to be said of another cell: it raised, or its own rows are beyond its own budget."""
        if self.variation.cell is None or not (self.error or self.over > 1):
            return None
        how = f"raised {self.error}" if self.error else "is wrong itself"
        return f"{self.variation.name} {how} (see its own cell)"


class Invariance:
    """Other ways to the same answer."""

    name = "invariance"
    about = "Repeats, moved blocks, padding, width: the same bits. Batch mates, splits, the other path: within budget."

    def not_applicable(self, context: CheckContext) -> str | None:
        """Needs an output."""
        return None if context.layout.total_q else "there are no query tokens"

    def run(self, context: CheckContext) -> CheckResult:
        """Run every variation that applies, and compare it with the base."""
        base = copied(context.base.output)
        found = [_difference(context, base, variation) for variation in variations(context)]
        wrong = sorted((d for d in found if d.verdict is not Verdict.PASS), key=lambda d: -d.over)
        findings = tuple(_finding(context, difference) for difference in wrong)
        own = [d for d in found if d.warning is None]
        message = findings[0].message if findings else _sentence(context, own)
        warnings = tuple(d.warning for d in found if d.warning is not None)
        return CheckResult(self.name, worst(d.verdict for d in found), message, findings, _metrics(own), warnings)


def _difference(context: CheckContext, base: Output, variation: Variation) -> Difference:
    found = Difference(variation)
    try:
        for outputs in _batches(variation.run()):
            found = _with_runs(context, base, outputs, found)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever a backend raises is its verdict
        return Difference(variation, error=f"{type(error).__name__}: {error}")
    return found


def _batches(outputs: Iterable[Output]) -> Iterator[list[Output]]:
    """A few outputs at a time, to be compared at once; large ones are not kept."""
    batch: list[Output] = []
    for output in outputs:
        batch.append(output)
        if len(batch) * output.out.nbytes >= _COMPARED_BYTES:
            yield batch
            batch = []
    if batch:
        yield batch


def _with_runs(context: CheckContext, base: Output, outputs: list[Output], so_far: Difference) -> Difference:
    """The difference with more runs taken into account; one wait for the device if all are alike."""
    differing = torch.stack([_bits_differ(base, output) for output in outputs])
    unlike = differing.flatten(1).any(1).tolist()
    found = dataclasses.replace(so_far, runs=so_far.runs + unlike.count(False))
    for output, rows, differs in zip(outputs, differing, unlike, strict=True):
        if differs:
            found = _with_unlike(context, base, output, rows, found)
    return found


def _with_unlike(
    context: CheckContext, base: Output, output: Output, differing: torch.Tensor, so_far: Difference
) -> Difference:
    """The difference with one more run that has other bits, in the rows `differing`."""
    over, row, head = _worst_share(so_far.variation.cell or context, output, differing)
    if over < so_far.over:
        over, row, head = so_far.over, so_far.row, so_far.head
    gap = (base.out.double() - output.out.double()).abs().nan_to_num(nan=torch.inf, posinf=torch.inf).max()
    largest = max(float(gap), so_far.largest)
    return Difference(so_far.variation, so_far.runs + 1, so_far.unlike + 1, largest, over, row, head)


def _bits_differ(base: Output, output: Output) -> torch.Tensor:
    """`(total_q, num_heads)` bool: rows whose output or LSE has other bits."""
    rows = (bits(base.out) != bits(output.out)).any(-1)
    mine, theirs = base.lse, output.lse
    if mine is not None and theirs is not None:
        rows |= bits(mine) != bits(theirs)
    return rows


def _worst_share(context: CheckContext, output: Output, differing: torch.Tensor) -> tuple[float, int, int]:
    """The worst share of its budget among rows that differ, with its query token and head."""
    reference, traits = context.reference, context.backend.traits_for(context.path)
    comparison = compare(output, reference, context.layout, context.scenario.attention, traits, context.budget)
    share = comparison.out.ratio
    if comparison.lse is not None:
        share = torch.maximum(share, comparison.lse.ratio)
    share = torch.where(differing[reference.rows], share, 0.0)
    largest, index = share.flatten().max(0)
    token = reference.rows[index // share.shape[1]]
    over, row, head = torch.stack([largest, token.double(), (index % share.shape[1]).double()]).tolist()
    return over, int(row), int(head)


def _finding(context: CheckContext, found: Difference) -> Finding:
    name = found.variation.name
    if found.error:
        return Finding(f"{name}: {found.error}")
    place = place_of(context.layout, found.row)
    often = f" in {found.unlike} of {found.runs} runs" if found.runs > 1 else ""
    rule = "must be the same bits" if found.variation.bitwise else "leaves its budget"
    return Finding(
        f"{name}: {place}, head {found.head}: differs{often} by up to {found.largest:.3g}"
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
    other = [f"{d.variation.name} {d.largest:.2g}" for d in found if d.unlike]
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
