"""Output and LSE that nobody wrote: memory holds NaN before one call and a finite pattern before another.

What is NaN after the first and not after the second follows the memory: it was not written, or was computed from
scratch memory that nobody set. Only where it holds the very pattern is it told that nobody wrote it. A kernel that
computes NaN gives it both times, and is not accused here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from pagedbench.backends.base import Output
from pagedbench.checks.answers import copied
from pagedbench.checks.base import CheckContext, CheckResult, Execution, Finding
from pagedbench.checks.memory_patterns import (
    FINITE_PATTERN,
    FilledAsAllocated,
    finite_pattern,
    memory_is_nan,
    prime_allocator,
    tensors_of,
)
from pagedbench.checks.rows import place_of
from pagedbench.layout.batch import BatchLayout
from pagedbench.tensors.arena import GUARD_PATTERN
from pagedbench.tensors.bits import bits
from pagedbench.tensors.fill import Fill
from pagedbench.words import Verdict

MOST_FINDINGS = 8


class Unwritten:
    """Every row of the output, and of the LSE, is written."""

    name = "unwritten"
    about = "Output memory holds one bit pattern, then another, before the call: a row that keeps it was not written."

    def not_applicable(self, context: CheckContext) -> str | None:
        """Needs an output."""
        return None if context.layout.total_q else "there are no query tokens"

    def run(self, context: CheckContext) -> CheckResult:
        """Two calls on differently filled memory; a third confirms before anything is said."""
        found = _unwritten(context)
        unwritten = found.rows
        if bool(unwritten.any()):
            unwritten = unwritten & _unwritten(context).rows
        if not bool(unwritten.any()):
            return CheckResult(self.name, Verdict.PASS, f"every row written ({found.whose})")
        findings = tuple(_findings(context.layout, unwritten.cpu().numpy(), found.untouched.cpu().numpy()))
        return CheckResult(self.name, Verdict.NOT_WRITTEN, findings[0].message, findings[:MOST_FINDINGS])


@dataclass(frozen=True)
class _Followed:
    """`rows` `(total_q, num_heads)` bool: those that (or whose LSE) follow the memory; `untouched` those of them that
    hold the pattern itself; `whose` memory it was."""

    rows: torch.Tensor
    untouched: torch.Tensor
    whose: str


def _unwritten(context: CheckContext) -> _Followed:
    fill = context.poison
    prepared = context.prepare(fill=dataclasses.replace(fill, out=GUARD_PATTERN))
    with memory_is_nan(context):
        first = copied(context.execute(prepared).output)
    del prepared  # one call's memory at a time beside the base's: a cell may nearly fill the device
    done = _on_finite_memory(context, dataclasses.replace(fill, out=FINITE_PATTERN), first)
    second, memory = done.output, done.prepared.call.out
    follows, untouched = _following(first.out, second.out)
    rows, untouched = follows.any(-1), (untouched | ~follows).all(-1)
    lse, lse_again = first.lse, second.lse
    if lse is not None and lse_again is not None:
        follows, of_lse = _following(lse, lse_again)
        rows, untouched = rows | follows, untouched & (of_lse | ~follows)
    given = memory is not None and second.out.data_ptr() == memory.data_ptr()
    whose = "that the tool gave" if given else "of the backend's own"
    return _Followed(_must_be_written(context, rows), untouched, f"in memory {whose}, which held NaN, then numbers")


def _following(first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Which numbers follow the memory, and which hold the finite pattern, both in the shape of the tensors."""
    return first.isnan() & ~second.isnan(), bits(second) == finite_pattern(second.element_size())


def _on_finite_memory(context: CheckContext, fill: Fill, first: Output) -> Execution:
    """Run on memory that holds a finite pattern: what the tool gives, and primed memory where its address comes back.

    Where it does not, torch fills what it allocates in one more run.
    """
    prepared = context.prepare(fill=fill)
    primed = set(prime_allocator(*tensors_of(first)))
    if prepared.call.out is not None:
        primed.add(prepared.call.out.data_ptr())
    done = context.execute(prepared)
    if primed.issuperset(tensor.data_ptr() for tensor in tensors_of(done.output)):
        return done
    del done, prepared
    prepared = context.prepare(fill=fill)
    with FilledAsAllocated():  # type: ignore[no-untyped-call]
        return context.execute(prepared)


def _must_be_written(context: CheckContext, rows: torch.Tensor) -> torch.Tensor:
    """Leave out padding rows, and rows that see no key where the backend is declared not to touch them."""
    layout = context.layout
    required = ~layout.dead[layout.row_sequence()]
    if context.backend.traits_for(context.path).empty_rows == "untouched":
        required &= layout.visible_to > layout.visible_from
    if required.all():
        return rows
    return rows & torch.from_numpy(required).to(rows.device)[:, None]


def _findings(layout: BatchLayout, unwritten: np.ndarray, untouched: np.ndarray) -> Iterator[Finding]:
    """One a sequence."""
    for sequence in range(layout.batch):
        start, stop = (int(layout.cu_seqlens_q[sequence + i]) for i in (0, 1))
        rows, heads = np.nonzero(unwritten[start:stop])
        if len(rows) == 0:
            continue
        place = place_of(layout, start + int(rows[0]))
        what = _what_happened(
            len(rows), (stop - start) * unwritten.shape[1], bool(untouched[start:stop][rows, heads].all())
        )
        yield Finding(
            f"sequence {sequence}: {what}, first query token {rows[0]}, head {heads[0]}",
            sequence,
            int(rows[0]),
            int(heads[0]),
            place.key if place.key >= 0 else None,
            place.logical_block,
            place.physical_block,
        )


def _what_happened(count: int, of: int, untouched: bool) -> str:
    if untouched:
        return "no row was written" if count == of else f"{count} of {of} rows not written"
    which = "every row follows" if count == of else f"{count} of {of} rows follow"
    return f"{which} what memory held before the call (not written, or computed from memory that nobody set)"
