"""Kernels for the tests of isolation: one that is right and five that are each wrong in their own way.

Given to pagedbench as a user would: `--backend kernels.py:good_decode`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

import torch


def good_decode(q, k_cache, v_cache, block_table, total_seqlens, softmax_scale):
    """Gather, then attention in fp32, sequence by sequence; one query token each."""
    out = torch.empty(q.shape, dtype=q.dtype)
    block_size = k_cache.shape[1]
    for b, length in enumerate(total_seqlens.tolist()):
        blocks = block_table[b, : -(-length // block_size)].long()
        k = k_cache[blocks].flatten(0, 1)[:length].float()
        v = v_cache[blocks].flatten(0, 1)[:length].float()
        group = q.shape[2] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.einsum("hd,khd->hk", q[b, 0].float(), k) * softmax_scale
        out[b, 0] = torch.einsum("hk,khd->hd", scores.softmax(-1), v).to(q.dtype)
    return out


def wrong_decode(q, k_cache, v_cache, block_table, total_seqlens, softmax_scale):
    """Misses the last key of every sequence."""
    return good_decode(q, k_cache, v_cache, block_table, total_seqlens - 1, softmax_scale)


class Unspeakable(Exception):
    """Cannot be shown."""

    def __str__(self):
        return str(1 / 0)


def unspeakable_decode(q):
    """Raises what raises again when it is looked at."""
    raise Unspeakable


def segfault_decode(q):
    """Reads address 0."""
    print("about to read address 0", file=sys.stderr)
    ctypes.string_at(0)
    return q


def hanging_decode(q):
    """Never returns."""
    while True:
        time.sleep(0.01)


def deaf_decode(q):
    """Never returns, and hears of no signal, as in a driver."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    while True:
        time.sleep(0.01)


def aborting_decode(q):
    """Ends the process."""
    os.abort()


def hungry_decode(q):
    """Allocates without end."""
    kept = []
    while True:
        kept.append(torch.empty(1 << 27))


def raising_decode(q):
    """Refuses with an exception of its own."""
    raise ValueError("the kernel refuses")


def exiting_decode(q):
    """Ends the interpreter."""
    sys.exit(0)


def slow_decode(q, k_cache, v_cache, block_table, total_seqlens, softmax_scale):
    """Right, but takes its time: for tests that interrupt."""
    time.sleep(0.1)
    return good_decode(q, k_cache, v_cache, block_table, total_seqlens, softmax_scale)
