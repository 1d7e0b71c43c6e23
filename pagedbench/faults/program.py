"""What a kernel does on a call, written down: which slots it reads, how it weighs them, and what it writes where.

`program_for` gives the program of a right kernel; a fault (`reading.py`, `scoring.py`, ...) is a pure change of it.
`evaluate.py` computes a program. Index tensors are on the CPU: they are small and faults look at them. Sinks and slopes
stay where the call has them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch

from pagedbench.backends.indices import host_arrays
from pagedbench.scenario.model import UNLIMITED
from pagedbench.tensors.call import Call, CallSpec
from pagedbench.words import AttnPath

NO_SLOT = -1
NOT_WRITTEN = -1

Strides = tuple[int, int, int]
EmptyRow = Literal["zero", "nan", "untouched"]


@dataclass(frozen=True)
class Facts:
    """What a kernel is told, as CPU tensors.

    `table` `(batch, columns)` block ids; `query_lens`, `cached`, `total` `(batch,)`; `row_sequence`, `row_index`
    `(total_q,)`: the sequence of each query token and its place in it. `block_size` is a tile of as many keys where the
    keys are contiguous (varlen), and `table` is None there.
    """

    spec: CallSpec
    table: torch.Tensor | None
    block_size: int
    num_slots: int
    query_lens: torch.Tensor
    cached: torch.Tensor
    total: torch.Tensor
    row_sequence: torch.Tensor
    row_index: torch.Tensor
    index_words: int = 1

    @property
    def batch(self) -> int:
        """Sequences."""
        return len(self.total)

    @property
    def mirror(self) -> torch.Tensor:
        """`(total_q,)` the query token that each is, counted from the end of its sequence."""
        back = self.query_lens[self.row_sequence] - 1 - 2 * self.row_index
        return torch.arange(len(self.row_index)) + back

    @property
    def blocks(self) -> torch.Tensor:
        """`(batch,)` blocks that hold each sequence's keys."""
        return -(-self.total // self.block_size)


@dataclass(frozen=True)
class Scoring:
    """From q·k to a score: `cap * tanh(scale * q·k / cap)`.

    `cap_before_scale` caps q·k and scales afterwards; `exp_overflows` makes tanh from fp16 exponentials, NaN where
    e^2x is infinite; `channels` of the head dim are used. `masked` is the score of a masked key that is not left out.
    """

    scale: float
    softcap: float | None
    channels: int
    cap_before_scale: bool = False
    exp_overflows: bool = False
    masked: float | None = None


@dataclass(frozen=True)
class WritePlan:
    """The append: new token `source[i]` goes to `k_slots[i]` and `v_slots[i]`, `(total_q,)` each; NO_SLOT writes
    nothing.

    A slot past the pool is written there. `swapped` puts K where V belongs and V where K belongs; `after_reading`
    writes
    only when the keys have been read, so that the new tokens are not seen.
    """

    k_slots: torch.Tensor
    v_slots: torch.Tensor
    source: torch.Tensor
    swapped: bool = False
    after_reading: bool = False


@dataclass(frozen=True)
class LseRule:
    """How the log-sum-exp is reported. `weight` `(batch, positions)` replaces the keys' weights in it (None: the
    same). `of_blind_rows`: the LSE of a row that sees no key is what was computed for it; else the right one.
    `written`: it is written at all."""

    base2: bool = False
    empty: float = float("-inf")
    with_sink: bool = True
    weight: torch.Tensor | None = None
    of_blind_rows: bool = True
    written: bool = True


@dataclass(frozen=True)
class Combine:
    """Splits of the keys that are put together with wrong weights.

    `split` `(batch, positions)`: the split of each key; `by_head_0`: the weights are those of head 0, else all are
    equal.
    """

    split: torch.Tensor
    by_head_0: bool


@dataclass(frozen=True)
class AttentionProgram:
    """A kernel's behaviour on one call.

    `k_slots`, `v_slots`, `weight`, `masked` `(batch, positions)`: the slot from which the K and the V of each key
    position come, how often it counts (1; 0 drops it, 2 doubles it), and whether a position that has no weight is
    multiplied by zero instead of skipped. `first`, `last` `(total_q,)`: the half-open range of positions that a query
    token sees. `k_heads`, `v_heads` `(num_heads,)`: the KV head of each query head. `sinks` `(num_heads,)` count
    `sink_count` times. `out_row` `(total_q,)`: where each row's result is written, NOT_WRITTEN for nowhere.
    `k_strides`, `v_strides`: (block, token, head) in elements, as the kernel believes. `k_scale`, `v_scale`: what fp8
    is multiplied by. `v_from_k`: V is read where K lies. `v_order` `(head_dim_v,)`: where V's channels come from, None
    for their own places. `partials`: key ranges whose partial results are rounded to the output's dtype. `combine`:
    how splits are put together, None for rightly. `noise` is
    added to one call in five. `crash`: what it raises.
    """

    facts: Facts
    k_slots: torch.Tensor
    v_slots: torch.Tensor
    weight: torch.Tensor
    masked: torch.Tensor
    first: torch.Tensor
    last: torch.Tensor
    k_heads: torch.Tensor
    v_heads: torch.Tensor
    scoring: Scoring
    out_row: torch.Tensor
    sinks: torch.Tensor | None = None
    sink_count: float = 1.0
    alibi: torch.Tensor | None = None
    writes: WritePlan | None = None
    k_strides: Strides = (0, 0, 0)
    v_strides: Strides = (0, 0, 0)
    k_scale: float = 1.0
    v_scale: float = 1.0
    v_from_k: bool = False
    v_order: torch.Tensor | None = None
    lse: LseRule = LseRule()
    empty: EmptyRow = "zero"
    out_factor: float = 1.0
    partials: int = 1
    combine: Combine | None = None
    noise: float = 0.0
    crash: str | None = None

    def replace(self, **changes: object) -> AttentionProgram:
        """A copy with some fields changed."""
        return replace(self, **changes)  # type: ignore[arg-type]

    @property
    def position(self) -> torch.Tensor:
        """`(1, positions)` key positions, for masks by broadcasting."""
        return torch.arange(self.k_slots.shape[1])[None]

    @property
    def inside(self) -> torch.Tensor:
        """`(batch, positions)` bool: positions that are keys of the sequence."""
        return self.position < self.facts.total[:, None]


def program_for(call: Call) -> AttentionProgram:
    """The program of a right kernel for `call`: through the block table, or on contiguous keys on the varlen path."""
    facts = _facts(call)
    slots = _positions(facts, call)
    first, last = visible_range(facts, call.spec.causal, call.spec.window_size)
    heads = torch.arange(call.spec.num_heads) // call.spec.group_size
    k, v = pools(call)
    return AttentionProgram(
        facts=facts,
        k_slots=slots,
        v_slots=slots,
        weight=torch.ones(slots.shape),
        masked=torch.zeros(slots.shape, dtype=torch.bool),
        first=first,
        last=last,
        k_heads=heads,
        v_heads=heads,
        scoring=Scoring(call.spec.softmax_scale, call.spec.softcap, call.spec.head_dim),
        out_row=torch.arange(len(facts.row_sequence)),
        sinks=None if call.sinks is None else call.sinks.double(),
        alibi=None if call.alibi_slopes is None else call.alibi_slopes.double(),
        writes=_writes(facts, call, slots),
        k_strides=_strides(k),
        v_strides=_strides(v),
        k_scale=call.k_scale,
        v_scale=call.v_scale,
    )


def pools(call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    """The memory that slots index: the paged K and V, or the contiguous ones as blocks of one key."""
    if call.spec.path is AttnPath.VARLEN:
        if call.k is None or call.v is None:
            raise ValueError("the varlen path needs gathered keys")
        return call.k[:, None], call.v[:, None]
    return call.k_cache, call.v_cache


def visible_range(facts: Facts, causal: bool, window: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """`(total_q,)` first and one past the last key of each query token, both alignments bottom-right."""
    total = facts.total[facts.row_sequence]
    own = total - facts.query_lens[facts.row_sequence] + facts.row_index
    left, right = window
    first = torch.zeros_like(own) if left == UNLIMITED else own - left
    reach = 0 if causal else right
    last = total.clone() if not causal and right == UNLIMITED else own + reach + 1
    last = torch.minimum(last, total).clamp(min=0)
    return torch.minimum(first.clamp(min=0), last), last


def _facts(call: Call) -> Facts:
    paged = call.spec.path is not AttnPath.VARLEN
    host = host_arrays(call)
    cu_q = host.cu_seqlens_q.long()
    query_lens = cu_q.diff()
    sequence = torch.repeat_interleave(torch.arange(len(query_lens)), query_lens)
    k, _ = pools(call)
    return Facts(
        spec=call.spec,
        table=host.block_table.long() if paged else None,
        block_size=call.spec.block_size,
        num_slots=k.shape[0] * k.shape[1],
        query_lens=query_lens,
        cached=host.cache_seqlens.long(),
        total=host.total_seqlens.long(),
        row_sequence=sequence,
        row_index=torch.arange(len(sequence)) - cu_q[:-1][sequence],
        index_words=2 if call.spec.index_dtypes else 1,
    )


def _positions(facts: Facts, call: Call) -> torch.Tensor:
    """`(batch, positions)` slot of each key position, NO_SLOT where there is none; two blocks wider than the keys.

    What lies beyond a sequence's keys is what memory holds there, so that a fault can run into it.
    """
    width = int(facts.total.max()) + 2 * facts.block_size if facts.batch else 0
    position = torch.arange(width)
    if facts.table is None:
        slots = host_arrays(call).cu_seqlens_k.long()[:-1, None] + position
        return torch.where(slots < facts.num_slots, slots, NO_SLOT)
    return through_table(facts, facts.table, position)


def through_table(facts: Facts, table: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """`(batch, positions)` slots of key positions through a block table; NO_SLOT past its width or at ids out of
    range."""
    column = position // facts.block_size
    if table.shape[1] == 0:
        return torch.full((len(table), len(position)), NO_SLOT)
    block = table[:, column.clamp(max=table.shape[1] - 1)]
    valid = (column < table.shape[1]) & (block >= 0) & (block < facts.num_slots // facts.block_size)
    return torch.where(valid, block * facts.block_size + position % facts.block_size, NO_SLOT)


def followed(slots: torch.Tensor, block_size: int) -> torch.Tensor:
    """`slots` as a kernel reads them that follows entries it should not: what names no block is taken for block 0."""
    offset = torch.arange(slots.shape[1])[None] % block_size
    return torch.where(slots == NO_SLOT, offset, slots)


def _writes(facts: Facts, call: Call, slots: torch.Tensor) -> WritePlan | None:
    if call.spec.path is AttnPath.VARLEN or call.k_new is None:
        return None
    target = slots[facts.row_sequence, facts.cached[facts.row_sequence] + facts.row_index]
    return WritePlan(target, target, torch.arange(len(target)))


def _strides(pool: torch.Tensor) -> Strides:
    return pool.stride(0), pool.stride(1), pool.stride(2)
