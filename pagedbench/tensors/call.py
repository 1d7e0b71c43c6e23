"""What a backend is given: a `Call`, and the `CallSpec` of the facts about it that need no tensor.

A backend never sees a scenario. `CallSpec` is what `Backend.supports` decides on, before anything is allocated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from pagedbench.scenario.model import AUTO_SPLITS, UNLIMITED
from pagedbench.words import AttnPath


@dataclass(frozen=True)
class CallSpec:
    """Facts about a call. Dtypes are torch's names without the prefix (`"bfloat16"`); `device` is `"cpu"` or `"cuda"`.

    `query_len` is the number of query tokens if it is the same for all sequences, else None. `kv_order` is NHD or HND,
    `kv_contiguous` tells whether the K and V pools are each dense in that order, `kv_same_strides` whether they
    lie alike. `num_splits` 0 is the backend's own choice. `sinks_fit_bf16`: bfloat16 holds every sink exactly.
    `index_dtypes` has an entry for each index array that is not int32.
    """

    path: AttnPath
    device: str
    batch: int
    query_len: int | None
    max_seqlen_q: int
    max_seqlen_k: int
    total_q: int
    has_empty_query: bool
    has_empty_keys: bool
    has_blind_rows: bool
    append: bool
    block_size: int
    num_blocks: int
    max_blocks_per_seq: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    head_dim_v: int
    q_dtype: str
    kv_dtype: str
    out_dtype: str
    kv_order: str = "NHD"
    kv_contiguous: bool = True
    kv_same_strides: bool = True
    causal: bool = True
    window_size: tuple[int, int] = (UNLIMITED, UNLIMITED)
    softcap: float | None = None
    sinks: bool = False
    sinks_fit_bf16: bool = True
    alibi: bool = False
    softmax_scale: float = 1.0
    num_splits: int = AUTO_SPLITS
    index_dtypes: Mapping[str, str] = field(default_factory=dict)

    @property
    def group_size(self) -> int:
        """Query heads for one KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def windowed(self) -> bool:
        """A sliding window on at least one side."""
        return self.window_size != (UNLIMITED, UNLIMITED)


@dataclass
class Call:
    """One step of attention over a paged cache, ready to run.

    Queries are ragged: `q` `(total_q, num_heads, head_dim)`. `k_new`, `v_new` `(total_q, num_kv_heads, head_dim[_v])`
    are the tokens to append, None when nothing is appended. `k_cache`, `v_cache`
    `(num_blocks, block_size, num_kv_heads, head_dim[_v])` are always NHD *views*, whatever order the memory has
    (`spec.kv_order`). `cu_seqlens_q`, `cu_seqlens_k` `(batch + 1,)`; `cache_seqlens` (before the new tokens),
    `total_seqlens` (after) `(batch,)`; `block_table` `(batch, max_blocks_per_seq)`; all int32 unless the scenario says
    otherwise. `write_slots` `(total_q,)` and `read_slots` `(total_k,)` int64 are for the tool's own write and gather;
    where a scenario leaves new tokens unwritten (slot −1), `written` has the indices of the others, else it is None.

    `k`, `v` `(total_k, num_kv_heads, head_dim[_v])` are the contiguous keys of the varlen path: None until
    `PagedKVCache.update` has gathered them. `out` `(total_q, num_heads, head_dim_v)` is memory for a backend that can
    write into given memory; others return their own. `k_scale`, `v_scale` dequantise fp8. `host` has copies of the
    index arrays for a planner; reading them costs no synchronisation.
    """

    spec: CallSpec
    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    cu_seqlens_q: torch.Tensor
    cu_seqlens_k: torch.Tensor
    cache_seqlens: torch.Tensor
    total_seqlens: torch.Tensor
    block_table: torch.Tensor
    write_slots: torch.Tensor
    read_slots: torch.Tensor
    max_seqlen_q: int
    max_seqlen_k: int
    k_new: torch.Tensor | None = None
    v_new: torch.Tensor | None = None
    written: torch.Tensor | None = None
    k: torch.Tensor | None = None
    v: torch.Tensor | None = None
    sinks: torch.Tensor | None = None
    alibi_slopes: torch.Tensor | None = None
    k_scale: float = 1.0
    v_scale: float = 1.0
    out: torch.Tensor | None = None
    host: HostArrays | None = None

    @property
    def q_batched(self) -> torch.Tensor:
        """`q` as `(batch, query_len, num_heads, head_dim)`, a view; only where all query lengths are the same."""
        return self._batched(self.q)

    @property
    def k_new_batched(self) -> torch.Tensor | None:
        """`k_new` as `(batch, query_len, num_kv_heads, head_dim)`, a view."""
        return None if self.k_new is None else self._batched(self.k_new)

    @property
    def v_new_batched(self) -> torch.Tensor | None:
        """`v_new` as `(batch, query_len, num_kv_heads, head_dim_v)`, a view."""
        return None if self.v_new is None else self._batched(self.v_new)

    def _batched(self, ragged: torch.Tensor) -> torch.Tensor:
        if self.spec.query_len is None:
            raise ValueError("query lengths differ: there is no batched view")
        return ragged.view(self.spec.batch, self.spec.query_len, *ragged.shape[1:])


@dataclass(frozen=True)
class HostArrays:
    """Host copies (CPU tensors) of the index arrays, for libraries that plan on the host."""

    cu_seqlens_q: torch.Tensor
    cu_seqlens_k: torch.Tensor
    cache_seqlens: torch.Tensor
    total_seqlens: torch.Tensor
    block_table: torch.Tensor
