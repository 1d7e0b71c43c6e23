"""Kernels for the tests of isolation on a GPU: each but one leaves a dead CUDA context, hangs, or takes the memory.

Given to pagedbench as a user would: `--backend gpu_kernels.py:good_decode`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

FAR = 1 << 40
"""Elements past a tensor: no memory of any process lies there."""


@triton.jit
def _write_at(pointer, offset):
    tl.store(pointer + offset, 0.0)


@triton.jit
def _spin(pointer):
    while tl.load(pointer, volatile=True) == 0:
        pass


def good_decode(q, k_cache, v_cache, block_table, total_seqlens, softmax_scale):
    """Gather, then attention in fp32, sequence by sequence; one query token each."""
    out = torch.empty_like(q)
    for b, length in enumerate(total_seqlens.tolist()):
        blocks = block_table[b, : -(-length // k_cache.shape[1])].long()
        k, v = (pool[blocks].flatten(0, 1)[:length].float() for pool in (k_cache, v_cache))
        group = q.shape[2] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        weights = (torch.einsum("hd,khd->hk", q[b, 0].float(), k) * softmax_scale).softmax(-1)
        out[b, 0] = torch.einsum("hk,khd->hd", weights, v).to(q.dtype)
    return out


def wild_write_decode(q, k_cache):
    """Writes far outside of all memory: the classic of a wrong block table entry."""
    _write_at[(1,)](k_cache, FAR)
    return torch.zeros_like(q)


def assert_decode(q, block_table):
    """Indexes past the end on the device: torch's own assertion ends the context."""
    return q[torch.full((q.shape[0],), 1 << 30, device=q.device)]


def endless_decode(q):
    """A kernel that never ends: the host waits for it, and no exception comes."""
    _spin[(1,)](torch.zeros(1, dtype=torch.int32, device=q.device))
    torch.cuda.synchronize()
    return q


def hungry_decode(q):
    """Allocates device memory without end."""
    kept = []
    while True:
        kept.append(torch.empty(1 << 30, dtype=torch.float32, device=q.device))
