"""Probes: what a kernel does when asked in a few ways, so that its behaviour can be compared with that of a fault.

Each probe runs a backend once (or a few times) and gives numbers per row that can be held against another backend's.
The comparison is in `diagnosis.py`. Nothing here knows which fault it is looking for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch

from pagedbench.checks.base import CheckContext, Execution
from pagedbench.checks.budget import SLACK, UNIT, row_budget
from pagedbench.checks.footprint_calls import k_side_impossible
from pagedbench.checks.footprint_detect import HALF_CODE, Side, detect, k_attempts
from pagedbench.checks.memory_patterns import FINITE_PATTERN, FilledAsAllocated, memory_is_nan
from pagedbench.layout.batch import BatchLayout
from pagedbench.layout.regions import Region
from pagedbench.layout.variants import with_padding
from pagedbench.tensors.arena import Arena
from pagedbench.tensors.fill import Fill, FillValue
from pagedbench.words import AttnPath

_LSE_TOLERANCE = 1e-3
_LSE_ERROR = 2e-5
REPEATS = 10


@dataclass(frozen=True)
class Seen:
    """What a probe saw: `values` `(rows, num_heads, n)` fp64, `lse` `(rows, num_heads)` or None, what `look` finds."""

    values: torch.Tensor = field(default_factory=lambda: torch.zeros(1, 1, 0))
    lse: torch.Tensor | None = None
    look: Callable[[], frozenset[str]] = frozenset

    @cached_property
    def facts(self) -> frozenset[str]:
        """Memory that changed, what was raised: equal or not. Looked for when asked, as a big pool takes long."""
        return self.look()

    @property
    def parts(self) -> tuple[Seen, ...]:
        """Output and LSE, each for itself."""
        output = replace(self, lse=None, look=lambda: self.facts)
        if self.lse is None:
            return (output,)
        return output, replace(self, values=self.values[..., :0], look=lambda: self.facts)


@dataclass(frozen=True)
class Probe:
    """`ask` runs a cell's backend; `agree` `(rows, num_heads)` bool tells where two sights are the same.

    `agree_right`, where it is given, is used for the right kernel in its place: it may be stricter.
    """

    name: str
    ask: Callable[[CheckContext], Seen]
    agree: Callable[[Seen, Seen], torch.Tensor]
    agree_right: Callable[[Seen, Seen], torch.Tensor] | None = None


def probes_for(context: CheckContext) -> list[Probe]:
    """The probes that a cell allows, cheapest and most telling first."""
    same, right = _Closeness(context, 2 * SLACK, _LSE_TOLERANCE), _Closeness(context, 1.0, _LSE_ERROR)
    numbers = Probe("the numbers", _Numbers(), same, right)
    found = [numbers, *(_coded(side, attempt) for side, attempt in _codings(context))]
    return [*found, Probe("NaN in all that must not be read", _poisoned, same)]


def raising_probes() -> list[Probe]:
    """For a backend that raises: on which tables it does."""
    layouts: dict[str, Callable[[CheckContext], CheckContext]] = {
        "the scenario": lambda context: context,
        "padding of 0": lambda context: _with_layout(context, with_padding(context.layout, 0)),
        "one spare block, then −1": _one_spare,
    }
    return [Probe(name, _raises_on(change), _same_facts) for name, change in layouts.items()]


def unsteady(context: CheckContext) -> int:
    """In how many of `REPEATS` equal calls the output has other bits than in the first; not for memory that nobody
    wrote, which holds the same in all of them."""
    with FilledAsAllocated():  # type: ignore[no-untyped-call]
        first = context.execute().output.out.clone()
        return sum(
            not torch.equal(first.view(torch.uint8), context.execute().output.out.view(torch.uint8))
            for _ in range(REPEATS - 1)
        )


class _Numbers:
    """The scenario as it stands: output, LSE, and what became of the memory."""

    def __init__(self) -> None:
        self._right: Arena | None = None

    def __call__(self, context: CheckContext) -> Seen:
        with memory_is_nan(context):  # rows nobody wrote are then what they are in memory that the tool gives
            done = context.execute()
        lse = None if done.output.lse is None else done.output.lse.double()
        return Seen(done.output.out.double(), lse, lambda: self._changed(done))

    def _changed(self, done: Execution) -> frozenset[str]:
        """Places of the memory, the output's apart, that are not as they must be after the call."""
        if done.prepared.call.spec.path is AttnPath.VARLEN:
            return frozenset()
        if self._right is None:
            # The same for every backend: all of them are given the same call.
            self._right = done.prepared.expected().arena
        changed = done.prepared.arena.changed_bytes(self._right)
        return frozenset(f"{place} at byte {at}, {count} changed" for place, at, count in changed if place != "out")


def _poisoned(context: CheckContext) -> Seen:
    everywhere: dict[Region, FillValue] = {r: float("nan") for r in Region if r is not Region.VISIBLE}
    # Unlike in the scenario's own call, the output's memory holds a number, whose ever it is: NaN there was written.
    with FilledAsAllocated():  # type: ignore[no-untyped-call]
        output = context.execute(fill=Fill(everywhere, everywhere, FINITE_PATTERN)).output
    return Seen(output.out.double(), None if output.lse is None else output.lse.double())


def _codings(context: CheckContext) -> list[tuple[Side, int]]:
    sides: list[tuple[Side, int]] = [("V", 0)]
    if k_side_impossible(context.scenario, context.layout.max_seqlen_k) is None:
        sides += [("K", attempt) for attempt in range(k_attempts(context))]
    return sides


def _coded(side: Side, attempt: int) -> Probe:
    def ask(context: CheckContext) -> Seen:
        with memory_is_nan(context):
            return Seen(detect(context, side, attempt).decoded.double())

    def agree(a: Seen, b: Seen) -> torch.Tensor:
        return (_distance(a.values, b.values) < HALF_CODE).all(-1)

    return Probe(f"the footprint of {side}", ask, agree)


def _distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Element by element; 0 where both are NaN or the same infinity."""
    same = (a == b) | (a.isnan() & b.isnan())
    return torch.where(same, 0.0, (a - b).abs()).nan_to_num(nan=torch.inf, posinf=torch.inf)


class _Closeness:
    """Rows as close as rounding leaves them, in output and LSE; facts must be the same.

    The budget is a right row's. `more` half ulps of the row are allowed beside it: one for the rounding of what is
    compared with, and more for a faulty row, whose own budget may be larger. `lse` is a relative error.
    """

    def __init__(self, context: CheckContext, more: float, lse: float) -> None:
        self._more, self._lse = more, lse
        self._unit = UNIT[context.scenario.attention.dtype]
        traits = context.backend.traits_for(context.path)
        budget = row_budget(context.reference, context.scenario.attention, traits).out
        self._allowed = torch.zeros(
            (context.layout.total_q, budget.shape[1]), dtype=torch.float64, device=budget.device
        )
        self._allowed[context.reference.rows] = budget

    def __call__(self, a: Seen, b: Seen) -> torch.Tensor:
        own: torch.Tensor = torch.linalg.vector_norm(b.values.nan_to_num(), dim=-1)
        gap: torch.Tensor = torch.linalg.vector_norm(_distance(a.values, b.values), dim=-1)
        close = gap <= self._allowed + self._more * self._unit * own
        if a.lse is not None and b.lse is not None:
            close &= _distance(a.lse, b.lse) <= self._lse * (1 + b.lse.abs().nan_to_num(posinf=0.0))
        return close & (a.facts == b.facts) if bool(close.any()) else close


def _same_facts(a: Seen, b: Seen) -> torch.Tensor:
    return torch.tensor([[a.facts == b.facts]])


def _raises_on(change: Callable[[CheckContext], CheckContext]) -> Callable[[CheckContext], Seen]:
    def ask(context: CheckContext) -> Seen:
        try:
            change(context).execute()
        except Exception:  # whatever a backend raises: that it does is what is asked
            return Seen(look=lambda: frozenset({"raises"}))
        return Seen()

    return ask


def _with_layout(context: CheckContext, layout: BatchLayout) -> CheckContext:
    return CheckContext(context.scenario, layout, context.backend, context.path, context.device)


def _one_spare(context: CheckContext) -> CheckContext:
    """The first entry that is not needed names block 0, all later ones are −1."""
    layout = context.layout
    blocks = -(-layout.total_seqlens.astype(np.int64) // layout.block_size)
    columns = np.arange(layout.max_blocks_per_seq + 2)
    table = np.full((layout.batch, len(columns)), -1, dtype=np.int32)
    table[:, : layout.max_blocks_per_seq] = layout.block_table
    table[columns >= blocks[:, None]] = -1
    table[columns == blocks[:, None]] = 0
    needed = np.pad(layout.needed_blocks, ((0, 0), (0, 2)))
    return _with_layout(context, replace(layout, block_table=table, needed_blocks=needed))
