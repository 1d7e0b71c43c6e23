"""`flex`: torch's FlexAttention with its own paged helper, decode and paged-varlen, compiled on a GPU.

The helper (`torch.nn.attention.experimental._paged_attention`) turns a mask over logical blocks into one over physical
ones. Ragged queries are padded to the longest. The tool appends. Off a GPU flex runs as plain operations over the whole
pool, unread slots included, so it is offered on a GPU only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from pagedbench.backends.base import Output, Traits
from pagedbench.backends.indices import host_arrays
from pagedbench.backends.library import Capabilities, LibraryBackend, parameters
from pagedbench.backends.loading import Library
from pagedbench.scenario.model import UNLIMITED
from pagedbench.tensors.call import Call, CallSpec
from pagedbench.words import AttnPath

RECOMPILES = 256  # a kernel for each head dim, dtype, block size, modifier; beyond torch's 8 it would give up compiling
TILE_BYTES = 128 << 10  # of shared memory, for the stages of tiles of keys: Hopper has 227 KiB, and queries need some
STAGES = 3
DECODE_TILE = 64  # keys; torch's kernel for decode refuses larger blocks that are no multiple of it
QUERY_BLOCK = 128  # rows of a block mask; that kernel has no tile for more query tokens times heads of a group
MASK_ELEMENTS = 1 << 31  # the library evaluates a mask for each (sequence, query token, key) when a block mask is made
Modifier = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Prepared:
    """Block mask and score modifier over physical blocks, and the place of each query token in the padded batch."""

    block_mask: Any
    score_mod: Modifier | None
    rows: torch.Tensor


class FlexBackend(LibraryBackend):
    """FlexAttention, paged."""

    name = "flex"
    about = "torch's FlexAttention with its paged helper, compiled; the tool appends"
    lib = Library(
        title="flex",
        modules=("torch.nn.attention.experimental._paged_attention",),
        distributions=("torch",),
        install="pip install 'torch>=2.6'",
        capabilities=((8, 0), (99, 9)),
    )
    # A block of keys is loaded whole, and a weight of zero times NaN in V is NaN. Which of its kernels serves a shape
    # depends on the shapes compiled before, so equal calls differ in last bits now and then.
    traits = Traits(
        repeatable=False,
        appends=False,
        lse_note="(batch, num_heads, query_len)",
        nan_regions={"tail.v": "may-leak", "hidden.v": "may-leak"},
        compile_seconds=180.0,
        torch_compiled=True,
        graph_lengths=False,
        graph_table=False,
    )

    def capabilities(self, path: AttnPath) -> Capabilities:
        """A block must hold whole key tiles of its kernel, at least 16 keys; the pool is seen as one long sequence."""
        return Capabilities(
            dtypes=("float16", "bfloat16", "float32"),
            head_dim_step=16,
            head_dim_v=True,
            block_step=16,
            alibi=True,
            splits=False,
            int64=True,
            hnd=False,
            strided=False,
        )

    def particular(self, spec: CallSpec) -> Iterator[str]:
        """What making a block mask costs."""
        if spec.batch * spec.max_seqlen_q * spec.max_seqlen_k > MASK_ELEMENTS:
            yield f"{self.title} would evaluate a mask of more than {MASK_ELEMENTS:,} elements to make its block mask"

    def plan(self, call: Call) -> Prepared:
        """The block mask, by the library's own functions."""
        from torch.nn.attention.flex_attention import create_block_mask

        spec, device = call.spec, call.q.device
        paged = self._paged(call)
        width = max(1, -(-spec.max_seqlen_k // spec.block_size))
        logical = create_block_mask(
            _mask_mod(call),
            spec.batch,
            None,
            spec.max_seqlen_q,
            width * spec.block_size,
            device=str(device),
            BLOCK_SIZE=(QUERY_BLOCK, spec.block_size),
        )
        score_mod = _score_mod(call)
        starts = host_arrays(call).cu_seqlens_q.long()
        lengths = starts.diff()
        token = torch.arange(spec.total_q)
        sequence = torch.repeat_interleave(torch.arange(spec.batch), lengths)
        rows = sequence * spec.max_seqlen_q + token - starts[sequence]
        return Prepared(
            paged.convert_logical_block_mask(logical, kv_len=call.total_seqlens),
            None if score_mod is None else paged.get_score_mod(score_mod, kv_len=call.total_seqlens),
            rows.to(device),
        )

    def _paged(self, call: Call) -> Any:
        """The library's page table, filled with the scenario's placement instead of by its allocator."""
        spec, host = call.spec, host_arrays(call)
        paged = self.lib.module().PagedAttention(
            spec.num_blocks, spec.block_size, spec.batch, device=str(call.q.device)
        )
        blocks = (host.total_seqlens + spec.block_size - 1) // spec.block_size
        columns = torch.arange(host.block_table.shape[1])
        used = columns[None, :] < blocks[:, None]
        table = host.block_table.long()
        used &= (table >= 0) & (table < spec.num_blocks)
        sequence, column = used.nonzero(as_tuple=True)
        page_table = torch.zeros(spec.batch, spec.num_blocks, dtype=torch.int64)
        page_table[sequence, column] = table[sequence, column]
        logical = torch.full((spec.batch, spec.num_blocks), -1, dtype=torch.int64)
        logical[sequence, table[sequence, column]] = column
        paged.page_table, paged.physical_to_logical = page_table.to(call.q.device), logical.to(call.q.device)
        return paged

    def decode(self, call: Call, plan: Prepared) -> Output:
        """Equal query lengths need no padding, and are no other case."""
        return self.paged_varlen(call, plan)

    def paged_varlen(self, call: Call, plan: Prepared) -> Output:
        """Pad the queries, attend, take the real rows."""
        spec = call.spec
        padded = call.q.new_zeros(spec.batch * spec.max_seqlen_q, spec.num_heads, spec.head_dim)
        padded[plan.rows] = call.q
        q = padded.view(spec.batch, spec.max_seqlen_q, spec.num_heads, spec.head_dim).transpose(1, 2)
        out, aux = _compiled()(
            q,
            _one_sequence(call.k_cache),
            _one_sequence(call.v_cache),
            score_mod=plan.score_mod,
            block_mask=plan.block_mask,
            scale=spec.softmax_scale,
            enable_gqa=spec.group_size > 1,
            **_wanting_lse(),
            kernel_options=_kernel_options(spec),
        )
        lse = getattr(aux, "lse", aux)
        out = out.transpose(1, 2).flatten(0, 1)[plan.rows]
        return Output(out, lse.transpose(1, 2).flatten(0, 1)[plan.rows].float())


def _one_sequence(pool: torch.Tensor) -> torch.Tensor:
    """The pool as `(1, heads, slots, head_dim)`, over the same memory."""
    return pool.view(1, -1, *pool.shape[2:]).transpose(1, 2)


@cache
def _compiled() -> Callable[..., Any]:
    import torch._dynamo
    import torch._inductor.config
    from torch.nn.attention.flex_attention import flex_attention

    torch._inductor.config.compile_threads = 1  # one kernel at a time: a pool of processes takes seconds to start
    config: Any = torch._dynamo.config
    limit = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
    setattr(config, limit, max(getattr(config, limit), RECOMPILES))
    compiled: Callable[..., Any] = torch.compile(flex_attention)
    return compiled


def _wanting_lse() -> dict[str, Any]:
    """How this version of torch is asked for the LSE."""
    from torch.nn.attention import flex_attention as module

    if "return_aux" in parameters(module.flex_attention):
        return {"return_aux": module.AuxRequest(lse=True)}
    return {"return_lse": True}


def _kernel_options(spec: CallSpec) -> dict[str, Any]:
    """The tile, and the general kernel for what the library's own kernel for decode has no tile for: it is chosen for
    short queries nevertheless, unless it was compiled for still shorter ones before."""
    whole = spec.block_size <= DECODE_TILE or spec.block_size % DECODE_TILE == 0
    few = spec.max_seqlen_q * spec.group_size <= QUERY_BLOCK
    return {"BLOCK_N": _tile(spec), "FORCE_USE_FLEX_ATTENTION": not (whole and few)}


def _tile(spec: CallSpec) -> int:
    """Keys in a tile: the largest power of two up to 64 that divides the block size, and fits into shared memory."""
    dtype: torch.dtype = getattr(torch, spec.kv_dtype)
    key_bytes = (spec.head_dim + spec.head_dim_v) * dtype.itemsize
    room = max(16, TILE_BYTES // (STAGES * key_bytes))
    return min(64, spec.block_size & -spec.block_size, 1 << (room.bit_length() - 1))


def _mask_mod(call: Call) -> Modifier:
    """Which logical keys a query token sees."""
    query_len = call.cu_seqlens_q.diff()
    keys, causal, window = call.total_seqlens, call.spec.causal, call.spec.window_size
    left, right = (call.total_seqlens.new_tensor(side) for side in window)  # tensors, as softcap below

    def visible(b: torch.Tensor, h: torch.Tensor, q_idx: torch.Tensor, kv_idx: torch.Tensor) -> torch.Tensor:
        position = keys[b] - query_len[b] + q_idx
        seen = (kv_idx < keys[b]) & (q_idx < query_len[b])
        if causal:
            seen = seen & (kv_idx <= position)
        elif window[1] != UNLIMITED:
            seen = seen & (kv_idx <= position + right)
        if window[0] != UNLIMITED:
            seen = seen & (kv_idx >= position - left)
        return seen

    return visible


def _score_mod(call: Call) -> Modifier | None:
    """Softcap, then ALiBi, on the scaled score; None if there is neither."""
    slopes = call.alibi_slopes
    # As a tensor: a number that changes from call to call is compiled as an unknown, which fails in torch 2.11.
    softcap = None if call.spec.softcap is None else call.q.new_tensor(call.spec.softcap, dtype=torch.float32)
    if softcap is None and slopes is None:
        return None
    query_len, keys = call.cu_seqlens_q.diff(), call.total_seqlens

    def modified(
        score: torch.Tensor, b: torch.Tensor, h: torch.Tensor, q_idx: torch.Tensor, kv_idx: torch.Tensor
    ) -> torch.Tensor:
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        if slopes is not None:
            score = score - slopes[h] * (keys[b] - query_len[b] + q_idx - kv_idx).abs()
        return score

    return modified
