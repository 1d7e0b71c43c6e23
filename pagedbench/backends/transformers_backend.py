"""`transformers`, `transformers-eager`: the continuous batching of `transformers`, with its own cache and functions.

The scenario is put before the library's own `PagedAttentionCache.update` and paged attention functions, over
pagedbench's pool, so that the system under the paged attention guide is itself under test. On a CPU it attends with
sdpa or eager, on varlen only; on a GPU `transformers` drives `flash-attn` on varlen and decode. The library's
scheduling and its allocation of blocks are not driven: placement is the scenario's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch

from pagedbench.backends.base import Availability, Output, Traits
from pagedbench.backends.indices import host_arrays
from pagedbench.backends.library import Capabilities, LibraryBackend, reshapes_by_sequence
from pagedbench.backends.loading import Library, load
from pagedbench.tensors.call import Call, CallSpec
from pagedbench.words import AttnPath

CONTINUOUS = "transformers.generation.continuous_batching"
FLASH_MODULES = ("flash_attn.flash_attn_interface",)
MIN_BLOCK_SIZE = 4
MASK_ELEMENTS = 1 << 28  # the library builds a dense mask of (total_q, total_k): beyond this it is no test any more


@dataclass(frozen=True)
class Prepared:
    """What the library's scheduler would have made: cache, layer, mask and index arrays."""

    cache: Any
    layer: SimpleNamespace
    mask: torch.Tensor | None
    read_index: list[torch.Tensor]
    write_index: list[torch.Tensor]


class TransformersBackend(LibraryBackend):
    """sdpa on a CPU, flash-attn on a GPU."""

    name = "transformers"
    about = "transformers' continuous batching: sdpa on a CPU, flash-attn on a GPU"
    lib = Library(
        title="transformers",
        modules=(f"{CONTINUOUS}.cache",),
        distributions=("transformers",),
        install="pip install 'pagedbench[transformers]'",
        needs_cuda=False,
    )
    # Every key is gathered, also those below a window, and meets a weight of zero there.
    traits = Traits(returns_lse=False, lse_note="none returned", nan_regions={"hidden": "may-leak"})

    def available(self, device: str) -> Availability:
        """On a GPU it drives flash-attn, which must be there as well."""
        found = super().available(device)
        if not found.available or not self._uses_flash(device):
            return found
        flash = load(FLASH_MODULES)  # not `flash_attn` alone, which is there with flash-attn-4, too
        if flash.module is None:
            reason = "flash-attn is not installed" if flash.missing else flash.reason
            return Availability(False, found.version, f"on a GPU it drives flash-attn: {reason}")
        return found

    def _uses_flash(self, device: str) -> bool:
        return device.startswith("cuda")

    def capabilities(self, path: AttnPath) -> Capabilities:
        """Causal attention with or without a window; its mask gives rows that see no key the mean of V."""
        return Capabilities(
            dtypes=("float16", "bfloat16", "float32"),
            head_dim_step=1,
            max_head_dim=1 << 16,
            block_step=256 if path is AttnPath.DECODE else 1,
            not_causal=False,
            softcap=False,
            splits=False,
            int64=path is AttnPath.VARLEN,  # lengths are converted to int32, the block table is not
            strided=False,
            hnd=False,
            max_query_len=1,
            blind_rows=False,
            no_keys=path is AttnPath.VARLEN,
        )

    def particular(self, spec: CallSpec) -> Iterator[str]:
        """The library's own limits, and what its dense mask costs."""
        flash = self._uses_flash(spec.device)
        if spec.path is AttnPath.DECODE and not flash:
            yield f"decode of {self.title} is flash-attn's: it needs a GPU"
        if spec.path is AttnPath.DECODE and not spec.append:
            yield f"decode without an append: {self.title} always writes the new token"
        if spec.block_size < MIN_BLOCK_SIZE:
            yield f"block size {spec.block_size}: {self.title} needs at least {MIN_BLOCK_SIZE}"
        if spec.kv_order != "NHD" or not spec.kv_contiguous:
            yield f"a pool that is not dense in NHD order: {self.title} keeps its cache as (slots, heads, head_dim)"
        if spec.window_size[0] == 0:
            yield f"a window of 1 key: {self.title} means no window by 1"
        if flash:
            yield from self._limits_of_flash(spec)
        if not flash and spec.total_q * spec.batch * spec.max_seqlen_k > MASK_ELEMENTS:
            yield f"{self.title} would build a dense mask of more than {MASK_ELEMENTS:,} elements"

    def _limits_of_flash(self, spec: CallSpec) -> Iterator[str]:
        """What flash-attn cannot take, and the library hands to it as it is."""
        title = f"{self.title} with flash-attn"
        if "float32" in {spec.q_dtype, spec.kv_dtype}:
            yield f"float32: {title} takes float16 and bfloat16"
        if spec.head_dim > 256 or spec.head_dim % 8:
            yield f"head_dim {spec.head_dim}: {title} takes multiples of 8, up to 256"
        if spec.path is AttnPath.VARLEN:
            yield from reshapes_by_sequence(spec, title)

    def traits_for(self, path: AttnPath) -> Traits:
        """Its decode is flash-attn's, which cuts splits from the table's columns times the block size."""
        return replace(self.traits, splits_from_capacity=path is AttnPath.DECODE)

    def plan(self, call: Call) -> Prepared:
        """What the library's scheduler prepares on the host before a step."""
        return Prepared(
            cache=_cache_over(call),
            layer=_layer(call),
            mask=None if self._uses_flash(call.spec.device) else _mask(call),
            read_index=[call.read_slots],
            write_index=[_write_index(call)],
        )

    def varlen(self, call: Call, plan: Prepared) -> Output:
        """`update` writes and gathers inside the library's function."""
        if self._uses_flash(call.spec.device):
            return self._flash(call, plan, None)
        function = import_module("transformers.integrations.sdpa_paged").sdpa_attention_paged_forward
        return _call(function, call, plan)

    def decode(self, call: Call, plan: Prepared) -> Output:
        """The fast path: a block table, and `flash_attn_with_kvcache` beneath."""
        return self._flash(call, plan, call.block_table[None])

    def _flash(self, call: Call, plan: Prepared, block_table: torch.Tensor | None) -> Output:
        function = import_module("transformers.integrations.flash_paged").paged_attention_forward
        k_new, v_new = _new_tokens(call)
        out, _ = function(
            plan.layer,
            call.q.transpose(0, 1)[None],
            k_new,
            v_new,
            None,
            cache=plan.cache,
            cu_seq_lens_q=call.cu_seqlens_q,
            cu_seq_lens_k=call.cu_seqlens_k,
            max_seqlen_q=call.max_seqlen_q,
            max_seqlen_k=call.max_seqlen_k,
            block_table=block_table,
            read_index=plan.read_index,
            write_index=plan.write_index,
        )
        return _shaped(out, call)


class TransformersEagerBackend(TransformersBackend):
    """The eager function, on any device: scores and weights in the dtype of the inputs."""

    name = "transformers-eager"
    about = "transformers' continuous batching, eager"
    traits = Traits(
        returns_lse=False,
        lse_note="none returned",
        score_rounding=True,
        nan_regions={"hidden": "may-leak"},
    )

    def _uses_flash(self, device: str) -> bool:
        return False

    @property
    def paths(self) -> tuple[AttnPath, ...]:
        """Eager has no decode of its own."""
        return (AttnPath.VARLEN,)

    def capabilities(self, path: AttnPath) -> Capabilities:
        """As sdpa, and sinks."""
        return replace(super().capabilities(path), sinks=True)

    def varlen(self, call: Call, plan: Prepared) -> Output:
        """`update` writes and gathers inside the library's function."""
        function = import_module("transformers.integrations.eager_paged").eager_paged_attention_forward
        return _call(function, call, plan)


def _cache_over(call: Call) -> Any:
    """A cache of the library's class whose memory is the call's pool; its constructor would allocate its own."""
    spec = call.spec
    cache_class = import_module(f"{CONTINUOUS}.cache").PagedAttentionCache
    cache = cache_class.__new__(cache_class)
    cache.block_size, cache.num_blocks = spec.block_size, spec.num_blocks
    cache.num_key_value_heads, cache.head_dim = spec.num_kv_heads, spec.head_dim
    cache.key_cache, cache.value_cache = [_as_slots(call.k_cache)], [_as_slots(call.v_cache)]
    cache.layer_index_to_group_indices = {0: (0, 0)}
    cache.sliding_windows = {0: 1}  # read and write indices are ours and whole, windows are the mask's
    cache._block_table_key = None
    return cache


def _as_slots(pool: torch.Tensor) -> torch.Tensor:
    """`(slots, heads, head_dim)` over the same memory: a pool that is not dense raises, a copy would not be updated."""
    return pool.view(-1, *pool.shape[2:])


def _layer(call: Call) -> SimpleNamespace:
    """The attributes of an attention layer that the functions look at."""
    spec = call.spec
    layer = SimpleNamespace(
        layer_idx=0,
        scaling=spec.softmax_scale,
        num_key_value_groups=spec.group_size,
        config=SimpleNamespace(_attn_implementation="flash_attention_2"),
    )
    if call.sinks is not None:
        layer.sinks = call.sinks.to(call.q.dtype)
    if spec.windowed:
        layer.sliding_window = spec.window_size[0] + 1
    return layer


def _mask(call: Call) -> torch.Tensor:
    """The library's own mask, `(1, 1, total_q, total_k)`."""
    build = import_module(f"{CONTINUOUS}.utils").build_attention_mask
    host, spec = host_arrays(call), call.spec
    total_k = int(host.cu_seqlens_k[-1])
    lowest = torch.finfo(call.q.dtype).min
    mask = call.q.new_full((1, 1, spec.total_q, total_k), lowest)
    window = spec.window_size[0] + 1 if spec.windowed else 1
    build(mask, host.cu_seqlens_q.tolist(), host.cu_seqlens_k.tolist(), sliding_window=window)
    return mask


def _write_index(call: Call) -> torch.Tensor:
    """Slots of the new tokens; the library takes none that is no slot, so a token without one is left out."""
    return call.write_slots.new_zeros(0) if call.k_new is None else call.write_slots[_written(call)]


def _written(call: Call) -> torch.Tensor | slice:
    """Which new tokens are written by slot; through a block table all are."""
    return slice(None) if call.written is None or call.spec.path is not AttnPath.VARLEN else call.written


def _new_tokens(call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    """`(1, num_kv_heads, new tokens, head_dim)`, without a token where nothing is appended."""
    if call.k_new is None or call.v_new is None:
        empty = call.k_cache.new_zeros(1, call.spec.num_kv_heads, 0, call.spec.head_dim)
        return empty, empty
    written = _written(call)
    return call.k_new[written].transpose(0, 1)[None], call.v_new[written].transpose(0, 1)[None]


def _call(function: Any, call: Call, plan: Prepared) -> Output:
    k_new, v_new = _new_tokens(call)
    out, _ = function(
        plan.layer,
        call.q.transpose(0, 1)[None],
        k_new,
        v_new,
        plan.mask,
        scaling=call.spec.softmax_scale,
        cache=plan.cache,
        read_index=plan.read_index,
        write_index=plan.write_index,
    )
    return _shaped(out, call)


def _shaped(out: torch.Tensor, call: Call) -> Output:
    return Output(out.reshape(call.spec.total_q, call.spec.num_heads, call.spec.head_dim_v))
