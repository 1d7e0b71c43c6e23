"""What adapters of libraries have in common: declared capabilities, and the sentences that follow from them.

An adapter says once what a path's function takes (`Capabilities`); every reason to refuse a call is derived from that.
What is particular to a library it adds in `particular`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from inspect import Parameter, signature
from typing import Any, Literal

import torch

from pagedbench.backends.base import Availability, Backend
from pagedbench.backends.loading import Library
from pagedbench.scenario.model import AUTO_SPLITS, UNLIMITED
from pagedbench.tensors.call import CallSpec
from pagedbench.words import AttnPath

Fp8 = Literal["no", "kv", "all"]
HOPPER_FP8_SCORE = 2.0**-13  # scores of fp8 products, which Hopper adds with some 14 bits (DeepSeek-V3 report, 3.3.2)
HARDWARE_TANH = 2.0**-11  # relative error of the GPU's own tanh (PTX tanh.approx.f32), which softcap kernels use


@dataclass(frozen=True)
class Capabilities:
    """What a library takes on one path. The defaults are those of the FlashAttention family.

    `fp8`: `kv` with queries in half precision, `all` with queries in fp8, too. `head_dims`: only these, where given;
    else up to `max_head_dim` in steps of `head_dim_step`. `block_step`: block sizes must be multiples of it.
    `window`: a sliding window; `look_ahead`: one whose right side is limited without being causal. `splits`: the number
    of splits can be chosen. `max_query_len`: for decode, None for any. `same_strides`: K and V must have equal strides.
    `bf16_sinks`: sinks are taken in bfloat16, whatever the scenario has them in.
    """

    dtypes: tuple[str, ...] = ("float16", "bfloat16")
    fp8: Fp8 = "no"
    head_dims: tuple[int, ...] = ()
    max_head_dim: int = 256
    head_dim_step: int = 8
    head_dim_v: bool = False
    max_head_dim_v: int = 256
    block_step: int = 1
    window: bool = True
    look_ahead: bool = True
    not_causal: bool = True
    softcap: bool = True
    sinks: bool = False
    bf16_sinks: bool = False
    alibi: bool = False
    splits: bool = True
    int64: bool = False
    hnd: bool = True
    strided: bool = True
    same_strides: bool = False
    max_query_len: int | None = None
    no_query: bool = True
    no_keys: bool = True
    blind_rows: bool = True
    nothing: bool = False

    def reasons(self, spec: CallSpec, title: str) -> Iterator[str]:
        """Why `title` cannot make a call, most telling first."""
        yield from self._batch(spec, title)
        yield from self._dtypes(spec, title)
        yield from self._sizes(spec, title)
        yield from self._features(spec, title)

    def _batch(self, spec: CallSpec, title: str) -> Iterator[str]:
        if spec.path is AttnPath.DECODE and spec.query_len is None and spec.batch:
            yield "decode cannot take prefill: query lengths differ"
        if not self.nothing and (spec.batch == 0 or spec.total_q == 0):
            yield f"a batch without a query token: {title} needs at least one"
        if (
            spec.path is AttnPath.DECODE
            and self.max_query_len is not None
            and (spec.query_len or 0) > self.max_query_len
        ):
            yield f"{spec.query_len} query tokens a sequence: the decode function of {title} takes {self.max_query_len}"
        if spec.has_empty_query and not self.no_query:
            yield f"a sequence without a query token: {title} needs at least one in each"
        if spec.has_empty_keys and not self.no_keys:
            yield f"a sequence without a key: {title} needs at least one in each"
        if spec.has_blind_rows and not self.blind_rows:
            yield f"query tokens that see no key: {title} does not give them zeros"

    def _dtypes(self, spec: CallSpec, title: str) -> Iterator[str]:
        if spec.index_dtypes and not self.int64:
            name, dtype = next(iter(spec.index_dtypes.items()))
            yield f"{name} in {dtype}: {title} reads int32 only"
        if spec.kv_dtype.startswith("float8"):
            if self.fp8 == "no":
                yield f"K and V in {spec.kv_dtype}: {title} takes {_listed(self.dtypes)}"
            if self.fp8 == "all" and spec.q_dtype != spec.kv_dtype:
                yield f"q in {spec.q_dtype}: {title} wants q in {spec.kv_dtype} as well when K and V are (q_dtype)"
            if self.fp8 == "kv" and spec.q_dtype not in self.dtypes:
                yield f"q in {spec.q_dtype}: {title} wants it in {' or '.join(self.dtypes)} beside fp8 K, V (q_dtype)"
        elif spec.q_dtype != spec.kv_dtype or spec.q_dtype not in self.dtypes:
            found = (
                spec.q_dtype if spec.q_dtype == spec.kv_dtype else f"q in {spec.q_dtype}, K and V in {spec.kv_dtype}"
            )
            yield f"{found}: {title} takes {_listed(self.dtypes)}"

    def _sizes(self, spec: CallSpec, title: str) -> Iterator[str]:
        if self.head_dims and spec.head_dim not in self.head_dims:
            yield f"head_dim {spec.head_dim}: {title} takes {', '.join(map(str, self.head_dims))}"
        if spec.head_dim > self.max_head_dim:
            yield f"head_dim {spec.head_dim}: {title} takes at most {self.max_head_dim}"
        if spec.head_dim_v > self.max_head_dim_v:
            yield f"head_dim_v {spec.head_dim_v}: {title} takes at most {self.max_head_dim_v}"
        if spec.head_dim % self.head_dim_step or spec.head_dim_v % self.head_dim_step:
            yield f"head_dim {spec.head_dim}: {title} needs a multiple of {self.head_dim_step}"
        if spec.head_dim_v != spec.head_dim and not self.head_dim_v:
            yield f"head_dim_v {spec.head_dim_v} beside head_dim {spec.head_dim}: {title} needs them equal"
        if spec.path is AttnPath.VARLEN:
            return
        if spec.block_size % self.block_step:
            yield f"block size {spec.block_size}: {title} needs a multiple of {self.block_step}"
        if spec.kv_order == "HND" and not self.hnd:
            yield f"a pool in HND order: {title} needs NHD"
        if not spec.kv_contiguous and not self.strided:
            yield f"a pool with gaps between its blocks or tokens: {title} needs a dense one"
        if not spec.kv_same_strides and self.same_strides:
            yield f"K and V with different strides: {title} takes one set of strides for both"

    def _features(self, spec: CallSpec, title: str) -> Iterator[str]:
        right = spec.window_size[1]
        asked: Mapping[str, bool] = {
            "a sliding window": spec.windowed and not self.window,
            "attention that is not causal": not spec.causal and not self.not_causal,
            "a window with a right side": not spec.causal and right != UNLIMITED and not self.look_ahead,
            "softcap": spec.softcap is not None and not self.softcap,
            "sinks": spec.sinks and not self.sinks,
            "ALiBi": spec.alibi and not self.alibi,
            f"num_splits {spec.num_splits}": spec.num_splits != AUTO_SPLITS and not self.splits,
        }
        if spec.sinks and self.bf16_sinks and not spec.sinks_fit_bf16:
            yield f"sinks that bfloat16 cannot hold: {title} takes them in bfloat16"
        for feature, lacking in asked.items():
            if lacking:
                yield (
                    f"{feature}: {title} has none"
                    if "splits" not in feature
                    else f"{feature}: {title} chooses it itself"
                )


def _listed(words: tuple[str, ...]) -> str:
    """`a, b and c`."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


class LibraryBackend(Backend):
    """A backend that calls an installed library. Subclasses give `lib`, `capabilities` and the paths."""

    lib: Library

    @property
    def library(self) -> str:  # type: ignore[override]
        """The package as a person installs it."""
        return self.lib.distributions[0]

    @property
    def title(self) -> str:
        """The library with its version (`flash-attn 2.8`), for reasons."""
        version = self.lib.version()
        return self.lib.title if version is None else f"{self.lib.title} {'.'.join(version.split('.')[:2])}"

    def available(self, device: str) -> Availability:
        """See `Library.available`."""
        return self.lib.available(device)

    def capabilities(self, path: AttnPath) -> Capabilities:
        """What the library takes on a path that this backend has. Only asked where the library is there."""
        raise NotImplementedError

    def particular(self, spec: CallSpec) -> Iterator[str]:
        """Further reasons to refuse a call, which no `Capabilities` can say."""
        yield from ()

    def unsupported(self, spec: CallSpec) -> str | None:
        """The first reason not to make a call."""
        if spec.path not in self.paths:
            return f"{self.title} has no function for {spec.path}"
        if self.lib.needs_cuda and spec.device != "cuda":
            return f"{self.title} needs a CUDA GPU"
        capable = self.capabilities(spec.path)
        return next(self.particular(spec), None) or next(capable.reasons(spec, self.title), None)


@lru_cache(maxsize=64)  # asked at every call, and reading a signature takes longer than starting a kernel
def parameters(function: Callable[..., Any]) -> frozenset[str]:
    """The names of a function's arguments, or none if it does not tell."""
    try:
        return frozenset(signature(function).parameters)
    except (TypeError, ValueError):
        return frozenset()


@lru_cache(maxsize=64)
def takes_any_keyword(function: Callable[..., Any]) -> bool:
    """Whether the function has `**kwargs`, so that its signature does not tell what it takes."""
    try:
        return any(parameter.kind is Parameter.VAR_KEYWORD for parameter in signature(function).parameters.values())
    except (TypeError, ValueError):
        return False


def named(function: Callable[..., Any], *names: str) -> str | None:
    """Which of several names, differing between versions, a function has for one argument; None if it has none."""
    known = parameters(function)
    return next((name for name in names if name in known), None)


def accepted(function: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the values that the function has an argument for; all of them, if it takes any keyword."""
    if takes_any_keyword(function):
        return dict(values)
    known = parameters(function)
    return {name: value for name, value in values.items() if name in known}


def reshapes_by_sequence(spec: CallSpec, title: str) -> Iterator[str]:
    """FlashAttention-2, where the longest query is one token and heads share K and V, reshapes q by the number of
    sequences; that fails if a sequence has no query token."""
    swapped = spec.max_seqlen_q == 1 and spec.group_size > 1 and not spec.windowed and not spec.alibi
    if swapped and spec.has_empty_query:
        yield f"a sequence without a query token beside ones with one: {title} reshapes q by sequences (GQA)"


def compute_capability() -> tuple[int, int]:
    """(major, minor) of the current GPU, (0, 0) without one."""
    return torch.cuda.get_device_capability() if torch.cuda.is_available() else (0, 0)


def cuda_context_is_dead() -> bool:
    """Whether CUDA answers with an error: libraries word theirs in ways of their own, and some are another's before."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
