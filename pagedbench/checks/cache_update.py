"""The pool, the guard bands and the inputs after the call, bit for bit.

Every slot of the whole pool is one of: written right, missed, wrong value, stray write, untouched. Writes into a trash
block are nobody's business. One comparison when all is right; slots are sorted only when something is not. The gathered
keys of the varlen path lie elsewhere, and are held to the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from pagedbench.backends.execute import tool_writes
from pagedbench.checks.base import CheckContext, CheckResult, Finding
from pagedbench.checks.changed_inputs import changed_gathered, changed_input
from pagedbench.layout.batch import BatchLayout
from pagedbench.layout.regions import Region, slot_regions
from pagedbench.tensors.bits import bits
from pagedbench.tensors.pool import Pool, take_slots
from pagedbench.tensors.prepare import Prepared, prepare
from pagedbench.words import Verdict

MOST_FINDINGS = 8


class CacheUpdate:
    """New tokens in their slots and nowhere else; everything else that the kernel was handed unchanged."""

    name = "cache-update"
    about = "Every slot of the pool, the guard bands and the inputs after the call, bit for bit."

    def not_applicable(self, context: CheckContext) -> str | None:
        """Applies to every cell: also a call that appends nothing must change nothing."""
        return None

    def run(self, context: CheckContext) -> CheckResult:
        """Compare all memory of the base execution with what it must hold."""
        by_tool = tool_writes(context.backend, context.base.prepared.call)
        return judge_memory(context.base.prepared, self.name, by_tool=by_tool)


def judge_memory(prepared: Prepared, check: str, *, by_tool: bool, start: torch.Tensor | None = None) -> CheckResult:
    """The verdict on a prepared call's memory after it ran, in the name of a check.

    `by_tool` only words the sentence. `start` is the arena's memory before the call, where `prepare` did not make it.
    """
    expected = prepared.expected(start)
    _forgive(prepared, expected)
    elsewhere = tuple(changed_gathered(prepared, expected))
    same = prepared.arena.equals(expected.arena)
    if same and not elsewhere:
        return CheckResult(check, Verdict.PASS, _sentence(prepared.layout, by_tool))
    in_arena = () if same else _findings(_Memory.of(prepared, expected, start))
    findings = (*in_arena, *elsewhere)
    return CheckResult(check, Verdict.CORRUPTED, findings[0].message, findings[:MOST_FINDINGS])


def _forgive(prepared: Prepared, expected: Prepared) -> None:
    """What may hold anything: the output, and the trash block."""
    bits(expected.arena.flat("out")).copy_(bits(prepared.arena.flat("out")))
    trash = prepared.layout.trash_block
    if trash is not None:
        for ours, theirs in ((expected.pool.k, prepared.pool.k), (expected.pool.v, prepared.pool.v)):
            bits(ours)[trash] = bits(theirs)[trash]


def _sentence(layout: BatchLayout, by_tool: bool) -> str:
    live = int(layout.query_lens[~layout.dead].sum())
    if not layout.append:
        return "nothing to append: every slot, guard and input unchanged"
    written = "written by the tool" if by_tool else "appended"
    return f"{live} new tokens {written}; every other slot, guard and input unchanged"


@dataclass(frozen=True)
class _Memory:
    """The call's memory as it is, as it must be, and as it was."""

    actual: Prepared
    expected: Prepared
    before: Pool

    @classmethod
    def of(cls, prepared: Prepared, expected: Prepared, start: torch.Tensor | None) -> _Memory:
        path, device = prepared.call.spec.path, prepared.call.q.device
        before = prepare(prepared.scenario, prepared.layout, prepared.inputs, path, device, fill=prepared.fill)
        if start is not None:
            before.arena.memory.copy_(start)
        return cls(prepared, expected, before.pool)


def _findings(memory: _Memory) -> Iterator[Finding]:
    """New tokens that went wrong, then stray writes, then whatever is no slot."""
    k = _changed(memory.actual.pool.k, memory.expected.pool.k)
    v = _changed(memory.actual.pool.v, memory.expected.pool.v)
    regions = slot_regions(memory.actual.layout)
    wrong = np.flatnonzero(k | v)
    yield from _new_token_findings(memory, wrong[regions[wrong] == Region.NEW], k, v)
    yield from _stray_findings(memory.actual.layout, wrong[regions[wrong] != Region.NEW], regions, k, v)
    for cache in ("k", "v"):
        bits(getattr(memory.expected.pool, cache)).copy_(bits(getattr(memory.actual.pool, cache)))
    for place, first, units in memory.actual.arena.changed_bytes(memory.expected.arena):
        told = changed_input(place, memory.actual, memory.expected)
        if told is not None:
            yield told
            continue
        between = "the memory between the blocks of " if place.endswith("_cache") and "guard" not in place else ""
        yield Finding(f"{between}{place} changed: {units} units of 2 bytes, the first at byte {first}")


def _changed(actual: torch.Tensor, expected: torch.Tensor) -> np.ndarray:
    """`(slots,)` bool on the host: slots with any bit that is not as expected."""
    return (bits(actual) != bits(expected)).flatten(2).any(-1).flatten().cpu().numpy()


def _new_token_findings(memory: _Memory, slots: np.ndarray, k: np.ndarray, v: np.ndarray) -> Iterator[Finding]:
    layout = memory.actual.layout
    for slot in slots[:MOST_FINDINGS].tolist():
        token = int(np.flatnonzero(layout.write_slots == slot)[0])
        sequence = int(layout.row_sequence()[token])
        what = [_what_happened(memory, cache, slot) for cache, wrong in (("k", k), ("v", v)) if wrong[slot]]
        which = token - int(layout.cu_seqlens_q[sequence])
        yield _at(layout, slot, f"sequence {sequence}, new token {which}", "; ".join(what), sequence, which)


def _what_happened(memory: _Memory, cache: str, slot: int) -> str:
    """Missed, or a wrong value and, where it can be told, whose."""
    name, found = cache.upper(), _row(getattr(memory.actual.pool, cache), slot)
    if torch.equal(found, _row(getattr(memory.before, cache), slot)):
        return f"{name} missed (the slot holds what it held before)"
    call = memory.actual.call
    for other, new in (("K", call.k_new), ("V", call.v_new)):
        token = _find(new, found)
        if token is not None:
            return f"{name} wrong value (that of {other} of query token {token} of the batch)"
    return f"{name} wrong value"


def _row(cache: torch.Tensor, slot: int) -> torch.Tensor:
    return bits(take_slots(cache, torch.tensor([slot], device=cache.device)))[0]


def _find(rows: torch.Tensor | None, row: torch.Tensor) -> int | None:
    if rows is None or rows.shape[1:] != row.shape:
        return None
    same = (bits(rows) == row).flatten(1).all(-1).nonzero()
    return int(same[0]) if len(same) else None


def _stray_findings(
    layout: BatchLayout, slots: np.ndarray, regions: np.ndarray, k: np.ndarray, v: np.ndarray
) -> Iterator[Finding]:
    for slot in slots[:MOST_FINDINGS].tolist():
        what = " and ".join(name for name, wrong in (("K", k), ("V", v)) if wrong[slot])
        region = _REGION_WORDS[Region(int(regions[slot]))]
        owners = np.flatnonzero((layout.block_table == slot // layout.block_size).any(1))
        owner = int(owners[0]) if len(owners) else None
        whose = "" if owner is None else f" of sequence {owner}"
        more = f" ({len(slots)} such slots)" if len(slots) > 1 else ""
        yield _at(layout, slot, f"stray write into {region}{whose}", f"{what} changed{more}", owner, None)


_REGION_WORDS = {
    Region.TRASH: "the trash block",
    Region.NEW: "a new token's slot",
    Region.VISIBLE: "a key",
    Region.HIDDEN: "a key that no row sees",
    Region.TAIL: "the tail of a block",
    Region.UNNEEDED: "a block that is not needed",
    Region.FREE: "a block that nobody names",
}


def _at(layout: BatchLayout, slot: int, who: str, what: str, sequence: int | None, token: int | None) -> Finding:
    block, offset = divmod(slot, layout.block_size)
    columns = [] if sequence is None else np.flatnonzero(layout.block_table[sequence] == block).tolist()
    logical = columns[0] if columns else None
    return Finding(
        f"{who}: {what}; slot {slot} is block {block}, offset {offset}",
        sequence=sequence,
        query_token=token,
        key=None if logical is None else logical * layout.block_size + offset,
        logical_block=logical,
        physical_block=block,
    )
