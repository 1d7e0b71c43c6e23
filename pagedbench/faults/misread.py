"""Faults in how the index arrays are read: words of another width, rows of another length, sequences without tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import torch

from pagedbench.faults.fault import Change, Fault
from pagedbench.faults.program import (
    NO_SLOT,
    AttentionProgram,
    Facts,
    WritePlan,
    followed,
    through_table,
    visible_range,
)


def as_int32(array: torch.Tensor) -> torch.Tensor:
    """What int64 numbers are that are read as as many int32 ones: every second is a high half."""
    words = torch.stack([array, array >> 32], -1).flatten()
    return words[: array.numel()].view(array.shape)


def _misread(name: str, change: Change) -> Change:
    """`change` where the array of that name is int64."""
    return lambda program: change(program) if program.facts.spec.index_dtypes.get(name) == "int64" else program


def _through(program: AttentionProgram, table: torch.Tensor) -> AttentionProgram:
    """The same keys, looked up in another table."""
    slots = followed(through_table(program.facts, table, program.position[0]), program.facts.block_size)
    return program.replace(
        k_slots=torch.where(program.inside, slots, program.k_slots),
        v_slots=torch.where(program.inside, slots, program.v_slots),
    )


def table_misread(program: AttentionProgram) -> AttentionProgram:
    """Every second entry of the block table is a high half."""
    table = program.facts.table
    return program if table is None else _through(program, as_int32(table))


def table_row_stride(program: AttentionProgram) -> AttentionProgram:
    """A row of the block table is taken to be as long as the longest sequence needs."""
    facts = program.facts
    if facts.table is None or not facts.batch:
        return program
    columns = int(facts.blocks.max())
    return _through(program, facts.table.flatten()[: facts.batch * columns].view(facts.batch, columns))


def query_starts_misread(program: AttentionProgram) -> AttentionProgram:
    """Sequences begin and end at wrong query tokens; a query token of none is a row without keys."""
    facts = program.facts
    rows = len(facts.row_sequence)
    starts = as_int32(torch.cat([torch.zeros(1, dtype=torch.long), facts.query_lens.cumsum(0)])).tolist()
    sequence, index = torch.full((rows,), -1), torch.zeros(rows, dtype=torch.long)
    for number, (first, last) in enumerate(pairwise(starts)):
        sequence[first:last], index[first:last] = number, torch.arange(max(0, min(last, rows) - first))
    lengths = torch.tensor(starts).diff().clamp(min=0)
    return _told(program, replace(facts, query_lens=lengths, row_sequence=sequence, row_index=index))


def lengths_misread(program: AttentionProgram) -> AttentionProgram:
    """Sequences have the lengths of others, or none."""
    return _told(program, replace(program.facts, total=as_int32(program.facts.total)))


def cached_misread(program: AttentionProgram) -> AttentionProgram:
    """New tokens are written where other lengths put them. What is read is told by the lengths after the append."""
    facts, writes = program.facts, program.writes
    if writes is None:
        return program
    return program.replace(writes=_writes_of(program, writes, replace(facts, cached=as_int32(facts.cached))))


def _told(program: AttentionProgram, facts: Facts) -> AttentionProgram:
    """What a kernel does that is told other lengths; the slots of positions are the same."""
    spec, writes = facts.spec, program.writes
    first, last = visible_range(facts, spec.causal, spec.window_size)
    nobody = facts.row_sequence < 0
    slots = followed(program.k_slots, facts.block_size)
    return program.replace(
        facts=facts,
        first=first.masked_fill(nobody, 0),
        last=last.masked_fill(nobody, 0),
        k_slots=slots,
        v_slots=slots,
        writes=None if writes is None else _writes_of(program, writes, facts),
    )


def _writes_of(program: AttentionProgram, writes: WritePlan, facts: Facts) -> WritePlan:
    """Where the new tokens go by `facts`; what has no slot, or no sequence, is not written."""
    position = facts.cached[facts.row_sequence] + facts.row_index
    width = program.k_slots.shape[1]
    slots = program.k_slots[facts.row_sequence, position.clamp(max=width - 1)]
    slots = slots.masked_fill((position >= width) | (facts.row_sequence < 0), NO_SLOT)
    return replace(writes, k_slots=slots, v_slots=slots)


def _stops(lengths: Callable[[Facts], torch.Tensor]) -> Change:
    """Nothing is computed from the first sequence on whose length is 0: its rows are zero."""

    def change(program: AttentionProgram) -> AttentionProgram:
        empty = (lengths(program.facts) == 0).nonzero()
        if not len(empty):
            return program
        behind = program.facts.row_sequence > int(empty[0])
        return program.replace(last=torch.where(behind, program.first, program.last))

    return change


_INT64 = "attention.index_dtype int64 for {}"
_REPORT = "flashinfer-ai/flashinfer #725"

FAULTS = (
    Fault(
        "stops-at-empty-keys",
        "nothing is computed behind the first sequence without keys",
        "W",
        _stops(lambda facts: facts.total),
        "a sequence without keys before one that has some",
    ),
    Fault(
        "stops-at-empty-query",
        "nothing is computed behind the first sequence without query tokens",
        "W",
        _stops(lambda facts: facts.query_lens),
        "a sequence without query tokens before one that has some",
    ),
    Fault(
        "table-row-stride",
        "a row of the block table is taken to be as long as the longest sequence needs",
        "W",
        table_row_stride,
        "a block table wider than needed, and two sequences",
    ),
    Fault(
        "index-words-misread",
        "an int64 block table is read as int32",
        "A",
        _misread("block_table", table_misread),
        _INT64.format("the block table"),
        _REPORT,
    ),
    Fault(
        "cu-seqlens-q-misread",
        "an int64 cu_seqlens_q is read as int32",
        "A",
        _misread("cu_seqlens_q", query_starts_misread),
        _INT64.format("cu_seqlens_q"),
        _REPORT,
    ),
    Fault(
        "total-seqlens-misread",
        "an int64 total_seqlens is read as int32",
        "A",
        _misread("total_seqlens", lengths_misread),
        _INT64.format("total_seqlens"),
        _REPORT,
    ),
    Fault(
        "cache-seqlens-misread",
        "an int64 cache_seqlens is read as int32 by the append",
        "A",
        _misread("cache_seqlens", cached_misread),
        f"{_INT64.format('cache_seqlens')}, and an append",
        _REPORT,
    ),
)
