"""Sentences about what a row read: «reads block 7 (sequence 0's) instead of block 12 for keys 64–95; misses key 96»."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from pagedbench.checks.footprint_locate import Reads
from pagedbench.layout.batch import BatchLayout
from pagedbench.layout.regions import Region, slot_regions

_MOST_CLAUSES = 4
_REGION_WORDS = {
    Region.TRASH: "the trash block",
    Region.TAIL: "the unused rest of it",
    Region.UNNEEDED: "named by padding only",
    Region.FREE: "free",
}


def spans(values: Iterable[int]) -> list[tuple[int, int]]:
    """Ascending numbers as runs (first, last)."""
    runs: list[tuple[int, int]] = []
    for value in values:
        if runs and value == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], value)
        else:
            runs.append((value, value))
    return runs


def span_words(noun: str, runs: Sequence[tuple[int, int]]) -> str:
    """`key 96`, `keys 64–95`, `keys 1, 4–7 and 3 more ranges`."""
    plural = len(runs) > 1 or runs[0][0] != runs[0][1]
    shown = ", ".join(f"{a:,}" if a == b else f"{a:,}–{b:,}" for a, b in runs[:3])
    more = f" and {len(runs) - 3} more ranges" if len(runs) > 3 else ""
    return f"{noun}{'s' if plural else ''} {shown}{more}"


def describe_row(layout: BatchLayout, sequence: int, reads: Reads, row: int, head: int) -> str:
    """One clause a kind of deviation for a row and head of `reads`."""
    wanted, counts = reads.wanted[row, head], reads.counts[row, head]
    missed = np.flatnonzero(wanted & (counts == 0))
    foreign = {slot: int(found[row, head]) for slot, found in reads.foreign.items() if found[row, head] > 0}
    clauses = _replaced_blocks(layout, sequence, missed, foreign)
    left = [int(key) for key in missed if key not in clauses.keys_explained]
    if left:
        clauses.text.append("misses " + span_words("key", spans(left)))
    for times in sorted({int(c) for c in counts[wanted & (counts > 1)]}):
        often = "twice" if times == 2 else f"{times} times"
        clauses.text.append(f"reads {span_words('key', spans(np.flatnonzero(wanted & (counts == times))))} {often}")
    beyond = np.flatnonzero(~wanted & (counts > 0))
    if len(beyond):
        clauses.text.append(f"reads {span_words('key', spans(beyond))}, which it must not see")
    clauses.text += _strangers(layout, foreign, clauses.slots_explained)
    if reads.stale is not None and reads.stale[row, head] > 0:
        clauses.text.append("reads a slot that is appended to before the new token is there")
    unclear = np.flatnonzero(np.isnan(counts))
    if len(unclear):
        clauses.text.append(f"counts {span_words('key', spans(unclear))} wrongly")
    text = clauses.text[:_MOST_CLAUSES]
    if text and (len(clauses.text) > _MOST_CLAUSES or not reads.complete):
        text.append("and more")
    return "; ".join(text)


def describe_k(layout: BatchLayout, sequence: int, reads: Reads, row: int, head: int) -> str:
    """Where keys were left out, or let in, that their own K would not have."""
    wanted, counts = reads.wanted[row, head], reads.counts[row, head]
    lost, gained = np.flatnonzero(wanted & (counts == 0)), np.flatnonzero(~wanted & (counts > 0))
    if not len(lost) and not len(gained):
        return describe_row(layout, sequence, reads, row, head)
    touched = sorted({*map(int, lost), *map(int, gained)})
    within = span_words("key", [(touched[0], touched[-1])])
    if not len(lost):
        return f"K does not matter: {len(gained)} keys that their K leaves out were read, within {within}"
    return f"V is right, but K is not the keys' own within {within} ({len(touched)} of them weighed by another's)"


class _Clauses:
    """Text so far, and which keys and slots it accounts for."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.keys_explained: set[int] = set()
        self.slots_explained: set[int] = set()


def _replaced_blocks(layout: BatchLayout, sequence: int, missed: np.ndarray, foreign: dict[int, int]) -> _Clauses:
    """Blocks whose keys are missed while the same offsets of one other block are read."""
    clauses = _Clauses()
    size = layout.block_size
    by_column: dict[int, list[int]] = {}
    for key in missed:
        by_column.setdefault(int(key) // size, []).append(int(key))
    # The fullest first: one stray slot of a block is less likely to stand for one missing key than a whole block is.
    for column, keys in sorted(by_column.items(), key=lambda item: -len(item[1])):
        for block in sorted({slot // size for slot in foreign} - {s // size for s in clauses.slots_explained}):
            slots = {block * size + key % size for key in keys}
            if slots <= foreign.keys():
                own = int(layout.block_table[sequence, column])
                clauses.text.append(
                    f"reads block {block} ({owner(layout, block * size + keys[0] % size)}) instead of block {own} "
                    f"for {span_words('key', spans(keys))}"
                )
                clauses.keys_explained.update(keys)
                clauses.slots_explained |= slots
                break
    return clauses


def _strangers(layout: BatchLayout, foreign: dict[int, int], explained: set[int]) -> list[str]:
    """Slots read that are nobody's replacement, block by block."""
    text = []
    size = layout.block_size
    rest = sorted(set(foreign) - explained)
    for block in sorted({slot // size for slot in rest}):
        slots = [slot for slot in rest if slot // size == block]
        offsets = span_words("offset", spans(slot % size for slot in slots))
        text.append(f"reads {offsets} of block {block} ({owner(layout, slots[0])})")
    return text


def owner(layout: BatchLayout, slot: int) -> str:
    """Whose a slot is."""
    region = Region(int(slot_regions(layout)[slot]))
    if region in _REGION_WORDS:
        return _REGION_WORDS[region]
    at = np.flatnonzero(layout.read_slots == slot)
    if not len(at):
        return "nobody's"
    return f"sequence {int(np.searchsorted(layout.cu_seqlens_k, at[0], side='right')) - 1}'s"


def heads_words(heads: Sequence[int]) -> str:
    """`head 3`, `heads 0–3`."""
    return span_words("head", spans(heads))
