"""Faults of output, log-sum-exp, memory layout and masked memory: what a right sum is made into, and how."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from pagedbench.faults.fault import Change, Fault
from pagedbench.faults.program import NO_SLOT, NOT_WRITTEN, AttentionProgram, Combine, Strides
from pagedbench.faults.reading import split_of
from pagedbench.faults.scoring import QUERY_TILE
from pagedbench.words import AttnPath

NOISE = 1 / 16
BATCH_SPLITS = 4
INT32 = 2**32
INT32_MAX = 2**31 - 1


def combined_to_row_0(program: AttentionProgram) -> AttentionProgram:
    """Every sequence's rows land where the first sequence's belong; the others stay unwritten."""
    return program.replace(out_row=program.facts.row_index.clone())


def rows_reversed(program: AttentionProgram) -> AttentionProgram:
    """The rows of a sequence land in reverse order."""
    return program.replace(out_row=program.out_row[program.facts.mirror])


def last_sequence_unwritten(program: AttentionProgram) -> AttentionProgram:
    """The last sequence's rows are not written."""
    last = program.facts.row_sequence == program.facts.row_sequence.max() if len(program.out_row) else program.out_row
    return program.replace(out_row=torch.where(last.bool(), NOT_WRITTEN, program.out_row))


def later_tiles_unwritten(program: AttentionProgram) -> AttentionProgram:
    """Only the first tile of query tokens of each sequence is written."""
    later = program.facts.row_index >= QUERY_TILE
    return program.replace(out_row=torch.where(later, NOT_WRITTEN, program.out_row))


def empty_rows_untouched(program: AttentionProgram) -> AttentionProgram:
    """Rows that see no key keep what was in memory."""
    return program.replace(empty="untouched")


def empty_rows_skipped(program: AttentionProgram) -> AttentionProgram:
    """Rows that see no key, and their LSE, keep what was in memory."""
    return program.replace(empty="untouched", lse=replace(program.lse, written=False))


def empty_rows_divide_by_zero(program: AttentionProgram) -> AttentionProgram:
    """Rows that see no key are 0 / 0."""
    return program.replace(empty="nan")


def noisy(program: AttentionProgram) -> AttentionProgram:
    """One call in five is off."""
    return program.replace(noise=NOISE)


def splits_by_batch(program: AttentionProgram) -> AttentionProgram:
    """The order of summation depends on the number of sequences."""
    return program.replace(partials=min(program.facts.batch, BATCH_SPLITS))


def tail_leaks(program: AttentionProgram) -> AttentionProgram:
    """The rest of the last block is multiplied by zero instead of being skipped."""
    facts = program.facts
    tail = ~program.inside & (program.position < (facts.blocks * facts.block_size)[:, None])
    return program.replace(masked=program.masked | (tail & (program.k_slots != NO_SLOT)))


def below_window_leaks(program: AttentionProgram) -> AttentionProgram:
    """Keys below the window are multiplied by zero instead of being skipped."""
    return program.replace(masked=program.masked | program.inside)


def tile_past_the_table(program: AttentionProgram) -> AttentionProgram:
    """The table column after the last needed one is followed; past a row's end that is the next row's first entry."""
    facts = program.facts
    if facts.table is None or not facts.batch:
        return program
    flat = facts.table.flatten()
    at = torch.arange(facts.batch) * facts.table.shape[1] + facts.blocks
    if bool((at >= len(flat)).any()):
        return program.replace(crash="an illegal memory access was encountered: past the end of the block table")
    block = flat[at][:, None]
    ahead = program.position // facts.block_size == facts.blocks[:, None]
    if bool(((block < 0) | (block >= facts.num_slots // facts.block_size)).any()):
        return program.replace(crash="an illegal memory access was encountered: a block id outside the pool")
    slots = torch.where(ahead, block * facts.block_size + program.position % facts.block_size, program.k_slots)
    return program.replace(k_slots=slots, v_slots=slots, masked=program.masked | ahead)


def unmapped_entries_followed(program: AttentionProgram) -> AttentionProgram:
    """Every table entry becomes an address, needed or not."""
    facts = program.facts
    if facts.table is None or not bool((facts.table < 0).any()):
        return program
    return program.replace(crash="an illegal memory access was encountered: a table entry of −1 was followed")


def empty_query_reshaped(program: AttentionProgram) -> AttentionProgram:
    """Queries are reshaped by the batch size when the longest has one token."""
    facts = program.facts
    if not facts.batch or facts.query_lens.max() != 1 or facts.query_lens.min() == 1:
        return program
    return program.replace(crash=f"shape '[{facts.batch}, 1, ...]' is invalid for {len(facts.row_index)} query tokens")


def lse_of_one_split(program: AttentionProgram) -> AttentionProgram:
    """The LSE covers the first split only."""
    return program.replace(lse=replace(program.lse, weight=(split_of(program) == 0).float()))


def lse_of_last_split(program: AttentionProgram) -> AttentionProgram:
    """The LSE covers the last split only."""
    split = split_of(program)
    last = split.masked_fill(~program.inside, -1).amax(1, keepdim=True) if split.shape[1] else split
    return program.replace(lse=replace(program.lse, weight=(split == last).float()))


def _combined(by_head_0: bool) -> Change:
    """Splits are put together with wrong weights; no fault where no sequence has two."""

    def change(program: AttentionProgram) -> AttentionProgram:
        split = split_of(program)
        if not bool((split[program.inside] > 0).any()):
            return program
        return program.replace(combine=Combine(split, by_head_0))

    return change


def _lse(**changes: object) -> Change:
    return lambda program: program.replace(lse=replace(program.lse, **changes))  # type: ignore[arg-type]


def lse_without_sink(program: AttentionProgram) -> AttentionProgram:
    """The LSE leaves the sink out."""
    return program if program.sinks is None else program.replace(lse=replace(program.lse, with_sink=False))


def k_with_strides_of_v(program: AttentionProgram) -> AttentionProgram:
    """K is addressed with the strides of V."""
    return program.replace(k_strides=program.v_strides)


def strides_assumed(program: AttentionProgram) -> AttentionProgram:
    """The block stride is rebuilt from block size, heads and head dim."""
    spec = program.facts.spec
    if spec.path is AttnPath.VARLEN:
        return program

    def dense(strides: Strides, dim: int) -> Strides:
        return spec.block_size * spec.num_kv_heads * dim, strides[1], strides[2]

    return program.replace(
        k_strides=dense(program.k_strides, spec.head_dim), v_strides=dense(program.v_strides, spec.head_dim_v)
    )


def order_assumed(program: AttentionProgram) -> AttentionProgram:
    """The pool is taken to be NHD whatever its order."""
    spec = program.facts.spec
    if spec.path is AttnPath.VARLEN or spec.kv_order == "NHD":
        return program

    def nhd(strides: Strides, dim: int) -> Strides:
        return strides[0], spec.num_kv_heads * dim, dim

    return program.replace(
        k_strides=nhd(program.k_strides, spec.head_dim), v_strides=nhd(program.v_strides, spec.head_dim_v)
    )


def int32_overflow(program: AttentionProgram) -> AttentionProgram:
    """`block_id * stride` is computed in 32 bits: from 2³¹ elements on it wraps, to negative addresses or into the
    pool."""
    facts = program.facts
    if facts.table is None:
        return program
    block = program.k_slots // facts.block_size
    address = block * max(program.k_strides[0], program.v_strides[0])
    wrapped = address % INT32
    if bool((wrapped[program.inside] > INT32_MAX).any()):
        return program.replace(crash="an illegal memory access was encountered: a negative address")
    stride = max(program.k_strides[0], 1)
    slots = torch.where(
        address > INT32_MAX, wrapped // stride * facts.block_size + program.k_slots % facts.block_size, program.k_slots
    )
    return program.replace(k_slots=slots, v_slots=slots)


_BLIND = "a row that sees no key"
_PARTIAL = "a partly used block whose rest holds NaN"
_SPLIT = "two blocks a sequence"

FAULTS = (
    Fault(
        "combine-to-row-0",
        "every sequence's output lands on the first sequence",
        "W",
        combined_to_row_0,
        "two sequences",
        "pytorch/pytorch #194167",
    ),
    Fault("rows-reversed", "the rows of a sequence land in reverse order", "W", rows_reversed, "two query tokens"),
    Fault("rows-unwritten", "the last sequence's rows are not written", "W", last_sequence_unwritten),
    Fault(
        "later-tiles-unwritten",
        "only the first tile of query tokens is written",
        "W",
        later_tiles_unwritten,
        "a query longer than a tile",
    ),
    Fault(
        "empty-rows-untouched",
        "rows that see no key are not written",
        "N",
        empty_rows_untouched,
        _BLIND,
        "vllm-project/vllm #37442",
    ),
    Fault(
        "empty-rows-skipped",
        "rows that see no key are not written, nor is their LSE",
        "N",
        empty_rows_skipped,
        _BLIND,
        "vllm-project/vllm #37442",
    ),
    Fault(
        "empty-rows-divide-by-zero",
        "rows that see no key are divided by zero",
        "N",
        empty_rows_divide_by_zero,
        _BLIND,
        "vllm-project/vllm #57094",
    ),
    Fault("noise", "one call in five is off by a sixteenth", "D", noisy),
    Fault(
        "splits-by-batch",
        "the number of splits depends on the batch",
        "D",
        splits_by_batch,
        "two sequences",
        "Dao-AILab/flash-attention #1897",
    ),
    Fault(
        "tail-leaks",
        "the rest of the last block is multiplied by zero, not skipped",
        "N",
        tail_leaks,
        _PARTIAL,
        "flashinfer-ai/flashinfer #941",
    ),
    Fault(
        "below-window-leaks",
        "keys below the window are multiplied by zero, not skipped",
        "N",
        below_window_leaks,
        "keys that no row sees, holding NaN",
    ),
    Fault(
        "tile-past-the-table",
        "a tile reads past the needed part of the block table",
        "C",
        tile_past_the_table,
        "a table as wide as needed, or rubbish behind the needed entries",
        "vllm-project/flash-attention #42",
    ),
    Fault(
        "unmapped-entries-followed",
        "table entries of −1 are followed",
        "C",
        unmapped_entries_followed,
        "padding of −1 in the table",
        "gittensor-ai-lab/sparkinfer #152",
    ),
    Fault(
        "empty-query-reshaped",
        "queries are reshaped by the batch size",
        "C",
        empty_query_reshaped,
        "queries of one token and of none",
        "Dao-AILab/flash-attention #1537",
    ),
    Fault("lse-base-2", "the LSE is in base 2", "N", _lse(base2=True), "a row that sees two keys"),
    Fault(
        "lse-finite-for-empty-rows",
        "the LSE of rows that see no key is finite",
        "N",
        _lse(empty=-1e30),
        _BLIND,
        "flashinfer-ai/flashinfer #4452",
    ),
    Fault(
        "lse-infinite-for-empty-rows",
        "the LSE of rows that see no key is +inf (FlashAttention's convention)",
        "N",
        _lse(empty=math.inf),
        _BLIND,
    ),
    Fault(
        "lse-unwritten-for-empty-rows",
        "the LSE of rows that see no key is not written",
        "N",
        _lse(written=False),
        _BLIND,
    ),
    Fault("lse-nan-for-empty-rows", "the LSE of rows that see no key is NaN", "N", _lse(empty=math.nan), _BLIND),
    Fault("lse-of-last-split", "the LSE is that of the last split only", "N", lse_of_last_split, _SPLIT),
    Fault(
        "combine-equal-weights",
        "splits are combined with equal weights (their plain mean)",
        "W",
        _combined(by_head_0=False),
        _SPLIT,
    ),
    Fault(
        "combine-by-head-0",
        "splits are combined with the weights of head 0",
        "W",
        _combined(by_head_0=True),
        f"{_SPLIT}, two heads",
    ),
    Fault("lse-of-one-split", "the LSE is that of the first split only", "N", lse_of_one_split, _SPLIT),
    Fault("lse-without-sink", "the LSE leaves the sink out", "N", lse_without_sink, "sinks"),
    Fault(
        "k-with-strides-of-v",
        "K is addressed with the strides of V",
        "W",
        k_with_strides_of_v,
        "K and V pools with different strides",
    ),
    Fault(
        "strides-assumed",
        "the block stride is rebuilt from the block size",
        "W",
        strides_assumed,
        "an interleaved or strided pool",
        "ROCm/aiter #3498",
    ),
    Fault("order-assumed", "an HND pool is taken for NHD", "W", order_assumed, "an HND pool with two KV heads"),
    Fault(
        "int32-overflow",
        "block_id * stride overflows 32 bits",
        "C",
        int32_overflow,
        "a pool of 2³¹ elements",
    ),
)
