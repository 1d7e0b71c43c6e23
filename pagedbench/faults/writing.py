"""Faults of the append: what is written into the cache, and where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from pagedbench.faults.fault import Change, Fault
from pagedbench.faults.program import NO_SLOT, AttentionProgram, WritePlan

Redirect = Callable[[AttentionProgram, WritePlan], torch.Tensor]


def _written_to(redirect: Redirect) -> Change:
    """A change that sends the new tokens elsewhere; where nothing is appended it changes nothing."""

    def change(program: AttentionProgram) -> AttentionProgram:
        if program.writes is None:
            return program
        slots = redirect(program, program.writes)
        return program.replace(writes=replace(program.writes, k_slots=slots, v_slots=slots))

    return change


def _nowhere(program: AttentionProgram, writes: WritePlan) -> torch.Tensor:
    return torch.full_like(writes.k_slots, NO_SLOT)


def _one_late(program: AttentionProgram, writes: WritePlan) -> torch.Tensor:
    late = (writes.k_slots + 1) % max(program.facts.num_slots, 1)
    return torch.where(writes.k_slots == NO_SLOT, NO_SLOT, late)


def _block_zero(program: AttentionProgram, writes: WritePlan) -> torch.Tensor:
    return torch.where(writes.k_slots == NO_SLOT, NO_SLOT, writes.k_slots % program.facts.block_size)


def _another_sequence(program: AttentionProgram, writes: WritePlan) -> torch.Tensor:
    """The tokens of sequence b go where those of sequence b + 1 belong."""
    return writes.k_slots.roll(-int(program.facts.query_lens[0]) if program.facts.batch > 1 else 0)


def _reversed(program: AttentionProgram, writes: WritePlan) -> torch.Tensor:
    """The first new token of a sequence goes where its last one belongs."""
    return writes.k_slots[program.facts.mirror]


def _running_on(program: AttentionProgram, writes: WritePlan) -> torch.Tensor:
    """A sequence's new tokens go one after the other from the first one's slot on, whatever block follows."""
    slots = (_first_slot(program, writes) + program.facts.row_index) % max(program.facts.num_slots, 1)
    return torch.where(writes.k_slots == NO_SLOT, NO_SLOT, slots)


def _first_slot(program: AttentionProgram, writes: WritePlan) -> torch.Tensor:
    """The slot of the first new token of each one's sequence."""
    return writes.k_slots[torch.arange(len(writes.k_slots)) - program.facts.row_index]


def _at_one_offset(program: AttentionProgram, writes: WritePlan) -> torch.Tensor:
    """All new tokens of a sequence are written at the first one's place in the block."""
    size = program.facts.block_size
    slots = writes.k_slots // size * size + _first_slot(program, writes) % size
    return _last_ones(torch.where(writes.k_slots == NO_SLOT, NO_SLOT, slots))


def _in_one_block(program: AttentionProgram, writes: WritePlan) -> torch.Tensor:
    """All new tokens of a sequence are written into the first one's block."""
    size = program.facts.block_size
    slots = _first_slot(program, writes) // size * size + writes.k_slots % size
    return _last_ones(torch.where(writes.k_slots == NO_SLOT, NO_SLOT, slots))


def _last_ones(slots: torch.Tensor) -> torch.Tensor:
    """`slots` without those that a later token writes again: scattered at once, their order would be anyone's guess."""
    last = {slot: token for token, slot in enumerate(slots.tolist())}
    return torch.tensor(
        [slot if last[slot] == token else NO_SLOT for token, slot in enumerate(slots.tolist())], dtype=slots.dtype
    )


def _past_the_pool(program: AttentionProgram, writes: WritePlan) -> torch.Tensor:
    """The last new token is written to the first slot after the pool."""
    slots = writes.k_slots.clone()
    slots[-1:] = program.facts.num_slots
    return slots


def k_v_swapped(program: AttentionProgram) -> AttentionProgram:
    """New K goes into V and new V into K."""
    if program.writes is None:
        return program
    return program.replace(writes=replace(program.writes, swapped=True))


def v_append_skipped(program: AttentionProgram) -> AttentionProgram:
    """New K is written, new V is not."""
    if program.writes is None:
        return program
    return program.replace(writes=replace(program.writes, v_slots=_nowhere(program, program.writes)))


def stale_new_token(program: AttentionProgram) -> AttentionProgram:
    """The append is right but comes after the keys have been read."""
    if program.writes is None:
        return program
    return program.replace(writes=replace(program.writes, after_reading=True))


_APPENDS = "a decode step that appends"
_SEVERAL = "an append of several tokens to a sequence"
_TWO = "a decode step that appends to two sequences"

FAULTS = (
    Fault("append-skipped", "the new tokens are not written", "U", _written_to(_nowhere), _APPENDS),
    Fault("v-append-skipped", "the new tokens' V is not written", "U", v_append_skipped, _APPENDS),
    Fault("append-one-slot-late", "the new tokens are written one slot late", "U", _written_to(_one_late), _APPENDS),
    Fault("append-into-block-0", "the new tokens are written into block 0", "U", _written_to(_block_zero), _APPENDS),
    Fault(
        "append-reversed",
        "the new tokens of a sequence are written in reverse order",
        "U",
        _written_to(_reversed),
        _SEVERAL,
    ),
    Fault(
        "append-runs-on",
        "new tokens past the end of a block are written into the next physical one",
        "U",
        _written_to(_running_on),
        f"{_SEVERAL}, past the end of a block",
    ),
    Fault(
        "append-at-one-offset",
        "the new tokens of a sequence are all written at the first one's place in the block",
        "U",
        _written_to(_at_one_offset),
        _SEVERAL,
    ),
    Fault(
        "append-into-one-block",
        "the new tokens of a sequence are all written into the first one's block",
        "U",
        _written_to(_in_one_block),
        f"{_SEVERAL}, past the end of a block",
    ),
    Fault("append-k-v-swapped", "K and V of the new tokens are swapped", "U", k_v_swapped, _APPENDS),
    Fault(
        "append-into-another-sequence",
        "the new tokens are written into another sequence",
        "U",
        _written_to(_another_sequence),
        _TWO,
    ),
    Fault(
        "append-past-the-pool",
        "a new token is written past the pool",
        "U",
        _written_to(_past_the_pool),
        _APPENDS,
        "Dao-AILab/flash-attention #638",
    ),
    Fault("stale-new-token", "the keys are read before the new tokens are written", "U", stale_new_token, _APPENDS),
)
