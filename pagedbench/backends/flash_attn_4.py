"""`flash-attn-4`: FlashAttention-4 (`flash_attn.cute`), varlen and paged-varlen, compiled at a first call.

It has no append: on paged-varlen the tool writes the new tokens first. In its windows None means unlimited. Its number
of splits defaults to 1 where 0 lets it choose, so it is always passed; but only its Blackwell kernels can split, and
elsewhere its own choice of more than one ends in an assertion, so that it is 1 there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from pagedbench.backends import lse as lse_forms
from pagedbench.backends.base import Availability, Output, Traits
from pagedbench.backends.library import (
    HARDWARE_TANH,
    Capabilities,
    LibraryBackend,
    accepted,
    compute_capability,
    named,
    parameters,
)
from pagedbench.backends.loading import Library
from pagedbench.scenario.model import UNLIMITED
from pagedbench.tensors.call import Call, CallSpec
from pagedbench.words import AttnPath

SPLITTING = {10, 11}  # compute capabilities (major) whose kernels can split keys
WITHOUT_BLOCK_TABLE = {8, 12}
CUBIC_EXP = 2.0**-13  # relative error of the polynomial for some exponentials on Blackwell (`ex2_emulation_2`)
HOPPER_SHARED_KB = 227  # of shared memory a block of threads may have


class FlashAttention4Backend(LibraryBackend):
    """FlashAttention-4."""

    name = "flash-attn-4"
    about = "FlashAttention-4 (CuTe DSL), compiled at a first call; the tool appends"
    lib = Library(
        title="flash-attn-4",
        modules=("flash_attn.cute.interface", "flash_attn.cute"),
        distributions=("flash-attn-4", "flash_attn_4"),
        install="pip install 'pagedbench[flash-attn-4]'",
        capabilities=((8, 0), (12, 9)),
    )
    # Its documentation: where blocks are loaded by TMA, the unused rows of a last block must be finite in V. Below a
    # window a tile is masked in part, and a weight of zero times NaN in V is NaN, as in FlashAttention-2 and -3.
    traits = Traits(
        appends=False,
        lse_note="(num_heads, total_q)",
        nan_regions={"tail.v": "may-leak", "hidden.v": "may-leak"},
        tanh_error=HARDWARE_TANH,
        compile_seconds=60.0,
    )

    def available(self, device: str) -> Availability:
        """FlashAttention-2 ships an early `flash_attn.cute` of its own, which is not FlashAttention-4."""
        found = super().available(device)
        if found.available and "num_splits" not in parameters(self._function()):
            reason = f"flash_attn.cute here is the early one that flash-attn 2 ships: {self.lib.install}"
            return Availability(False, found.version, reason)
        return found

    def capabilities(self, path: AttnPath) -> Capabilities:
        """As its interface validates head dims."""
        names = parameters(self._function())
        return Capabilities(
            head_dim_v=True,
            softcap="softcap" in names,
            sinks=named(self._function(), "learnable_sink", "sinks", "s_aux") is not None,
            splits="num_splits" in names,
        )

    def traits_for(self, path: AttnPath) -> Traits:
        """On Blackwell some exponentials are polynomials."""
        return replace(self.traits, exp_error=CUBIC_EXP if compute_capability()[0] in SPLITTING else 0.0)

    def particular(self, spec: CallSpec) -> Iterator[str]:
        """What it has for some GPUs only: splits, a block table, head dims."""
        major, dims = compute_capability()[0], (spec.head_dim, spec.head_dim_v)
        if spec.num_splits > 1 and major not in SPLITTING:
            yield f"num_splits {spec.num_splits}: {self.title} splits keys on Blackwell only; use auto or 1 here"
        if spec.path is AttnPath.PAGED_VARLEN and major in WITHOUT_BLOCK_TABLE:
            yield f"a block table: {self.title} has no paged kernel for compute capability {major}.x, varlen only"
        if major in {10, 11} and max(dims) > 128 and dims not in {(192, 128), (256, 256)}:
            yield f"head dims {dims}: {self.title} takes up to 128, (192, 128) and (256, 256) on Blackwell"
        shared = _hopper_shared_kb(spec)
        if major == 9 and shared > HOPPER_SHARED_KB:
            short = f"needs {shared} KB of shared memory, of {HOPPER_SHARED_KB} here"
            yield f"head dims {dims}: {self.title}'s tile {short}"
        tile = _tile_keys(spec, major)
        if spec.path is AttnPath.PAGED_VARLEN and spec.block_size != tile and any(dim % 16 for dim in dims):
            odd = next(dim for dim in dims if dim % 16)
            yield (
                f"head dim {odd} in blocks of {spec.block_size}: {self.title} needs a multiple of 16,"
                f" or blocks of {tile} keys, its tile here"
            )

    def _function(self) -> Any:
        return getattr(self.lib.module(), "flash_attn_varlen_func", None)

    def plan(self, call: Call) -> int:
        """The number of splits to pass."""
        return call.spec.num_splits if compute_capability()[0] in SPLITTING else 1

    def varlen(self, call: Call, plan: int) -> Output:
        """Contiguous keys."""
        lengths = {"cu_seqlens_k": call.cu_seqlens_k, "num_splits": plan}
        return self._call(call, call.k, call.v, lengths)

    def paged_varlen(self, call: Call, plan: int) -> Output:
        """Keys through the block table."""
        table = named(self._function(), "page_table", "block_table") or "page_table"
        lengths = {"seqused_k": call.total_seqlens, table: call.block_table, "num_splits": plan}
        return self._call(call, call.k_cache, call.v_cache, lengths)

    def _call(self, call: Call, k: torch.Tensor | None, v: torch.Tensor | None, lengths: dict[str, Any]) -> Output:
        function, spec = self._function(), call.spec
        left, right = (None if side == UNLIMITED else side for side in spec.window_size)
        optional: dict[str, Any] = {
            "max_seqlen_q": call.max_seqlen_q,
            "max_seqlen_k": call.max_seqlen_k,
            "softcap": spec.softcap or 0.0,
            "return_lse": True,
        }
        if call.sinks is not None:
            optional[named(function, "learnable_sink", "sinks", "s_aux") or "learnable_sink"] = call.sinks
        result = function(
            call.q,
            k,
            v,
            cu_seqlens_q=call.cu_seqlens_q,
            softmax_scale=spec.softmax_scale,
            causal=spec.causal,
            window_size=(left, 0 if spec.causal and left is not None else right),
            **lengths,
            **accepted(function, optional),
        )
        out, lse = (result[0], result[1]) if isinstance(result, tuple) else (result, None)
        return Output(out, None if lse is None else lambda: lse_forms.from_heads_first(lse, call))


def _tile_keys(spec: CallSpec, major: int) -> int:
    """Keys in a tile of its forward kernel on Hopper (`_tile_size_fwd_sm90` of 4.0.0b36) or Blackwell.

    Blocks of this size are loaded by TMA; others row by row, which has no code for a partly used head dim.
    """
    if major != 9:
        return 128
    left, right = spec.window_size
    local = left != UNLIMITED or (not spec.causal and right not in (UNLIMITED, 0))
    if spec.head_dim <= 128:
        full = not (local or spec.causal or right == 0)
        return 144 if full and 64 < spec.head_dim <= 96 else 128
    if spec.head_dim <= 192:
        return 96 if local else 128 if spec.head_dim_v <= 128 else 112
    return 64 if local else 80


def _hopper_shared_kb(spec: CallSpec) -> int:
    """KB of shared memory of the same kernel in 16 bits: a tile of queries, two of K and V each, and where weights do
    not stay in registers, those. It chooses its tile by the head dim of K; a wide V may not fit beside it, and then the
    launch fails with «CUDA Error Code: 1»."""
    keys, rows = _tile_keys(spec, 9), 192 if spec.head_dim <= 96 else 128
    dim, dim_v = (-(-width // 16) * 16 for width in (spec.head_dim, spec.head_dim_v))
    weights = rows * keys if 64 < spec.head_dim <= 96 else 0
    return 2 * (rows * dim + 2 * keys * (dim + dim_v) + weights) // 1024
