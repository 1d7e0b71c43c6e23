"""`torch-varlen`: `torch.nn.attention.varlen`, built into torch (FlashAttention-2 on a GPU).

The embedded GPU choice for varlen. From torch 2.13 on it reads through a block table, too; the tool appends. Arguments
came one by one over the versions, so the signature decides what is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from pagedbench.backends import lse as lse_forms
from pagedbench.backends.base import Output, Traits
from pagedbench.backends.indices import kernel_window
from pagedbench.backends.library import Capabilities, LibraryBackend, parameters, reshapes_by_sequence
from pagedbench.backends.loading import Library
from pagedbench.scenario.model import AUTO_SPLITS
from pagedbench.tensors.call import Call, CallSpec
from pagedbench.words import AttnPath


class TorchVarlenBackend(LibraryBackend):
    """torch's own varlen attention."""

    name = "torch-varlen"
    about = "torch.nn.attention.varlen, built into torch; the tool appends"
    lib = Library(
        title="torch-varlen",
        modules=("torch.nn.attention.varlen",),
        distributions=("torch",),
        install="pip install 'torch>=2.10'",
        capabilities=((8, 0), (99, 9)),
    )
    # Below a window a tile is masked in part, and a weight of zero times NaN in V is NaN.
    traits = Traits(
        appends=False,
        lse_note="(num_heads, total_q), +inf for rows that see no key",
        nan_regions={"hidden.v": "may-leak"},
    )

    def capabilities(self, path: AttnPath) -> Capabilities:
        """As the signature of `varlen_attn` says; its paged kernels take blocks in multiples of 256."""
        names = parameters(self._function())
        return Capabilities(
            block_step=256,
            window="window_size" in names,
            look_ahead="window_size" in names,
            softcap=False,
            splits="num_splits" in names,
        )

    def particular(self, spec: CallSpec) -> Iterator[str]:
        """What older versions lack, and the reshape of FlashAttention-2 beneath it."""
        names = parameters(self._function())
        if spec.path is AttnPath.PAGED_VARLEN and not {"block_table", "seqused_k"} <= names:
            yield f"{self.title} has no block_table in varlen_attn: torch 2.13 or later is needed"
        if spec.softmax_scale != spec.head_dim**-0.5 and "scale" not in names:
            yield f"{self.title} has no scale in varlen_attn: a later torch is needed"
        yield from reshapes_by_sequence(spec, self.title)

    def _function(self) -> Any:
        return self.lib.module().varlen_attn

    def varlen(self, call: Call, plan: Any) -> Output:
        """Contiguous keys."""
        return self._call(call, call.k, call.v, call.cu_seqlens_k, {})

    def paged_varlen(self, call: Call, plan: Any) -> Output:
        """Keys through the block table."""
        paged = {"seqused_k": call.total_seqlens, "block_table": call.block_table}
        return self._call(call, call.k_cache, call.v_cache, None, paged)

    def _call(
        self,
        call: Call,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        cu_seqlens_k: torch.Tensor | None,
        paged: dict[str, Any],
    ) -> Output:
        function, spec = self._function(), call.spec
        names = parameters(function)
        optional: dict[str, Any] = {"scale": spec.softmax_scale, "enable_gqa": spec.group_size > 1}
        if spec.num_splits != AUTO_SPLITS:
            optional["num_splits"] = spec.num_splits
        if "window_size" in names:
            # Causal without a window is (-1, 0) here.
            optional["window_size"] = (-1, 0) if spec.causal and not spec.windowed else kernel_window(spec)
        if "is_causal" in names:
            optional["is_causal"] = spec.causal
        if "return_aux" in names:
            optional["return_aux"] = self.lib.module().AuxRequest(lse=True)
        result = function(
            call.q,
            k,
            v,
            call.cu_seqlens_q,
            cu_seqlens_k,
            call.max_seqlen_q,
            call.max_seqlen_k,
            **{name: value for name, value in optional.items() if name in names},
            **paged,
        )
        if not isinstance(result, tuple):
            return Output(result)
        return Output(result[0], lambda: lse_forms.empty_rows(lse_forms.from_heads_first(result[1], call), call))
