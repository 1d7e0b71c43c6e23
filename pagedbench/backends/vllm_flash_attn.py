"""`vllm-flash-attn`: vLLM's fork of FlashAttention, where vLLM is installed; decode and paged-varlen.

Both paths are its `flash_attn_varlen_func` with a block table, which is how vLLM itself decodes; the tool appends.
Written to the function's signature; no measurement stands behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from pagedbench.backends import lse as lse_forms
from pagedbench.backends.base import Availability, Output, Traits
from pagedbench.backends.indices import kernel_window
from pagedbench.backends.library import (
    HARDWARE_TANH,
    HOPPER_FP8_SCORE,
    Capabilities,
    LibraryBackend,
    accepted,
    compute_capability,
    parameters,
    reshapes_by_sequence,
)
from pagedbench.backends.loading import Library
from pagedbench.tensors.call import Call, CallSpec
from pagedbench.words import AttnPath


class VllmFlashAttentionBackend(LibraryBackend):
    """vLLM's FlashAttention-2 and -3."""

    name = "vllm-flash-attn"
    about = "vLLM's fork of FlashAttention, by its signature; the tool appends"
    lib = Library(
        title="vllm-flash-attn",
        modules=("vllm.vllm_flash_attn.flash_attn_interface", "vllm.vllm_flash_attn", "vllm_flash_attn"),
        distributions=("vllm", "vllm-flash-attn"),
        install="pip install vllm",
        capabilities=((8, 0), (99, 9)),
    )
    traits = Traits(
        appends=False,
        lse_note="(num_heads, total_q), +inf for rows that see no key",
        nan_regions={"hidden.v": "may-leak"},
        tanh_error=HARDWARE_TANH,
        alibi_from_start=True,
        fp8_score_error=HOPPER_FP8_SCORE,
        splits_from_capacity=True,
    )

    def available(self, device: str) -> Availability:
        """Listed as not measured."""
        return replace(super().available(device), note="not measured: written to its signature")

    def capabilities(self, path: AttnPath) -> Capabilities:
        """FlashAttention-3 has sinks, splits and fp8, FlashAttention-2 ALiBi; blocks are multiples of 16."""
        third = self._version() == 3
        names = parameters(self._function())
        return Capabilities(
            block_step=16,
            fp8="all" if third and "k_descale" in names else "no",
            sinks=third and "s_aux" in names,
            bf16_sinks=True,
            alibi=not third and "alibi_slopes" in names,
            splits=third and "num_splits" in names,
        )

    def particular(self, spec: CallSpec) -> Iterator[str]:
        """The reshape of FlashAttention-2, as in `flash-attn`."""
        if self._version() == 2:
            yield from reshapes_by_sequence(spec, self.title)

    def _function(self) -> Any:
        return self.lib.module().flash_attn_varlen_func

    def _version(self) -> int:
        """FlashAttention-3 on Hopper, where this build has it."""
        supported = getattr(self.lib.module(), "is_fa_version_supported", None)
        return 3 if compute_capability()[0] == 9 and supported is not None and supported(3) else 2

    def plan(self, call: Call) -> dict[str, torch.Tensor]:
        """The tensors that the library wants and a scenario has as numbers."""
        made: dict[str, torch.Tensor] = {}
        if call.spec.kv_dtype.startswith("float8"):
            shape = (call.spec.batch, call.spec.num_kv_heads)
            for name, scale in (("q", 1.0), ("k", call.k_scale), ("v", call.v_scale)):
                made[f"{name}_descale"] = torch.full(shape, scale, dtype=torch.float32, device=call.q.device)
        if call.sinks is not None:
            made["s_aux"] = call.sinks.to(torch.bfloat16).contiguous()
        return made

    def decode(self, call: Call, plan: dict[str, torch.Tensor]) -> Output:
        """Decode is varlen with equal query lengths."""
        return self.paged_varlen(call, plan)

    def paged_varlen(self, call: Call, plan: dict[str, torch.Tensor]) -> Output:
        """`flash_attn_varlen_func` with a block table."""
        function, spec = self._function(), call.spec
        optional = {
            "softcap": spec.softcap or 0.0,
            "alibi_slopes": None if call.alibi_slopes is None else call.alibi_slopes.float(),
            "num_splits": spec.num_splits,
            "fa_version": self._version(),
        }
        out, lse = function(
            q=call.q,
            k=call.k_cache,
            v=call.v_cache,
            max_seqlen_q=call.max_seqlen_q,
            cu_seqlens_q=call.cu_seqlens_q,
            max_seqlen_k=call.max_seqlen_k,
            seqused_k=call.total_seqlens,
            block_table=call.block_table,
            softmax_scale=spec.softmax_scale,
            causal=spec.causal,
            window_size=list(kernel_window(call.spec)),
            return_softmax_lse=True,
            **accepted(function, optional),
            **plan,
        )
        return Output(out, lambda: lse_forms.flash_attention_2(lse, call, call.max_seqlen_k))
