"""`flash-attn-3`: FlashAttention-3 for Hopper (module `flash_attn_interface`), all three paths; and `fa3-fwd`.

paged-varlen is `flash_attn_with_kvcache` with `cu_seqlens_q`. The number of splits is always passed, since the
library's own default is 1 in its varlen function and automatic in the other. What a build left out is read from the
flags that it carries, not found by failing.
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
    HOPPER_FP8_SCORE,
    Capabilities,
    LibraryBackend,
    accepted,
    named,
    parameters,
)
from pagedbench.backends.loading import Library, load
from pagedbench.tensors.call import Call, CallSpec
from pagedbench.words import AttnPath

_HEAD_DIMS = (64, 96, 128, 192, 256)


class FlashAttention3Backend(LibraryBackend):
    """FlashAttention-3."""

    name = "flash-attn-3"
    about = "FlashAttention-3 (Hopper); any block size"
    lib = Library(
        title="flash-attn-3",
        modules=("flash_attn_interface", "flash_attn_3.flash_attn_interface"),
        distributions=("tokenspeed-fa3", "flash-attn-3", "flash_attn_3"),
        install="pip install 'pagedbench[flash-attn-3]'",
        capabilities=((8, 0), (9, 9)),
    )
    config_modules: tuple[str, ...] = ("flash_attn_config", "flash_attn_3.flash_attn_config")
    # Measured: NaN in V below a window reaches the output (0 * NaN in a partly masked tile); elsewhere nothing leaks.
    traits = Traits(
        lse_note="(num_heads, total_q), +inf for rows that see no key",
        nan_regions={"hidden.v": "may-leak"},
        tanh_error=HARDWARE_TANH,
        fp8_score_error=HOPPER_FP8_SCORE,
    )

    def capabilities(self, path: AttnPath) -> Capabilities:
        """From the build's flags and the function's signature."""
        flags, function = self._flags(), self._function(path)
        compiled = [dim for dim in _HEAD_DIMS if not flags.get(f"FLASHATTENTION_DISABLE_HDIM{dim}", False)]
        fp8 = not flags.get("FLASHATTENTION_DISABLE_FP8", False)
        return Capabilities(
            dtypes=("bfloat16",) if flags.get("FLASHATTENTION_DISABLE_FP16") else ("float16", "bfloat16"),
            fp8="all" if fp8 and "k_descale" in parameters(function) else "no",
            max_head_dim=max(compiled, default=0),
            head_dim_v=True,
            max_head_dim_v=512,
            window=not flags.get("FLASHATTENTION_DISABLE_LOCAL", False),
            softcap=not flags.get("FLASHATTENTION_DISABLE_SOFTCAP", False),
            sinks=_sink_name(function) is not None,
            bf16_sinks=True,
            splits=not flags.get("FLASHATTENTION_DISABLE_SPLIT", False),
        )

    def particular(self, spec: CallSpec) -> Iterator[str]:
        """What was left out of the build at hand, and unequal head dims, of which two kinds exist."""
        flags = self._flags()
        paged = spec.path is not AttnPath.VARLEN
        if paged and flags.get("FLASHATTENTION_DISABLE_PAGEDKV"):
            yield f"this build of {self.title} has no paged KV (FLASHATTENTION_DISABLE_PAGEDKV): varlen only"
        if paged and spec.append and flags.get("FLASHATTENTION_DISABLE_APPENDKV"):
            yield f"this build of {self.title} has no append (FLASHATTENTION_DISABLE_APPENDKV)"
        if flags.get("FLASHATTENTION_DISABLE_VARLEN") and spec.path is not AttnPath.DECODE:
            yield f"this build of {self.title} has no varlen (FLASHATTENTION_DISABLE_VARLEN)"
        if spec.kv_dtype.startswith("float8") and spec.head_dim % 16:
            yield f"head_dim {spec.head_dim} in fp8: {self.title} needs a multiple of 16"
        if spec.q_dtype.startswith("float8") and spec.out_dtype != "bfloat16":
            yield f"an output in {spec.out_dtype} beside q in fp8: {self.title} gives bfloat16"
        if spec.head_dim_v != spec.head_dim and not _has_unequal(flags, spec):
            yield f"head_dim_v {spec.head_dim_v} beside head_dim {spec.head_dim}: not in this build of {self.title}"

    def traits_for(self, path: AttnPath) -> Traits:
        """Through a table the library knows no longest sequence: it cuts splits from the columns times the block
        size."""
        return replace(self.traits, splits_from_capacity=path is not AttnPath.VARLEN)

    def _flags(self) -> dict[str, bool]:
        """The build's flags; none if it carries none, and then nothing is known to be missing."""
        config = getattr(load(self.config_modules).module, "CONFIG", {})
        flags: dict[str, bool] = config.get("build_flags", {})
        return flags

    def _function(self, path: AttnPath) -> Any:
        module = self.lib.module()
        return module.flash_attn_varlen_func if path is AttnPath.VARLEN else module.flash_attn_with_kvcache

    def plan(self, call: Call) -> dict[str, torch.Tensor]:
        """The tensors that the library wants and a scenario has as numbers: scales of fp8, sinks in bfloat16."""
        function = self._function(call.spec.path)
        made: dict[str, torch.Tensor] = {}
        if call.spec.kv_dtype.startswith("float8"):
            shape = (call.spec.batch, call.spec.num_kv_heads)
            for name, scale in (("q", 1.0), ("k", call.k_scale), ("v", call.v_scale)):
                made[f"{name}_descale"] = torch.full(shape, scale, dtype=torch.float32, device=call.q.device)
        if call.sinks is not None:
            made[_sink_name(function) or "sinks"] = call.sinks.to(torch.bfloat16).contiguous()
        return made

    def varlen(self, call: Call, plan: dict[str, torch.Tensor]) -> Output:
        """`flash_attn_varlen_func` on contiguous keys."""
        function = self._function(AttnPath.VARLEN)
        returns = named(function, "return_attn_probs", "return_softmax_lse")
        result = function(
            call.q,
            call.k,
            call.v,
            cu_seqlens_q=call.cu_seqlens_q,
            cu_seqlens_k=call.cu_seqlens_k,
            max_seqlen_q=call.max_seqlen_q,
            max_seqlen_k=call.max_seqlen_k,
            **({returns: True} if returns else {}),
            **_common(function, call),
            **plan,
        )
        return _output(result, call)

    def decode(self, call: Call, plan: dict[str, torch.Tensor]) -> Output:
        """`flash_attn_with_kvcache`, batched queries."""
        return self._kvcache(call, call.q_batched, {"k": call.k_new_batched, "v": call.v_new_batched}, plan)

    def paged_varlen(self, call: Call, plan: dict[str, torch.Tensor]) -> Output:
        """`flash_attn_with_kvcache`, ragged queries and ragged new tokens."""
        ragged: dict[str, Any] = {"cu_seqlens_q": call.cu_seqlens_q, "max_seqlen_q": call.max_seqlen_q}
        if call.k_new is not None:
            ragged |= {"k": call.k_new, "v": call.v_new, "cu_seqlens_k_new": call.cu_seqlens_q}
        return self._kvcache(call, call.q, ragged, plan)

    def _kvcache(self, call: Call, q: torch.Tensor, tokens: dict[str, Any], plan: dict[str, torch.Tensor]) -> Output:
        function = self._function(AttnPath.DECODE)
        result = function(
            q,
            call.k_cache,
            call.v_cache,
            cache_seqlens=call.total_seqlens if call.k_new is None else call.cache_seqlens,
            return_softmax_lse=True,
            **{named(function, "page_table", "block_table") or "page_table": call.block_table},
            **tokens,
            **_common(function, call),
            **plan,
        )
        return _output(result, call)


class Fa3FwdBackend(FlashAttention3Backend):
    """A forward-only build of FlashAttention-3 without paged KV: varlen only, and the other paths with that reason."""

    name = "fa3-fwd"
    about = "a forward-only build of FlashAttention-3, without paged KV"
    lib = Library(
        title="fa3-fwd",
        modules=("fa3_fwd_interface",),
        distributions=("fa3-fwd", "fa3_fwd"),
        install="pip install fa3-fwd",
        capabilities=((8, 0), (9, 9)),
    )
    config_modules = ("fa3_fwd_config",)


def _sink_name(function: Any) -> str | None:
    return named(function, "sinks", "s_aux", "learnable_sink")


def _has_unequal(flags: dict[str, bool], spec: CallSpec) -> bool:
    """The two shapes with unequal head dims that the library has kernels for, where they were built."""
    if 128 < spec.head_dim <= 192 and 96 < spec.head_dim_v <= 128:
        return not flags.get("FLASH_ATTENTION_DISABLE_HDIMDIFF192", False)
    if spec.head_dim <= 64 and spec.head_dim_v <= 512:
        return not flags.get("FLASH_ATTENTION_DISABLE_HDIMDIFF64", False)
    return False


def _common(function: Any, call: Call) -> dict[str, Any]:
    spec = call.spec
    values = {
        "softmax_scale": spec.softmax_scale,
        "causal": spec.causal,
        "window_size": kernel_window(call.spec),
        "softcap": spec.softcap or 0.0,
        "num_splits": spec.num_splits,
    }
    return accepted(function, values)


def _output(result: Any, call: Call) -> Output:
    out, lse = (result[0], result[1]) if isinstance(result, tuple) else (result, None)
    out = out.reshape(call.spec.total_q, call.spec.num_heads, call.spec.head_dim_v)
    if lse is None:
        return Output(out)
    return Output(out, lambda: lse_forms.empty_rows(lse_forms.from_heads_first(lse, call), call))
