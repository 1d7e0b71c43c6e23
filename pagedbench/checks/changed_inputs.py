"""Sentences about inputs that a call changed: which query token's, or which entry of an array; what it was and is."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from pagedbench.checks.base import Finding
from pagedbench.checks.rows import place_of
from pagedbench.tensors.bits import bits
from pagedbench.tensors.pool import take_slots
from pagedbench.tensors.prepare import Prepared

_TOKENS = {"q": "head", "k_new": "KV head", "v_new": "KV head"}
_KEYS_AT_ONCE = 1 << 16
_ARRAYS = ("cu_seqlens_q", "cu_seqlens_k", "cache_seqlens", "total_seqlens", "block_table", "sinks", "alibi_slopes")


def changed_input(name: str, actual: Prepared, expected: Prepared) -> Finding | None:
    """A finding on the input of that name (`q`, `k_new`, `block_table`, `sinks`, ...), where it differs.

    None for what is no input, or has only changed in the bytes that round it off.
    """
    right = getattr(expected.call, name) if name in _TOKENS or name in _ARRAYS else None
    if not isinstance(right, torch.Tensor):
        return None
    # From the memory itself: a kernel may have put another tensor into its `Call`.
    found = actual.arena.shaped(name, right.shape)
    differs = bits(found) != bits(right)
    if not bool(differs.any()):
        return None
    return _tokens(name, actual, differs) if name in _TOKENS else _entries(name, found, right, differs)


def changed_gathered(actual: Prepared, expected: Prepared) -> Iterator[Finding]:
    """A finding for each of `k` and `v` of the varlen path that is no longer what was gathered from the cache.

    They lie outside the arena, in memory that `PagedKVCache` allocated. `expected` is the memory after the call.
    """
    for name, cache in (("k", expected.pool.k), ("v", expected.pool.v)):
        found = getattr(actual.call, name)
        slots = expected.call.read_slots
        if found is None or found.dtype != cache.dtype or len(found) != len(slots):
            continue  # another path; or the kernel has put another tensor into its `Call`
        # In parts: a cell may nearly fill the device.
        parts = zip(torch.split(found, _KEYS_AT_ONCE), torch.split(slots, _KEYS_AT_ONCE), strict=True)
        differs = [(bits(rows) != bits(take_slots(cache, at))).flatten(1).any(-1) for rows, at in parts]
        if differs and bool((changed := torch.cat(differs)).any()):
            yield _gathered(name, actual, changed)


def _gathered(name: str, actual: Prepared, changed: torch.Tensor) -> Finding:
    """The first key, and how many there are."""
    keys = changed.nonzero()[:, 0]
    first, ends = int(keys[0]), actual.layout.cu_seqlens_k
    sequence = int(np.searchsorted(ends, first, side="right")) - 1
    key = first - int(ends[sequence])
    more = f" (and {len(keys) - 1:,} more of its keys)" if len(keys) > 1 else ""
    return Finding(
        f"{name}, which the tool gathered, changed at sequence {sequence}, key {key}{more}",
        sequence,
        key=key,
        array=name,
    )


def _tokens(name: str, actual: Prepared, differs: torch.Tensor) -> Finding:
    """The first token and head, and how many there are."""
    rows = differs.flatten(2).any(-1).nonzero()
    row, head = rows[0].tolist()
    place = place_of(actual.layout, row)
    where = f"sequence {place.sequence}, query token {place.query_token}, {_TOKENS[name]} {head}"
    more = f" (and in {len(rows) - 1:,} more of its rows)" if len(rows) > 1 else ""
    of_query = head if name == "q" else None
    return Finding(f"{name} changed in {where}{more}", place.sequence, place.query_token, of_query, array=name)


def _entries(name: str, found: torch.Tensor, right: torch.Tensor, differs: torch.Tensor) -> Finding:
    """The first entry, and how many there are."""
    entries = differs.nonzero()
    at = tuple(entries[0].tolist())
    index = "".join(f"[{i}]" for i in at)
    more = f" (and {len(entries) - 1:,} more of its entries changed)" if len(entries) > 1 else ""
    return Finding(f"{name}{index}: {_shown(right[at])} became {_shown(found[at])}{more}", array=name)


def _shown(value: torch.Tensor) -> str:
    number = value.item()
    return f"{number:.6g}" if isinstance(number, float) else str(number)
