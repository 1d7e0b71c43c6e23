"""`flashinfer`, `flashinfer-fa3`, `flashinfer-cuda-cores`: FlashInfer's batch wrappers with three kinds of kernels.

FlashInfer takes lists of blocks instead of a block table, plans on the host (reported apart as plan), compiles a kernel
at a first call, and returns the LSE to base 2. It has no append in its attention: the tool writes the new tokens first.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from pagedbench.backends import lse as lse_forms
from pagedbench.backends.base import Output, Traits
from pagedbench.backends.indices import host_arrays
from pagedbench.backends.library import HARDWARE_TANH, Capabilities, LibraryBackend, accepted
from pagedbench.backends.loading import Library
from pagedbench.scenario.model import AUTO_SPLITS
from pagedbench.tensors.call import Call, CallSpec
from pagedbench.words import AttnPath

# Partial results of splits live here; FlashInfer's own examples take 128 MiB, which long prefills overflow.
WORKSPACE_BYTES = 384 << 20


def _library(lowest: tuple[int, int], highest: tuple[int, int]) -> Library:
    return Library(
        title="flashinfer",
        modules=("flashinfer",),
        distributions=("flashinfer-python",),
        install="pip install 'pagedbench[flashinfer]'",
        capabilities=(lowest, highest),
    )


@dataclass(frozen=True)
class BlockLists:
    """The blocks of each sequence as FlashInfer wants them, int32 on the host.

    `indptr` `(batch + 1,)`, `indices` `(indptr[-1],)`, `last_len` `(batch,)` keys in each sequence's last block.
    """

    indptr: torch.Tensor
    indices: torch.Tensor
    last_len: torch.Tensor

    @classmethod
    def of(cls, call: Call) -> BlockLists:
        """From the block table. Entries below a window may be rubbish, and a list must be legal: the sequence's first
        legal block stands in for them, since what a masked key holds may leak, and must not be another sequence's."""
        host, size = host_arrays(call), call.spec.block_size
        blocks = (host.total_seqlens + size - 1) // size
        indptr = torch.zeros(len(blocks) + 1, dtype=torch.int32)
        torch.cumsum(blocks, 0, out=indptr[1:])
        listed = torch.arange(host.block_table.shape[1])[None, :] < blocks[:, None]
        table = host.block_table.int()
        legal = (table >= 0) & (table < call.spec.num_blocks)
        first = (legal & listed).int().argmax(1, keepdim=True) if table.numel() else table.long()
        table = torch.where(legal, table, table.gather(1, first).clamp(0, call.spec.num_blocks - 1))
        last_len = (host.total_seqlens - (blocks - 1).clamp(min=0) * size).int()
        return cls(indptr, table[listed].contiguous(), last_len)


class FlashInferBackend(LibraryBackend):
    """FlashInfer's FlashAttention-2 kernels on tensor cores, for all paths."""

    name = "flashinfer"
    about = "FlashInfer, fa2 kernels on tensor cores; the tool appends"
    lib = _library((7, 5), (99, 9))
    kernels = "fa2"
    # Below a window a tile is masked in part, and a weight of zero times NaN in V is NaN. The fa2 kernels add up their
    # weights on the tensor cores, after they were rounded for the product with V. Their workspace for the results of
    # splits has the output's dtype.
    traits = Traits(
        appends=False,
        lse_note="(total_q, num_heads), base 2, about -50,000 for rows that see no key",
        nan_regions={"hidden.v": "may-leak"},
        tanh_error=HARDWARE_TANH,
        sum_of_rounded_weights=True,
        rounded_partials=True,
        compile_seconds=180.0,
        graph_lengths=False,
        graph_table=False,
    )

    def __init__(self) -> None:
        self._wrappers: dict[int, tuple[weakref.ref[Call], Any]] = {}
        self._workspaces: dict[torch.device, torch.Tensor] = {}

    def capabilities(self, path: AttnPath) -> Capabilities:
        """What the compiled kernels exist for. A window has only a left side; ALiBi slopes cannot be given; sinks are
        an argument that these kernels ignore."""
        return Capabilities(
            fp8="kv" if path is not AttnPath.VARLEN else "no",
            head_dims=(64, 128, 256),
            look_ahead=False,
            same_strides=True,
        )

    def particular(self, spec: CallSpec) -> Iterator[str]:
        """The number of splits can only be limited to 1."""
        if spec.num_splits not in {AUTO_SPLITS, 1}:
            yield f"num_splits {spec.num_splits}: {self.title} can split by its own choice or not at all (auto or 1)"

    def plan(self, call: Call) -> Any:
        """Plan on the host; returns the wrapper to run."""
        if call.spec.path is AttnPath.VARLEN:
            return self._plan_ragged(call)
        if call.spec.path is AttnPath.DECODE and call.spec.query_len == 1:
            return self._plan_decode(call)
        return self._plan_paged(call)

    def varlen(self, call: Call, plan: Any) -> Output:
        """The ragged prefill wrapper."""
        return _output(plan.run(call.q, call.k, call.v, return_lse=True))

    def decode(self, call: Call, plan: Any) -> Output:
        """The decode wrapper for one query token a sequence, the paged prefill wrapper for more."""
        return self.paged_varlen(call, plan)

    def paged_varlen(self, call: Call, plan: Any) -> Output:
        """The paged prefill wrapper."""
        pools = (call.k_cache, call.v_cache)
        if call.spec.kv_order == "HND":
            pools = (call.k_cache.transpose(1, 2), call.v_cache.transpose(1, 2))
        scales = {"k_scale": call.k_scale, "v_scale": call.v_scale} if call.spec.kv_dtype.startswith("float8") else {}
        return _output(plan.run(call.q, pools, return_lse=True, **scales))

    def _plan_ragged(self, call: Call) -> Any:
        host, spec = host_arrays(call), call.spec
        wrapper = self._wrapper(call, "BatchPrefillWithRaggedKVCacheWrapper", backend=self.kernels)
        wrapper.plan(
            host.cu_seqlens_q,
            host.cu_seqlens_k,
            spec.num_heads,
            spec.num_kv_heads,
            spec.head_dim,
            head_dim_vo=spec.head_dim_v,
            causal=spec.causal,
            **self._attention(wrapper, call),
        )
        return wrapper

    def _plan_paged(self, call: Call) -> Any:
        lists, spec = BlockLists.of(call), call.spec
        wrapper = self._wrapper(call, "BatchPrefillWithPagedKVCacheWrapper", backend=self.kernels)
        wrapper.plan(
            host_arrays(call).cu_seqlens_q,
            lists.indptr,
            lists.indices,
            lists.last_len,
            spec.num_heads,
            spec.num_kv_heads,
            spec.head_dim,
            spec.block_size,
            causal=spec.causal,
            **self._attention(wrapper, call),
        )
        return wrapper

    def _plan_decode(self, call: Call) -> Any:
        return self._plan_decode_with(call, use_tensor_cores=True, backend=self.kernels)

    def _plan_decode_with(self, call: Call, **options: Any) -> Any:
        lists, spec = BlockLists.of(call), call.spec
        wrapper = self._wrapper(call, "BatchDecodeWithPagedKVCacheWrapper", **options)
        wrapper.plan(
            lists.indptr,
            lists.indices,
            lists.last_len,
            spec.num_heads,
            spec.num_kv_heads,
            spec.head_dim,
            spec.block_size,
            **self._attention(wrapper, call),
        )
        return wrapper

    def _attention(self, wrapper: Any, call: Call) -> dict[str, Any]:
        """The keywords that all plans share, as far as this version and wrapper have them."""
        spec = call.spec
        values: dict[str, Any] = {
            "window_left": spec.window_size[0],
            "logits_soft_cap": spec.softcap or 0.0,
            "sm_scale": spec.softmax_scale,
            "q_data_type": getattr(torch, spec.q_dtype),
            "kv_data_type": getattr(torch, spec.kv_dtype),
            "o_data_type": getattr(torch, spec.out_dtype),
        }
        if spec.num_splits == 1:
            values["disable_split_kv"] = True
        return accepted(wrapper.plan, values)

    def _wrapper(self, call: Call, kind: str, **options: Any) -> Any:
        """A wrapper for this call, made once: planning again is then only planning. Plans of other calls stay valid."""
        known = self._wrappers.get(id(call))
        if known is not None and known[0]() is call:
            return known[1]
        self._wrappers = {key: entry for key, entry in self._wrappers.items() if entry[0]() is not None}
        make = getattr(self.lib.module(), kind)
        order = call.spec.kv_order if call.spec.path is not AttnPath.VARLEN else "NHD"
        wrapper = make(self._workspace(call.q.device), order, **options)
        self._wrappers[id(call)] = (weakref.ref(call), wrapper)
        return wrapper

    def _workspace(self, device: torch.device) -> torch.Tensor:
        """One for all wrappers of a device: calls on one stream do not overlap."""
        if device not in self._workspaces:
            self._workspaces[device] = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        return self._workspaces[device]


class FlashInferFa3Backend(FlashInferBackend):
    """FlashInfer's FlashAttention-3 kernels, for Hopper; decode goes through its prefill wrapper."""

    name = "flashinfer-fa3"
    about = "FlashInfer, fa3 kernels (Hopper); the tool appends"
    lib = _library((9, 0), (9, 0))
    kernels = "fa3"
    traits = replace(FlashInferBackend.traits, sum_of_rounded_weights=False)

    def capabilities(self, path: AttnPath) -> Capabilities:
        """No choice of splits, and fp8 only with q in fp8, which is not driven here."""
        return replace(super().capabilities(path), fp8="no", splits=False)

    def particular(self, spec: CallSpec) -> Iterator[str]:
        """Masked scores are -50,000 and not infinite, and these kernels divide by the sum of their weights all the
        same: a row that sees no key is the mean of the masked V. Sequences without any key are not computed, and 0."""
        if spec.has_blind_rows and spec.max_seqlen_q > 1:
            yield f"query tokens that see no key: the fa3 kernels of {self.title} give them the mean of V, not zeros"

    def _plan_decode(self, call: Call) -> Any:
        return self._plan_paged(call)


class FlashInferCudaCoresBackend(FlashInferBackend):
    """FlashInfer's decode kernel without tensor cores."""

    name = "flashinfer-cuda-cores"
    about = "FlashInfer's decode without tensor cores; the tool appends"
    GROUPS = (1, 2, 3, 4, 8)
    traits = replace(FlashInferBackend.traits, sum_of_rounded_weights=False)

    @property
    def paths(self) -> tuple[AttnPath, ...]:
        """Only decode is different from `flashinfer`."""
        return (AttnPath.DECODE,)

    def capabilities(self, path: AttnPath) -> Capabilities:
        """One query token a sequence; no choice of splits."""
        return replace(super().capabilities(path), max_query_len=1, splits=False)

    def particular(self, spec: CallSpec) -> Iterator[str]:
        """Its kernel exists for some numbers of query heads a KV head."""
        if spec.group_size not in self.GROUPS:
            groups = ", ".join(map(str, self.GROUPS))
            yield f"{spec.group_size} query heads a KV head: {self.title} without tensor cores takes {groups}"

    def _plan_decode(self, call: Call) -> Any:
        return self._plan_decode_with(call, use_tensor_cores=False)


def _output(result: tuple[torch.Tensor, torch.Tensor]) -> Output:
    out, lse = result
    return Output(out, lambda: lse_forms.flashinfer(lse))
