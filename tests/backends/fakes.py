"""Stand-ins for libraries that need a GPU: functions with the real signatures that note what they are called with.

The signatures are those of flash-attn 2.8.3, tokenspeed-fa3 3.0.0 (`sinks`), flash-attn-4 4.0.0b36, torch 2.11 and
2.13, vLLM's fork, and flashinfer 0.6.6. Each returns a known answer in the form in which the library returns it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import signature
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from .calls import Made


@dataclass
class Recorder:
    """The answer to give, and the arguments of the last call by name, defaults included."""

    made: Made
    seen: dict[str, Any] = field(default_factory=dict)

    def note(self, function: Callable[..., Any], values: dict[str, Any]) -> None:
        """Keep the arguments of a call."""
        assert set(values) == set(signature(function).parameters), "the fake itself is wrong"
        self.seen = values

    @property
    def out(self) -> torch.Tensor:
        return self.made.out.to(self.made.call.q.dtype)

    def lse(self, *, batched: bool) -> torch.Tensor:
        """Heads first, +inf for rows that see no key."""
        lse = self.made.lse.float()
        lse = torch.where(lse == -math.inf, math.inf, lse)
        if not batched:
            return lse.t().contiguous()
        spec = self.made.call.spec
        return lse.view(spec.batch, spec.query_len, spec.num_heads).transpose(1, 2)


def flash_attn_2(rec: Recorder) -> ModuleType:
    module = ModuleType("flash_attn.flash_attn_interface")

    def flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None,
        causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False,
        return_attn_probs=False, block_table=None,
    ):  # fmt: skip
        rec.note(flash_attn_varlen_func, {n: v for n, v in locals().items() if n in _names(flash_attn_varlen_func)})
        return (rec.out, rec.lse(batched=False), None) if return_attn_probs else rec.out

    def flash_attn_with_kvcache(
        q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None,
        cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, causal=False,
        window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0,
        return_softmax_lse=False,
    ):  # fmt: skip
        rec.note(flash_attn_with_kvcache, {n: v for n, v in locals().items() if n in _names(flash_attn_with_kvcache)})
        out = rec.out.view(q.shape)
        return (out, rec.lse(batched=True)) if return_softmax_lse else out

    module.flash_attn_varlen_func, module.flash_attn_with_kvcache = flash_attn_varlen_func, flash_attn_with_kvcache
    return module


def flash_attn_3(rec: Recorder) -> ModuleType:
    module = ModuleType("flash_attn_interface")

    def flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q=None, seqused_k=None,
        softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None, v_descale=None,
        window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False,
        sm_margin=0, return_attn_probs=False, sinks=None,
    ):  # fmt: skip
        rec.note(flash_attn_varlen_func, {n: v for n, v in locals().items() if n in _names(flash_attn_varlen_func)})
        return (rec.out, rec.lse(batched=False)) if return_attn_probs else rec.out

    def flash_attn_with_kvcache(
        q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None,
        cache_batch_idx=None, cache_leftpad=None, page_table=None, cu_seqlens_q=None, cu_seqlens_k_new=None,
        max_seqlen_q=None, rotary_seqlens=None, q_descale=None, k_descale=None, v_descale=None, softmax_scale=None,
        causal=False, window_size=(-1, -1), attention_chunk=0, softcap=0.0, rotary_interleaved=True,
        scheduler_metadata=None, num_splits=0, pack_gqa=None, sm_margin=0, return_softmax_lse=False, sinks=None,
    ):  # fmt: skip
        rec.note(flash_attn_with_kvcache, {n: v for n, v in locals().items() if n in _names(flash_attn_with_kvcache)})
        batched = cu_seqlens_q is None
        out = rec.out.view(*q.shape[:-1], -1) if batched else rec.out
        return (out, rec.lse(batched=batched), None, None) if return_softmax_lse else out

    module.flash_attn_varlen_func, module.flash_attn_with_kvcache = flash_attn_varlen_func, flash_attn_with_kvcache
    return module


def flash_attn_4(rec: Recorder) -> ModuleType:
    module = ModuleType("flash_attn.cute.interface")

    def flash_attn_varlen_func(
        q, k, v, qv=None, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None,
        min_seqlen_k=None, seqused_q=None, seqused_k=None, gather_kv_indices=None, page_table=None,
        softmax_scale=None, causal=False, window_size=(None, None), learnable_sink=None, softcap=0.0, num_splits=1,
        pack_gqa=None, deterministic=False, score_mod=None, return_lse=False,
    ):  # fmt: skip
        rec.note(flash_attn_varlen_func, {n: v for n, v in locals().items() if n in _names(flash_attn_varlen_func)})
        return rec.out, rec.made.lse.float().t().contiguous() if return_lse else None

    module.flash_attn_varlen_func = flash_attn_varlen_func
    return module


def torch_varlen(rec: Recorder, *, paged: bool) -> ModuleType:
    """torch 2.13 with `paged`, 2.11 without."""
    module = ModuleType("torch.nn.attention.varlen")

    def with_table(
        query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux=None, scale=None, window_size=(-1, -1),
        enable_gqa=False, seqused_k=None, block_table=None, num_splits=None,
    ):  # fmt: skip
        rec.note(with_table, {n: v for n, v in locals().items() if n in _names(with_table)})
        return rec.out, rec.lse(batched=False)

    def without_table(
        query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux=None, scale=None, window_size=(-1, -1)
    ):
        rec.note(without_table, {n: v for n, v in locals().items() if n in _names(without_table)})
        return rec.out, rec.lse(batched=False)

    module.varlen_attn = with_table if paged else without_table
    module.AuxRequest = SimpleNamespace
    return module


def vllm(rec: Recorder) -> ModuleType:
    module = ModuleType("vllm.vllm_flash_attn.flash_attn_interface")

    def flash_attn_varlen_func(
        q, k, v, max_seqlen_q, cu_seqlens_q, max_seqlen_k, cu_seqlens_k=None, seqused_k=None, q_v=None, dropout_p=0.0,
        softmax_scale=None, causal=False, window_size=None, softcap=0.0, alibi_slopes=None, deterministic=False,
        return_attn_probs=False, block_table=None, return_softmax_lse=False, out=None, scheduler_metadata=None,
        q_descale=None, k_descale=None, v_descale=None, num_splits=0, fa_version=2, s_aux=None,
    ):  # fmt: skip
        rec.note(flash_attn_varlen_func, {n: v for n, v in locals().items() if n in _names(flash_attn_varlen_func)})
        return rec.out, rec.lse(batched=False)

    module.flash_attn_varlen_func = flash_attn_varlen_func
    return module


def flashinfer_0_7(rec: Recorder) -> ModuleType:
    """Its decode plan takes keywords that its signature does not name."""
    module = flashinfer(rec)

    class Decode(module.BatchDecodeWithPagedKVCacheWrapper):
        def plan(
            self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, *positional, **kwargs
        ):
            rec.seen = {"kind": "decode", **kwargs}

    module.BatchDecodeWithPagedKVCacheWrapper = Decode
    return module


def flashinfer(rec: Recorder) -> ModuleType:
    module = ModuleType("flashinfer")
    base_2 = rec.made.lse.float() / math.log(2)
    base_2 = torch.where(base_2 == -math.inf, -5e4 + math.log2(1 + 16), base_2)  # its «infinity», and 16 masked keys

    class Paged:
        def __init__(self, float_workspace_buffer, kv_layout="NHD", use_cuda_graph=False, backend="auto"):
            self.layout, self.backend = kv_layout, backend

        def plan(
            self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads, num_kv_heads,
            head_dim_qk, page_size, head_dim_vo=None, causal=False, sm_scale=None, window_left=-1,
            logits_soft_cap=None, q_data_type="float16", kv_data_type=None, o_data_type=None, fixed_split_size=None,
            disable_split_kv=False,
        ):  # fmt: skip
            rec.seen = {"kind": "paged", "layout": self.layout, "backend": self.backend, **locals()}

        def run(self, q, paged_kv_cache, *, k_scale=None, v_scale=None, return_lse=False):
            rec.seen |= {"pools": paged_kv_cache, "k_scale": k_scale}
            return rec.out, base_2

    class Ragged(Paged):
        def plan(
            self, qo_indptr, kv_indptr, num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo=None, causal=False,
            window_left=-1, logits_soft_cap=None, sm_scale=None, q_data_type="float16", kv_data_type=None,
            o_data_type=None, disable_split_kv=False,
        ):  # fmt: skip
            rec.seen = {"kind": "ragged", "backend": self.backend, **locals()}

        def run(self, q, k, v, *, return_lse=False):
            rec.seen |= {"k": k, "v": v}
            return rec.out, base_2

    class Decode(Paged):
        def __init__(self, float_workspace_buffer, kv_layout="NHD", use_tensor_cores=False, backend="auto"):
            super().__init__(float_workspace_buffer, kv_layout, backend=backend)
            self.tensor_cores = use_tensor_cores

        def plan(
            self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, window_left=-1,
            logits_soft_cap=None, q_data_type="float16", kv_data_type=None, o_data_type=None, sm_scale=None,
            disable_split_kv=False,
        ):  # fmt: skip
            rec.seen = {"kind": "decode", "tensor_cores": self.tensor_cores, "layout": self.layout, **locals()}

    module.BatchPrefillWithPagedKVCacheWrapper = Paged
    module.BatchPrefillWithRaggedKVCacheWrapper = Ragged
    module.BatchDecodeWithPagedKVCacheWrapper = Decode
    return module


def _names(function: Callable[..., Any]) -> set[str]:
    return set(signature(function).parameters)
