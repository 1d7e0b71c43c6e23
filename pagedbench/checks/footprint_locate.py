"""Location: which slots the rows of a failing sequence read instead of their own, and how often.

Group testing with one-hot tags. The sequence's own slots get a tag each, or one for a few neighbours where there are
many; groups with the right count are done, the others are asked for slot by slot. Slots that it must not read share
tags, and a tag that was read is split until single slots are left.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from pagedbench.checks.footprint_tags import LARGEST_COUNT, TagProbe

# Wrong groups that are resolved to single slots; beyond them the report speaks of whole groups.
_MOST_RESOLVED = 512
# Calls that the search for strangers may take.
_MOST_CALLS = 48
# Up to so many keys a group is a block; beyond, it is as large as can be counted.
_FEW_KEYS = 16384
_SINGLE_CALLS = 4
_FEWEST_IN_GROUP = 16


@dataclass
class Reads:
    """What the rows of one sequence read, for every head.

    `counts` `(rows, num_heads, keys)`: how often each of the sequence's keys was read; `wanted` `(rows, heads, keys)`
    bool, what it should have read; NaN where a group's count was wrong and its keys were not looked into. `foreign`:
    slot to `(rows, num_heads)` counts. `stale` `(rows, num_heads)`: slots read before they were written. `complete` is
    False where the search gave up.
    """

    wanted: np.ndarray
    counts: np.ndarray
    foreign: dict[int, np.ndarray] = field(default_factory=dict)
    stale: np.ndarray | None = None
    complete: bool = True


def locate(probe: TagProbe, own_slots: np.ndarray, num_slots: int, wanted: np.ndarray, block_size: int) -> Reads:
    """Search. `own_slots` `(keys,)` the slots of the sequence's keys, `wanted` `(rows, num_heads, keys)` bool."""
    reads = Reads(wanted, wanted.astype(np.float64))
    groups = _groups(len(own_slots), probe.channels, block_size)
    others = np.setdiff1d(np.arange(num_slots), own_slots)
    mass = _own_groups(probe, reads, own_slots, groups)
    wrong = [g for g in groups if len(g) > 1 and not _explained(reads, g)]
    _resolve(probe, reads, own_slots, np.concatenate(wrong) if wrong else np.zeros(0, np.int64), mass)
    _foreign(probe, reads, others, mass, block_size)
    if not reads.foreign and bool((reads.counts == wanted).all()):
        # Something is wrong, or nobody would look: what is missing in a group is made up for in the same one.
        _resolve(probe, reads, own_slots, np.arange(len(own_slots)), mass)
    return reads


def _groups(keys: int, per_call: int, block_size: int) -> list[np.ndarray]:
    """The keys in runs: single ones if a few calls can hold them, else blocks, or runs short enough to be counted."""
    size = 1 if keys <= _SINGLE_CALLS * per_call else _FEWEST_IN_GROUP
    if keys > _FEW_KEYS:
        size = LARGEST_COUNT
    elif size > 1 and _FEWEST_IN_GROUP <= block_size <= LARGEST_COUNT:
        size = block_size
    return np.split(np.arange(keys), np.arange(size, keys, size)) if keys else []


def _own_groups(probe: TagProbe, reads: Reads, own_slots: np.ndarray, groups: list[np.ndarray]) -> np.ndarray:
    """Count every group; the softmax mass `(rows, heads)` in keys. Marks what was wrong in `reads.counts`."""
    per_call = probe.channels
    shares = np.zeros((*reads.wanted.shape[:2], len(groups)))
    lse = None
    for start in range(0, len(groups), per_call):
        tags = probe.no_tags()
        for tag, group in enumerate(groups[start : start + per_call]):
            tags[own_slots[group]] = tag
        found, lse = probe.fractions(tags)
        shares[..., start : start + per_call] = found[..., : len(groups[start : start + per_call])]
        reads.stale = found[..., probe.channels]
    right = np.stack([reads.wanted[..., g].sum(-1) for g in groups], -1) if groups else shares
    mass = _mass(probe, shares, right, lse)
    for index, group in enumerate(groups):
        _spread(reads, group, shares[..., index] * mass, right[..., index])
    if reads.stale is not None:
        reads.stale = np.round(reads.stale * mass)
    return mass


def _mass(probe: TagProbe, shares: np.ndarray, right: np.ndarray, lse: np.ndarray | None) -> np.ndarray:
    """`(rows, heads)` the denominator in units of a key's weight.

    From the LSE where that is a whole number of keys; else most groups are taken to be right, and the median of what
    they say is it.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where((shares > 0) & (right > 0), right / shares, np.nan)
    known: np.ndarray = np.asarray(np.isfinite(ratio).any(-1))
    sink = 0.0 if probe.coding.sink is None else math.exp(probe.coding.sink - probe.coding.peak)
    mass = np.where(known, np.nanmedian(np.where(known[..., None], ratio, 1.0), -1), right.sum(-1) + sink)
    if lse is None:
        return mass
    with np.errstate(over="ignore", invalid="ignore"):
        told = np.exp(np.clip(lse - probe.coding.peak, -50, 50))
    whole = np.abs((told - sink) - np.round(told - sink)) < 1e-3 + 2e-5 * told
    plausible = whole & (np.round(told - sink) >= 1) & (told < 4 * mass + 4) & (4 * told + 4 > mass)
    return np.where(plausible, told, mass)


def _spread(reads: Reads, group: np.ndarray, counted: np.ndarray, right: np.ndarray) -> None:
    """Write a group's count down to its keys where it says enough: right, none, or a multiple of what is wanted."""
    rounded = np.round(np.nan_to_num(counted, nan=-1.0))
    factor = np.where(right > 0, rounded / np.maximum(right, 1), np.nan)
    clear = (rounded == right) | (rounded == 0) | ((right == len(group)) & (factor == np.round(factor)))
    value = np.where(right > 0, factor, rounded / len(group))
    told = np.where(clear[..., None], value[..., None] * np.where(right > 0, 1, 0)[..., None], np.nan)
    wanted = reads.wanted[..., group]
    if len(group) == 1:
        reads.counts[..., group] = rounded[..., None]
    else:
        reads.counts[..., group] = np.where(np.isnan(told), np.nan, told * wanted)


def _explained(reads: Reads, group: np.ndarray) -> bool:
    return not np.isnan(reads.counts[..., group]).any()


def _resolve(probe: TagProbe, reads: Reads, own_slots: np.ndarray, keys: np.ndarray, mass: np.ndarray) -> None:
    """Count single keys."""
    reads.complete &= len(keys) <= _MOST_RESOLVED
    for start in range(0, min(len(keys), _MOST_RESOLVED), probe.channels):
        part = keys[start : start + probe.channels]
        tags = probe.no_tags()
        tags[own_slots[part]] = np.arange(len(part))
        found, _ = probe.fractions(tags)
        reads.counts[..., part] = np.round(found[..., : len(part)] * mass[..., None])


def _foreign(probe: TagProbe, reads: Reads, others: np.ndarray, mass: np.ndarray, block_size: int) -> None:
    """Split the slots that must not be read until those that were read stand alone."""
    waiting = [others] if len(others) else []
    until = probe.calls + _MOST_CALLS
    while waiting and probe.calls < until:
        suspects, waiting = waiting[: probe.channels // 2], waiting[probe.channels // 2 :]
        pieces = _split(suspects, probe.channels, block_size)
        tags = probe.no_tags()
        for tag, piece in enumerate(pieces):
            tags[piece] = tag
        found, _ = probe.fractions(tags)
        counts = np.nan_to_num(found[..., : len(pieces)] * mass[..., None], nan=0.0)
        hit = (counts > 0.5).any((0, 1))
        found_tags = [int(tag) for tag in np.flatnonzero(hit)]
        for tag in found_tags:
            if len(pieces[tag]) == 1:
                reads.foreign[int(pieces[tag][0])] = np.round(counts[..., tag])
        waiting = [pieces[tag] for tag in found_tags if len(pieces[tag]) > 1] + waiting
    reads.complete &= not waiting


def _split(suspects: list[np.ndarray], channels: int, block_size: int) -> list[np.ndarray]:
    """Each range of slots in as many parts as there are tags for it, cut at block edges while it holds whole blocks."""
    share = max(2, channels // len(suspects))
    pieces: list[np.ndarray] = []
    for slots in suspects:
        blocks = slots // block_size
        edges = np.flatnonzero(np.diff(blocks)) + 1
        if len(edges):
            step = -(-(len(edges) + 1) // share)
            pieces += np.split(slots, edges[step - 1 :: step])
        else:
            pieces += np.array_split(slots, min(share, len(slots)))
    return [piece for piece in pieces if len(piece)][:channels]
