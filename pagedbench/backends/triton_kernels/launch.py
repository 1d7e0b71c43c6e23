"""Launches the kernels: shapes and strides in, output and log-sum-exp out. No attention here, no wait for the device.

Importing this module defines the kernels; see the package's docstring for why that matters.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl

from pagedbench.backends.triton_kernels.attention import attention_kernel
from pagedbench.backends.triton_kernels.combine import combine_kernel
from pagedbench.backends.triton_kernels.heuristics import Device, Settings, Shape, choose_settings, next_power_of_2

LOG2E = math.log2(math.e)
# "No limit" for a window, small enough that a key's position and it add up within 31 bits.
FAR = 1 << 30
# New tokens that a program copies at a time.
APPEND_TILE = 16
# What every GPU with tensor cores for bfloat16 can give to one program.
SMALL_SHARED_MEMORY = 99 << 10
# The dtype of the operands of products, by that of q; fp8 is widened to bfloat16.
DOT_DTYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


@dataclass(frozen=True)
class PagedBatch:
    """The arguments of one call, named as the tensors of `pagedbench.tensors.call.Call`.

    `q` `(total_q, num_heads, head_dim)`; `k_cache`, `v_cache` `(num_blocks, block_size, num_kv_heads, head_dim[_v])`,
    any strides but the last, which is 1; `block_table` `(batch, columns)`, last stride 1; `seqlens` `(batch,)`: keys in
    the cache, without the new tokens if `k_new`, `v_new` `(total_q, num_kv_heads, head_dim[_v])` are given, which are
    then appended. Index arrays are int32 or int64. `query_len` is the number of query tokens if it is the same for all
    sequences, else None. `window` is (left, right), both ends inclusive, −1 unlimited.
    """

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    block_table: torch.Tensor
    seqlens: torch.Tensor
    cu_seqlens_q: torch.Tensor
    max_seqlen_q: int
    max_seqlen_k: int
    softmax_scale: float
    query_len: int | None = None
    k_new: torch.Tensor | None = None
    v_new: torch.Tensor | None = None
    causal: bool = True
    window: tuple[int, int] = (-1, -1)
    softcap: float | None = None
    sinks: torch.Tensor | None = None
    alibi_slopes: torch.Tensor | None = None
    k_scale: float = 1.0
    v_scale: float = 1.0
    num_splits: int = 0

    @property
    def batch(self) -> int:
        """Sequences."""
        return self.seqlens.shape[0]

    @property
    def group(self) -> int:
        """Query heads for one KV head."""
        return self.q.shape[1] // self.k_cache.shape[2]

    @property
    def reach(self) -> tuple[int, int]:
        """Keys that a token sees on its left and on its right, `FAR` where that is not limited."""
        left, right = (FAR if side < 0 else side for side in self.window)
        return left, 0 if self.causal else right

    def shape(self) -> Shape:
        """What the heuristics look at."""
        left, right = self.reach
        return Shape(
            batch=self.batch,
            num_kv_heads=self.k_cache.shape[2],
            group=self.group,
            head_dim=self.q.shape[2],
            head_dim_v=self.v_cache.shape[3],
            # fp8 is widened; the interpreter walks through the tiles of 16-bit dtypes whatever it calculates in.
            element_size=4 if self.q.dtype is torch.float32 and self.q.is_cuda else 2,
            max_seqlen_q=self.max_seqlen_q,
            max_seqlen_k=min(self.max_seqlen_k, left + right + self.max_seqlen_q),
            num_splits=self.num_splits,
        )


@functools.cache
def device_of(device: torch.device) -> Device:
    """What the heuristics know of a device. A CPU counts as small: the interpreter runs one program after another."""
    if device.type == "cpu":
        return Device(multiprocessors=1, shared_memory=SMALL_SHARED_MEMORY)
    properties = torch.cuda.get_device_properties(device)
    shared = getattr(properties, "shared_memory_per_block_optin", SMALL_SHARED_MEMORY)
    return Device(properties.multi_processor_count, shared)


def paged_attention(
    batch: PagedBatch, out: torch.Tensor | None = None, settings: Settings | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention through the block table, appending in place where `batch.k_new` is given.

    Returns `out` `(total_q, num_heads, head_dim_v)` in the dtype of `q` (or the given contiguous tensor) and `lse`
    `(total_q, num_heads)` fp32, natural logarithm, −inf for rows that see no key. Does not synchronise.
    """
    total_q, num_heads, _ = batch.q.shape
    out = batch.q.new_empty((total_q, num_heads, batch.v_cache.shape[3])) if out is None else out
    lse = torch.empty((total_q, num_heads), dtype=torch.float32, device=batch.q.device)
    if batch.batch == 0 or total_q == 0:
        return out, lse
    settings = settings or choose_settings(batch.shape(), device_of(batch.q.device))
    if out.is_cuda:
        _launch(batch, settings, out, lse)
    else:
        # The interpreter cuts fp32 off to bfloat16 where a GPU rounds.
        exact = out.float()
        _launch(batch, settings, exact, lse)
        out.copy_(exact)
    return out, lse


def _launch(batch: PagedBatch, settings: Settings, out: torch.Tensor, lse: torch.Tensor) -> None:
    """One launch, or with splits two: the partial results, then their combination."""
    splits = settings.num_splits
    if splits == 1:
        _attend(batch, settings, out, lse)
        return
    partial_out = torch.empty((splits, *out.shape), dtype=torch.float32, device=out.device)
    partial_lse = torch.empty((splits, *lse.shape), dtype=torch.float32, device=out.device)
    _attend(batch, settings, partial_out, partial_lse)
    head_dim_v = out.shape[2]
    pad_splits, pad_dim_v = next_power_of_2(splits), next_power_of_2(head_dim_v)
    combine_kernel[(lse.numel(),)](
        partial_out,
        partial_lse,
        out,
        lse,
        lse.numel(),
        splits,
        HEAD_DIM_V=head_dim_v,
        PAD_DIM_V=pad_dim_v,
        PAD_SPLITS=pad_splits,
        num_warps=4 if pad_splits * pad_dim_v <= 8192 else 8,
    )


def _attend(batch: PagedBatch, settings: Settings, out: torch.Tensor, lse: torch.Tensor) -> None:
    """Launch the attention kernel; `out` and `lse` have a leading dimension for splits if there are several."""
    total_q, _, head_dim = batch.q.shape
    num_blocks, block_size, num_kv_heads, head_dim_v = batch.v_cache.shape
    tile = settings.tile
    row_tiles = -(-batch.max_seqlen_q * batch.group // tile.rows)
    score_scale, softcap = _score_scale(batch)
    # Where nothing is appended the kernel never looks at k_new and v_new: any tensor serves.
    k_new = batch.q if batch.k_new is None else batch.k_new
    v_new = batch.q if batch.v_new is None else batch.v_new
    attention_kernel[(batch.batch * settings.num_splits * row_tiles * num_kv_heads,)](
        batch.q,
        batch.k_cache,
        batch.v_cache,
        k_new,
        v_new,
        out,
        lse,
        batch.cu_seqlens_q,
        batch.seqlens,
        batch.block_table,
        batch.sinks,
        batch.alibi_slopes,
        score_scale,
        softcap,
        batch.v_scale,
        *batch.reach,
        total_q,
        num_blocks,
        batch.block_table.shape[1],
        row_tiles,
        settings.num_splits,
        *batch.q.stride()[:2],
        batch.block_table.stride(0),
        *batch.k_cache.stride()[:3],
        *batch.v_cache.stride()[:3],
        *k_new.stride()[:2],
        *v_new.stride()[:2],
        NUM_KV_HEADS=num_kv_heads,
        GROUP=batch.group,
        HEAD_DIM=head_dim,
        HEAD_DIM_V=head_dim_v,
        BLOCK_SIZE=block_size,
        QUERY_LEN=batch.query_len or 0,
        APPEND=batch.k_new is not None,
        SOFTCAP=batch.softcap is not None,
        SINKS=batch.sinks is not None,
        ALIBI=batch.alibi_slopes is not None,
        TILE_ROWS=tile.rows,
        TILE_KEYS=tile.keys,
        TILE_NEW=min(APPEND_TILE, next_power_of_2(batch.max_seqlen_q)),
        PAD_DIM=max(16, next_power_of_2(head_dim)),
        PAD_DIM_V=max(16, next_power_of_2(head_dim_v)),
        DOT_DTYPE=_dot_dtype(batch.q),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        maxnreg=tile.max_registers,
    )


def _score_scale(batch: PagedBatch) -> tuple[float, float]:
    """The factor that the kernel multiplies q·k with, and the cap in base 2 (see `attention_kernel`)."""
    scale = batch.softmax_scale * batch.k_scale * LOG2E
    if batch.softcap is None:
        return scale, 0.0
    return 2 * scale / batch.softcap, batch.softcap * LOG2E


def _dot_dtype(q: torch.Tensor) -> Any:
    """The dtype of the operands of products: that of `q`, but fp32 where Triton's interpreter runs the kernel.

    NumPy, which the interpreter calculates with, has no bfloat16.
    """
    return DOT_DTYPES.get(q.dtype, tl.bfloat16) if q.is_cuda else tl.float32
