"""The `triton` backend: pagedbench's own kernels. The embedded default for decode on a GPU, and a worked example.

This file is all that a kernel needs to become a backend: it says where it runs and what it cannot do, and turns a
`Call` into the kernel's arguments. The kernels are in `triton_kernels/`. On a CPU they run in Triton's interpreter,
which is slow but has the same reads, writes and masks.
"""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from pagedbench.backends.base import Availability, Backend, Output, Traits
from pagedbench.backends.loading import load, version_of
from pagedbench.tensors.call import Call, CallSpec

DISTRIBUTIONS = ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-rocm")
INTERPRET = "TRITON_INTERPRET"
KERNELS = "pagedbench.backends.triton_kernels.launch"
DTYPES = ("float16", "bfloat16", "float32", "float8_e4m3fn")
MAX_HEAD_DIM = 256
MAX_SPLITS = 256
# The interpreter takes about 6 ms for a tile of 64 keys, and checks make several calls: with more it would be minutes.
MAX_INTERPRETED_TILES = 4_000


class TritonBackend(Backend):
    """Split-KV decode with in-place append, and prefill, through any block table."""

    name = "triton"
    library = "triton"
    about = "pagedbench's own split-KV kernels; any block size; on a CPU in Triton's interpreter"
    traits = Traits(out=True, compile_seconds=20.0)

    def available(self, device: str) -> Availability:
        """With a GPU; on a CPU where the interpreter can still be chosen, which is when Triton is imported."""
        found = _triton_version()
        if found is None:
            return Availability(False, reason="triton is not installed: pip install 'pagedbench[triton]' (Linux)")
        if device.startswith("cuda"):
            reason = _no_gpu() or load(("triton",)).reason or None
            return Availability(reason is None, found, reason)
        # Importing it here where nobody has chosen yet would choose to compile, for all of this process.
        if (_interpreting() or "triton" in sys.modules) and (broken := load(("triton",)).reason):
            return Availability(False, found, broken)
        if _interpreting() or "triton" not in sys.modules:
            return Availability(True, found, note="runs in Triton's interpreter: for correctness, not for speed")
        return Availability(
            False, found, f"Triton was imported to compile for a GPU: set {INTERPRET}=1 before Python starts"
        )

    def unsupported(self, spec: CallSpec) -> str | None:
        """Any block size, length, table, group, window; limits are dtypes, head dims and the interpreter's patience."""
        if max(spec.head_dim, spec.head_dim_v) > MAX_HEAD_DIM:
            return f"head dim {max(spec.head_dim, spec.head_dim_v)}: the kernel takes at most {MAX_HEAD_DIM}"
        for name, dtype in (("q", spec.q_dtype), ("K and V", spec.kv_dtype)):
            if dtype not in DTYPES:
                return f"{name} in {dtype}: the kernel takes {', '.join(DTYPES)}"
        if spec.num_splits > MAX_SPLITS:
            return f"num_splits {spec.num_splits}: the kernel takes at most {MAX_SPLITS}"
        tiles = _interpreted_tiles(spec)
        if spec.device == "cpu" and tiles > MAX_INTERPRETED_TILES:
            return (
                f"about {tiles:,} tiles of work: Triton's interpreter on the CPU is only for small scenarios "
                f"(at most {MAX_INTERPRETED_TILES:,})"
            )
        return None

    def decode(self, call: Call, plan: Any) -> Output:
        """Attention through the block table; the attention kernel stores the new tokens itself."""
        return _attend(call)

    def paged_varlen(self, call: Call, plan: Any) -> Output:
        """The same kernel with more query rows."""
        return _attend(call)


def _attend(call: Call) -> Output:
    spec, kernels = call.spec, _kernels(call.q.device)
    appends = call.k_new is not None
    batch = kernels.PagedBatch(
        q=call.q,
        k_cache=call.k_cache,
        v_cache=call.v_cache,
        block_table=call.block_table,
        seqlens=call.cache_seqlens if appends else call.total_seqlens,
        cu_seqlens_q=call.cu_seqlens_q,
        max_seqlen_q=call.max_seqlen_q,
        max_seqlen_k=call.max_seqlen_k,
        softmax_scale=spec.softmax_scale,
        query_len=spec.query_len,
        k_new=call.k_new,
        v_new=call.v_new,
        causal=spec.causal,
        window=spec.window_size,
        softcap=spec.softcap,
        sinks=call.sinks,
        alibi_slopes=call.alibi_slopes,
        k_scale=call.k_scale,
        v_scale=call.v_scale,
        num_splits=spec.num_splits,
    )
    shape = (spec.total_q, spec.num_heads, spec.head_dim_v)
    out = call.q.new_empty(shape, dtype=getattr(torch, spec.out_dtype)) if call.out is None else call.out
    return Output(*kernels.paged_attention(batch, out))


def _kernels(device: torch.device) -> Any:
    """The module that launches the kernels, imported at the first call.

    Triton decides when a kernel is defined whether it is compiled or interpreted, so the choice is made here, by the
    device of the first call in this process.
    """
    if device.type == "cpu" and "triton" not in sys.modules:
        os.environ[INTERPRET] = "1"
    return import_module(KERNELS)


@lru_cache(maxsize=1)  # looking it up takes a millisecond
def _triton_version() -> str | None:
    """The version, or None where there is no Triton; builds for nightly torch or ROCm are packages of other names."""
    if find_spec("triton") is None:
        return None
    return next(filter(None, map(version_of, DISTRIBUTIONS)), "unknown")


def _interpreting() -> bool:
    """Whether kernels defined in this process run in the interpreter."""
    return os.environ.get(INTERPRET, "0").lower() in ("1", "true", "on", "yes", "y")


def _no_gpu() -> str | None:
    """Why compiled kernels cannot run here, or None."""
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    if _interpreting():
        return f"{INTERPRET} is set: this process runs Triton's interpreter"
    if torch.version.cuda and torch.cuda.get_device_capability() < (8, 0):
        return "the kernels need a GPU of compute capability 8.0 or later"
    return None


def _interpreted_tiles(spec: CallSpec) -> int:
    """About how many tiles of keys the programs of a call walk through, with the interpreter's settings."""
    programs = spec.batch * spec.num_kv_heads * -(-spec.max_seqlen_q * spec.group_size // 64)
    return programs * -(-spec.max_seqlen_k // 64)
