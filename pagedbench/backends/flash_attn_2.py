"""`flash-attn`: FlashAttention-2 (`flash_attn` 2.x), all three paths.

Its paged functions take block sizes in multiples of 256. The varlen function has no append, so on paged-varlen the tool
writes the new tokens first; `flash_attn_with_kvcache` appends in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from pagedbench.backends import lse as lse_forms
from pagedbench.backends.base import Output, Traits
from pagedbench.backends.indices import kernel_window
from pagedbench.backends.library import (
    HARDWARE_TANH,
    Capabilities,
    LibraryBackend,
    accepted,
    named,
    parameters,
    reshapes_by_sequence,
)
from pagedbench.backends.loading import Library
from pagedbench.tensors.call import Call, CallSpec
from pagedbench.words import AttnPath


class FlashAttention2Backend(LibraryBackend):
    """FlashAttention-2."""

    name = "flash-attn"
    about = "FlashAttention-2; block sizes in multiples of 256"
    lib = Library(
        title="flash-attn",
        modules=("flash_attn.flash_attn_interface",),
        distributions=("flash-attn",),
        install="pip install flash-attn --no-build-isolation (builds from source against the installed torch)",
        capabilities=((8, 0), (99, 9)),
    )
    # Below a window a tile is masked in part, and a weight of zero times NaN in V is NaN.
    traits = Traits(
        lse_note="(num_heads, total_q), +inf for rows that see no key; with ALiBi shifted by slope * position",
        nan_regions={"hidden.v": "may-leak"},
        tanh_error=HARDWARE_TANH,
        alibi_from_start=True,
    )

    def capabilities(self, path: AttnPath) -> Capabilities:
        """As read from the functions' signatures; the limits of block sizes and head dims are in its C++."""
        function = self._function(path)
        return Capabilities(
            block_step=256,
            softcap="softcap" in parameters(function),
            alibi="alibi_slopes" in parameters(function),
            splits="num_splits" in parameters(function),
        )

    def particular(self, spec: CallSpec) -> Iterator[str]:
        """The varlen function's reshape, and versions without a block table."""
        if spec.path is not AttnPath.DECODE:
            yield from reshapes_by_sequence(spec, self.title)
        if spec.path is AttnPath.PAGED_VARLEN and "block_table" not in parameters(self._function(spec.path)):
            yield f"block_table: the varlen function of {self.title} has none; 2.5 or later is needed"

    def traits_for(self, path: AttnPath) -> Traits:
        """Only the kvcache function appends, and it cuts splits from the table's columns times the block size; the
        varlen function goes by `max_seqlen_k`."""
        decodes = path is AttnPath.DECODE
        return replace(self.traits, appends=decodes, splits_from_capacity=decodes)

    def _function(self, path: AttnPath) -> Any:
        module = self.lib.module()
        return module.flash_attn_with_kvcache if path is AttnPath.DECODE else module.flash_attn_varlen_func

    def varlen(self, call: Call, plan: Any) -> Output:
        """`flash_attn_varlen_func` on contiguous keys."""
        return self._varlen(call, call.k, call.v, {})

    def paged_varlen(self, call: Call, plan: Any) -> Output:
        """`flash_attn_varlen_func` with a block table."""
        return self._varlen(call, call.k_cache, call.v_cache, {"block_table": call.block_table})

    def _varlen(self, call: Call, k: torch.Tensor | None, v: torch.Tensor | None, paged: dict[str, Any]) -> Output:
        function = self._function(AttnPath.VARLEN)
        result = function(
            call.q,
            k,
            v,
            call.cu_seqlens_q,
            call.cu_seqlens_k,
            call.max_seqlen_q,
            call.max_seqlen_k,
            causal=call.spec.causal,
            return_attn_probs=True,
            **_common(function, call),
            **paged,
        )
        return _output(result, call, call.max_seqlen_k)

    def decode(self, call: Call, plan: Any) -> Output:
        """`flash_attn_with_kvcache`, which appends in place."""
        function = self._function(AttnPath.DECODE)
        lengths = call.total_seqlens if call.k_new is None else call.cache_seqlens
        result = function(
            call.q_batched,
            call.k_cache,
            call.v_cache,
            k=call.k_new_batched,
            v=call.v_new_batched,
            cache_seqlens=lengths,
            causal=call.spec.causal,
            return_softmax_lse=True,
            **{named(function, "block_table", "page_table") or "block_table": call.block_table},
            **_common(function, call),
        )
        return _output(result, call, call.block_table.shape[1] * call.spec.block_size)


def _common(function: Any, call: Call) -> dict[str, Any]:
    spec = call.spec
    values = {
        "softmax_scale": spec.softmax_scale,
        "window_size": kernel_window(call.spec),
        "softcap": spec.softcap or 0.0,
        "alibi_slopes": None if call.alibi_slopes is None else call.alibi_slopes.float(),
        "num_splits": spec.num_splits,
    }
    return accepted(function, values)


def _output(result: Any, call: Call, longest: int) -> Output:
    out, lse = result[0], result[1]
    shape = (call.spec.total_q, call.spec.num_heads, call.spec.head_dim_v)
    return Output(out.reshape(shape), lambda: lse_forms.flash_attention_2(lse, call, longest))
