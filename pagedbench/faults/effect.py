"""Whether a fault changes anything on a given batch: two programs compared by what they do, not by how they are
written.

Exact on everything that is an index (slots, ranges, heads, writes, rows). Whether a change of numbers alone (scale,
softcap, sinks) is more than rounding is not decided here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pagedbench.faults.program import NO_SLOT, AttentionProgram, Strides
from pagedbench.layout.batch import BatchLayout
from pagedbench.layout.regions import Region, slot_regions


@dataclass(frozen=True)
class Effect:
    """How a program differs from the right one: in what is read, written or raised, or in numbers only."""

    indices: bool
    numbers: bool

    @property
    def none(self) -> bool:
        """The two do the same."""
        return not (self.indices or self.numbers)


def effect(right: AttentionProgram, faulty: AttentionProgram, layout: BatchLayout) -> Effect:
    """Compare two programs for one call on the layout."""
    if faulty.crash != right.crash or faulty.noise != right.noise:
        return Effect(indices=True, numbers=False)
    live = torch.from_numpy(~layout.dead)
    same = all(
        _same_reads(right, faulty, layout, sequence) for sequence in range(right.facts.batch) if bool(live[sequence])
    )
    rows = live[right.facts.row_sequence]
    indices = not (same and _same_output(right, faulty, rows) and _same_writes(right, faulty, rows))
    return Effect(indices, numbers=not _same_numbers(right, faulty, rows))


def active_keys(program: AttentionProgram, sequence: int) -> torch.Tensor:
    """`(query_len, positions)` bool: which key positions each row of a sequence gives weight to."""
    rows = program.facts.row_sequence == sequence
    position = program.position
    ranged = (position >= program.first[rows, None]) & (position < program.last[rows, None])
    return ranged & (program.weight[sequence] > 0)


def _same_reads(right: AttentionProgram, faulty: AttentionProgram, layout: BatchLayout, sequence: int) -> bool:
    active = active_keys(right, sequence)
    if not torch.equal(active, active_keys(faulty, sequence)):
        return False
    used = active.any(0)
    pairs = (
        (right.k_slots, faulty.k_slots),
        (right.v_slots, faulty.v_slots),
        (right.weight, faulty.weight),
        *(((right.lse.weight, faulty.lse.weight),) if right.lse.weight is not None else ()),
    )
    if not all(torch.equal(a[sequence][used], b[sequence][used]) for a, b in pairs):
        return False
    if faulty.lse.weight is not None and not bool(
        (faulty.lse.weight[sequence][used] == right.weight[sequence][used]).all()
    ):
        return False
    if bool(used.any()) and not _same_addresses(right, faulty):
        return False
    return not _reads_rubbish(faulty, layout, sequence, used)


def _reads_rubbish(program: AttentionProgram, layout: BatchLayout, sequence: int, used: torch.Tensor) -> bool:
    """Whether weightless positions are multiplied that may hold NaN: slots that are no live key."""
    slots = program.v_slots[sequence][program.masked[sequence] & ~used]
    if not len(slots) or not bool((program.facts.row_sequence == sequence).any()):
        return False
    if bool((slots == NO_SLOT).any()) or program.facts.table is None:
        return True
    regions = torch.from_numpy(slot_regions(layout))[slots]
    return bool(((regions != Region.VISIBLE) & (regions != Region.NEW)).any())


def _same_addresses(right: AttentionProgram, faulty: AttentionProgram) -> bool:
    """Strides count only along dimensions that are longer than one."""
    spec, facts = right.facts.spec, right.facts
    token_dim = 1 if facts.table is None else facts.block_size
    sizes = (facts.num_slots // max(token_dim, 1), token_dim, spec.num_kv_heads)

    def relevant(strides: Strides) -> list[int]:
        return [stride for stride, size in zip(strides, sizes, strict=True) if size > 1]

    return relevant(right.k_strides) == relevant(faulty.k_strides) and relevant(right.v_strides) == relevant(
        faulty.v_strides
    )


def _same_output(right: AttentionProgram, faulty: AttentionProgram, rows: torch.Tensor) -> bool:
    """Rows written where they belong, KV heads, and how rows that see nothing are reported."""
    if not bool(rows.any()):
        return True
    heads = torch.equal(right.k_heads, faulty.k_heads) and torch.equal(right.v_heads, faulty.v_heads)
    heads &= right.v_from_k == faulty.v_from_k and _same_values(right.v_order, faulty.v_order)
    seeing = right.last > right.first
    blind = bool((rows & ~seeing).any()) and right.sinks is None
    reported = [(p.empty, p.lse.empty, p.lse.written) for p in (right, faulty)]
    if blind and reported[0] != reported[1]:
        return False
    placed = torch.equal(right.out_row[rows], faulty.out_row[rows])
    return placed and (heads or not bool((rows & seeing).any()))


def _same_values(right: torch.Tensor | None, faulty: torch.Tensor | None) -> bool:
    if right is None or faulty is None:
        return right is faulty
    return torch.equal(right, faulty)


def _same_writes(right: AttentionProgram, faulty: AttentionProgram, rows: torch.Tensor) -> bool:
    a, b = right.writes, faulty.writes
    if a is None or b is None or not bool(rows.any()):
        return (a is None) == (b is None)
    slots = torch.equal(a.k_slots[rows], b.k_slots[rows]) and torch.equal(a.v_slots[rows], b.v_slots[rows])
    return slots and (a.swapped, a.after_reading) == (b.swapped, b.after_reading)


def _same_numbers(right: AttentionProgram, faulty: AttentionProgram, rows: torch.Tensor) -> bool:
    if not bool(rows.any()):
        return True
    seeing = bool((rows & (right.last > right.first)).any())
    seeing |= faulty.scoring.masked is not None  # a masked key is read, where no row sees one, too
    scores = right.scoring == faulty.scoring and _same_values(right.alibi, faulty.alibi)
    sinks = (
        right.sinks is None
        or faulty.sinks is None
        or (right.sink_count == faulty.sink_count and torch.equal(right.sinks, faulty.sinks))
    )
    lse = right.lse.base2 == faulty.lse.base2 and right.lse.with_sink == faulty.lse.with_sink
    factors, others = ((p.out_factor, p.partials, p.k_scale, p.v_scale) for p in (right, faulty))
    outputs = factors == others and right.combine is faulty.combine
    return ((scores and lse and outputs) or not seeing) and sinks
