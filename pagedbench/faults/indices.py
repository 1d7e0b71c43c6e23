"""The index tensors of an `AttentionProgram` on the device that computes it (`evaluate.py`).

Programs are on the host; what a device needs of them is sent once, not at each call.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pagedbench.faults.program import NO_SLOT, AttentionProgram, WritePlan


@dataclass(frozen=True)
class Slots:
    """Slots `(n,)` on the device, and their bounds, which are looked at on the host (0 and −1 where there are none)."""

    at: torch.Tensor
    least: int
    most: int


@dataclass(frozen=True)
class Sequence:
    """What one sequence's rows read, on the device.

    `rows` `(r,)`; `k`, `v` the slots of the n keys that any of them multiplies; `live` `(r, n)` bool; `weight` and
    `lse_weight` `(n,)`; `distance` `(r, n)` for ALiBi; `split` `(n,)` where splits are combined wrongly.
    """

    rows: torch.Tensor
    k: Slots
    v: Slots
    live: torch.Tensor
    weight: torch.Tensor
    lse_weight: torch.Tensor | None
    distance: torch.Tensor | None
    split: torch.Tensor | None


@dataclass(frozen=True)
class Write:
    """New tokens `source` go to `slots`."""

    slots: Slots
    source: torch.Tensor


@dataclass(frozen=True)
class Indices:
    """All index tensors of a program on the device that computes it. They are the same for every call that has the same
    program, whatever its numbers: made once, they save the device the waiting."""

    sequences: tuple[Sequence, ...]
    k_heads: torch.Tensor
    v_heads: torch.Tensor
    out_source: torch.Tensor
    out_target: torch.Tensor
    k_write: Write | None
    v_write: Write | None


def indices_of(program: AttentionProgram, device: torch.device) -> Indices:
    """The program's index tensors on `device`."""
    kept, writes = program.out_row >= 0, program.writes
    sequences = [_sequence(program, sequence, device) for sequence in range(program.facts.batch)]
    return Indices(
        tuple(sequence for sequence in sequences if sequence is not None),
        program.k_heads.to(device),
        program.v_heads.to(device),
        kept.nonzero()[:, 0].to(device),
        program.out_row[kept].to(device),
        None if writes is None else _write_of(writes, writes.k_slots, device),
        None if writes is None else _write_of(writes, writes.v_slots, device),
    )


def _slots(slots: torch.Tensor, device: torch.device) -> Slots:
    least, most = (int(slots.min()), int(slots.max())) if len(slots) else (0, -1)
    return Slots(slots.to(device), least, most)


def _write_of(writes: WritePlan, slots: torch.Tensor, device: torch.device) -> Write:
    kept = slots != NO_SLOT
    return Write(_slots(slots[kept], device), writes.source[kept].to(device))


def _sequence(program: AttentionProgram, sequence: int, device: torch.device) -> Sequence | None:
    """What a sequence's rows read; None where it has none."""
    facts = program.facts
    rows = (facts.row_sequence == sequence).nonzero()[:, 0]
    if not len(rows):
        return None
    first, last = program.first[rows, None], program.last[rows, None]
    read = _used(program, sequence, first, last)
    if program.masked[sequence].any():
        read = program.masked[sequence] | read
    position = read.nonzero()[:, 0]
    weight = program.weight[sequence, position]
    live = (position >= first) & (position < last) & (weight > 0)
    lse_weight, distance = program.lse.weight, None
    if program.alibi is not None:  # bottom-right aligned
        own = facts.total[sequence] - facts.query_lens[sequence] + facts.row_index[rows]
        distance = (own[:, None] - position).abs().to(device)
    return Sequence(
        rows.to(device),
        _slots(program.k_slots[sequence, position], device),
        _slots(program.v_slots[sequence, position], device),
        live.to(device),
        weight.to(device),
        None if lse_weight is None else lse_weight[sequence, position].to(device),
        distance,
        None if program.combine is None else program.combine.split[sequence, position].to(device),
    )


def _used(program: AttentionProgram, sequence: int, first: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """`(positions,)` bool: positions with weight that lie between the first and the last key of any row."""
    sees = last > first
    if not sees.any():
        return torch.zeros(program.weight.shape[1], dtype=torch.bool)
    position = program.position[0]
    between = (position >= first[sees].min()) & (position < last[sees].max())
    return between & (program.weight[sequence] > 0)
