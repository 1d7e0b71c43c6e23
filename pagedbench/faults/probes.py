"""Probes: what a kernel does when asked in a few ways, so that its behaviour can be compared with that of a fault.

Each probe runs a backend once (or a few times) and gives numbers per row that can be held against another backend's.
The comparison is in `diagnosis.py`. Nothing here knows which fault it is looking for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from pagedbench.checks.base import CheckContext, Execution
from pagedbench.checks.footprint_calls import k_side_impossible
from pagedbench.checks.footprint_detect import HALF_CODE, Side, detect, k_attempts
from pagedbench.layout.variants import with_padding
from pagedbench.tensors.fill import Fill
from pagedbench.words import AttnPath

_LSE_TOLERANCE = 1e-3
REPEATS = 10


@dataclass(frozen=True)
class Seen:
    """What a probe saw: `values` `(rows, num_heads, n)` fp64, `lse` `(rows, num_heads)` or None, `facts` that are equal
    or not (memory that changed, what was raised)."""

    values: torch.Tensor | None = None
    lse: torch.Tensor | None = None
    facts: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Probe:
    """`ask` runs a cell's backend; `agree` `(rows, num_heads)` bool tells where two sights are the same."""

    name: str
    ask: Callable[[CheckContext], Seen]
    agree: Callable[[Seen, Seen], torch.Tensor]


def probes_for(context: CheckContext) -> list[Probe]:
    """The probes that a cell allows, cheapest and most telling first."""
    numbers = Probe("the numbers", _numbers, lambda a, b: _close_rows(context, a, b))
    found = [numbers, *(_coded(side, attempt) for side, attempt in _codings(context))]
    found.append(Probe("NaN in all that must not be read", _poisoned, lambda a, b: _close_rows(context, a, b)))
    return found


def raising_probes() -> list[Probe]:
    """For a backend that raises: on which tables it does."""
    layouts: dict[str, Callable[[CheckContext], CheckContext]] = {
        "the scenario": lambda context: context,
        "padding of 0": lambda context: _with_layout(context, with_padding(context.layout, 0)),
        "one spare block, then −1": _one_spare,
    }
    return [Probe(name, lambda c, change=change: _raises(change(c)), _same_facts) for name, change in layouts.items()]


def unsteady(context: CheckContext) -> int:
    """In how many of `REPEATS` equal calls the output has other bits than in the first."""
    first = context.execute().output.out.clone()
    return sum(
        not torch.equal(first.view(torch.uint8), context.execute().output.out.view(torch.uint8))
        for _ in range(REPEATS - 1)
    )


def _numbers(context: CheckContext) -> Seen:
    done = context.execute()
    lse = None if done.output.lse is None else done.output.lse.double()
    return Seen(done.output.out.double(), lse, _changed(done))


def _poisoned(context: CheckContext) -> Seen:
    everywhere = dict.fromkeys(_unread(), float("nan"))
    done = context.execute(fill=Fill.regions(everywhere, everywhere))
    return Seen(done.output.out.double(), None)


def _unread():  # type: ignore[no-untyped-def]
    from pagedbench.layout.regions import Region

    return [region for region in Region if region is not Region.VISIBLE]


def _changed(done: Execution) -> frozenset[str]:
    """Places of the memory, the output's apart, that are not as they must be after the call."""
    if done.prepared.call.spec.path is AttnPath.VARLEN:
        return frozenset()
    return frozenset(
        f"{place} at byte {first}, {count} changed"
        for place, first, count in done.prepared.arena.changed_bytes(done.prepared.expected().arena)
        if place != "out"
    )


def _codings(context: CheckContext) -> list[tuple[Side, int]]:
    sides: list[tuple[Side, int]] = [("V", 0)]
    if k_side_impossible(context.scenario, context.layout.max_seqlen_k) is None:
        sides += [("K", attempt) for attempt in range(k_attempts(context))]
    return sides


def _coded(side: Side, attempt: int) -> Probe:
    def ask(context: CheckContext) -> Seen:
        return Seen(detect(context, side, attempt).decoded.double())

    def agree(a: Seen, b: Seen) -> torch.Tensor:
        assert a.values is not None and b.values is not None
        return (_distance(a.values, b.values) < HALF_CODE).all(-1)

    return Probe(f"the footprint of {side}", ask, agree)


def _distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Element by element; 0 where both are NaN or the same infinity."""
    same = (a == b) | (a.isnan() & b.isnan())
    return torch.where(same, 0.0, (a - b).abs()).nan_to_num(nan=torch.inf)


def _close_rows(context: CheckContext, a: Seen, b: Seen) -> torch.Tensor:
    """Rows as close as rounding leaves them, in output and LSE; facts must be the same."""
    assert a.values is not None and b.values is not None
    from pagedbench.checks.budget import SLACK, UNIT, row_budget

    attention = context.scenario.attention
    budget = row_budget(context.reference, attention, context.backend.traits_for(context.path)).out
    allowed = torch.zeros(b.values.shape[:2], dtype=torch.float64, device=b.values.device)
    allowed[context.reference.rows] = budget
    own = torch.linalg.vector_norm(b.values.nan_to_num(), dim=-1)
    close = torch.linalg.vector_norm(_distance(a.values, b.values), dim=-1) <= allowed + 2 * SLACK * UNIT[attention.dtype] * own
    if a.lse is not None and b.lse is not None:
        close &= _distance(a.lse, b.lse) <= _LSE_TOLERANCE * (1 + b.lse.abs().nan_to_num(posinf=0.0))
    return close & (a.facts == b.facts)


def _same_facts(a: Seen, b: Seen) -> torch.Tensor:
    return torch.tensor([[a.facts == b.facts]])


def _raises(context: CheckContext) -> Seen:
    try:
        context.execute()
    except Exception:  # whatever a backend raises: that it does is what is asked
        return Seen(facts=frozenset({"raises"}))
    return Seen()


def _with_layout(context: CheckContext, layout) -> CheckContext:  # type: ignore[no-untyped-def]
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
