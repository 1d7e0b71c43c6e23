"""A user's own kernel as a backend: a plain function, or a class deriving `Backend`, in a Python file.

A function takes any of these arguments, **by name**, and none needs a default:

| argument | what it is |
|---|---|
| `q` | decode: `(batch, query_len, num_heads, head_dim)`; otherwise `(total_q, num_heads, head_dim)` |
| `k_cache`, `v_cache` | decode, paged-varlen: the pools `(num_blocks, block_size, num_kv_heads, head_dim[_v])` |
| `block_table` | decode, paged-varlen: `(batch, max_blocks_per_seq)`; entries that are not needed may be −1 or rubbish |
| `k_new`, `v_new` | decode, paged-varlen: the new tokens, shaped like `q`, or None; take them and you append them yourself, leave them out and the tool has written them before the call |
| `k`, `v` | varlen: the gathered keys `(total_k, num_kv_heads, head_dim[_v])` |
| `cu_seqlens_q`, `cu_seqlens_k` | `(batch + 1,)` int32 |
| `cache_seqlens`, `total_seqlens` | `(batch,)` int32: keys before the new tokens, and after them |
| `max_seqlen_q`, `max_seqlen_k` | int |
| `softmax_scale`, `causal`, `window_size`, `softcap`, `sinks`, `alibi_slopes`, `num_splits` | as in the scenario; `(-1, -1)`, None, None, None and 0 when off |
| `k_scale`, `v_scale` | float, for fp8 |
| `out` | memory for the output, `(total_q, num_heads, head_dim_v)` in the output's dtype, or None |
| `plan` | what the decorator's `plan` returned |
| `call` | the whole `Call` |

It returns the output, or `(output, lse)`, the LSE in fp32 or fp64; both may have a batch and a query dimension or one
for all query tokens. The output's dtype is `call.spec.out_dtype`: that of `q`, and where `q` is fp8 the scenario's
`attention.dtype`, bfloat16 if it names none. An argument that a function does not take is a feature that it does not
have: scenarios with a window are skipped for a function without `window_size`.
"""  # noqa: E501

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args

import torch

from pagedbench.backends.base import Availability, Backend, NanContract, Output, Traits
from pagedbench.backends.declare import MARK, Declaration
from pagedbench.errors import UsageError, nearest
from pagedbench.layout.regions import Region
from pagedbench.tensors.call import Call, CallSpec
from pagedbench.words import AttnPath

Kernel = Callable[..., Any]
_COMMON = (
    "q", "cu_seqlens_q", "cu_seqlens_k", "cache_seqlens", "total_seqlens", "max_seqlen_q", "max_seqlen_k",
    "softmax_scale", "causal", "window_size", "softcap", "sinks", "alibi_slopes", "num_splits", "k_scale", "v_scale",
    "out", "plan", "call",
)  # fmt: skip
_PAGED = ("k_cache", "v_cache", "k_new", "v_new", "block_table")
ARGUMENTS: Mapping[AttnPath, tuple[str, ...]] = {
    AttnPath.VARLEN: (*_COMMON, "k", "v"),
    AttnPath.DECODE: (*_COMMON, *_PAGED),
    AttnPath.PAGED_VARLEN: (*_COMMON, *_PAGED),
}
# The longest ending first: `my_paged_varlen` ends in `varlen`, too.
_NAME_ENDINGS = {"paged_varlen": AttnPath.PAGED_VARLEN, "varlen": AttnPath.VARLEN, "decode": AttnPath.DECODE}


@dataclass(frozen=True)
class UserKernel:
    """One function with what is known of it: `arguments` are the names it takes, all of them if it takes `**kwargs`.

    `name` is what its author calls it.
    """

    function: Kernel
    name: str
    declaration: Declaration
    arguments: frozenset[str]

    @classmethod
    def of(cls, function: Kernel, place: str = "") -> UserKernel:
        """Read a function's signature. Raises UsageError if it takes what no path has, or its path cannot be told."""
        where = f"{place}: " if place else ""
        names = _names_of(function, place)
        name = next(iter(names), type(function).__name__)
        declaration = getattr(function, MARK, None) or _declared_by_name(
            names, f"{where}which path does {name} compute?"
        )
        known = ARGUMENTS[declaration.path]
        _refuse_unknown_traits(declaration, f"{where}{name}")
        parameters = inspect.signature(function).parameters.values()
        if any(p.kind is p.VAR_KEYWORD for p in parameters):
            return cls(function, name, declaration, frozenset(known))
        named = [p for p in parameters if p.kind is not p.VAR_POSITIONAL]
        if not named:
            raise UsageError(f"{where}{name} takes no argument by name", hint=f"it may take any of: {', '.join(known)}")
        for parameter in named:
            if parameter.kind is parameter.POSITIONAL_ONLY:
                raise UsageError(
                    f"{where}{name} takes {parameter.name!r} by position only, and is given its arguments by name",
                    hint="leave out the / among its arguments",
                )
            if parameter.name not in known and parameter.default is parameter.empty:
                raise UsageError(
                    f"{where}{name} takes {parameter.name!r}, which is no argument of the path {declaration.path}",
                    hint=nearest(parameter.name, known) or f"it may take any of: {', '.join(known)}",
                )
        return cls(function, name, declaration, frozenset(p.name for p in named) & frozenset(known))

    @property
    def path(self) -> AttnPath:
        """The path it computes."""
        return self.declaration.path

    @property
    def appends(self) -> bool:
        """It takes the new tokens, so it writes them."""
        return {"k_new", "v_new"} <= self.arguments

    def unsupported(self, spec: CallSpec) -> str | None:
        """Why a call cannot be made: the function says so, or it does not take what the call needs."""
        if self.declaration.unsupported is not None and (reason := self.declaration.unsupported(spec)):
            return reason
        needs = {
            "window_size": spec.windowed,
            "softcap": spec.softcap is not None,
            "sinks": spec.sinks,
            "alibi_slopes": spec.alibi,
            "causal": not spec.causal,
            "softmax_scale": spec.softmax_scale != spec.head_dim**-0.5,
            "num_splits": spec.num_splits != 0,
            "k_scale": spec.kv_dtype.startswith("float8"),
        }
        missing = [argument for argument, needed in needs.items() if needed and not {argument, "call"} & self.arguments]
        return f"{self.name} takes no argument {', '.join(missing)}" if missing else None

    def __call__(self, call: Call, plan: Any) -> Output:
        """Call the function with the arguments it takes."""
        values = _values(call, self.path, plan, self.arguments)
        result = self.function(**values)
        # Operators in C++ return a list where Python's return a tuple.
        out, lse = result if isinstance(result, tuple | list) and len(result) == 2 else (result, None)
        if lse is None and self.declaration.traits.get("returns_lse"):
            raise TypeError(f"{self.name} is declared to return the LSE, and returned {_described(result)}")
        heads = call.spec.num_heads
        return Output(
            self._ragged(out, "output", call.spec, (heads, call.spec.head_dim_v)),
            None if lse is None else self._ragged(lse, "LSE", call.spec, (heads,)),
        )

    def _ragged(self, found: object, what: str, spec: CallSpec, row: tuple[int, ...]) -> torch.Tensor:
        """`(total_q, *row)`. Dimensions of 1 may be anywhere; any other shape is a mistake that must not be reshaped
        away. Raises TypeError, ValueError."""
        if not isinstance(found, torch.Tensor):
            raise TypeError(f"{self.name} returned {_described(found)} as its {what}, needed a tensor")
        if found.device.type != torch.device(spec.device).type:
            raise ValueError(f"{self.name} returned its {what} on {found.device}, needed {spec.device}")
        ragged = (spec.total_q, *row)
        batched = ragged if spec.query_len is None else (spec.batch, spec.query_len, *row)
        if _without_ones(found.shape) not in (_without_ones(ragged), _without_ones(batched)):
            needed = f"{ragged}" + (f" or {batched}" if spec.path is AttnPath.DECODE else "")
            raise ValueError(f"{self.name} returned its {what} in shape {tuple(found.shape)}, needed {needed}")
        return found.reshape(ragged)


def _without_ones(shape: Sequence[int]) -> list[int]:
    return [size for size in shape if size != 1]


def _described(found: object) -> str:
    return f"{len(found)} values" if isinstance(found, tuple) else f"a {type(found).__name__}"


def _refuse_unknown_traits(declaration: Declaration, who: str) -> None:
    known = [field.name for field in fields(Traits)]
    for trait in declaration.traits:
        if trait not in known:
            raise UsageError(f"{who} declares {trait!r}, which is no trait", hint=nearest(trait, known))
    if "nan_regions" in declaration.traits:
        _refuse_unknown_regions(declaration.traits["nan_regions"], who)


def _refuse_unknown_regions(given: object, who: str) -> None:
    """A region that does not exist would permit nothing, and a contract that does not exist would be none."""
    regions = [f"{region.name.lower()}{side}" for region in Region for side in ("", ".k", ".v")]
    if not isinstance(given, Mapping):
        example = 'nan_regions={"hidden.v": "may-leak"}'
        raise UsageError(f"{who} declares nan_regions as {_described(given)}, no mapping", f"write {example}")
    for region, contract in given.items():
        if region not in regions:
            known = f"there are {', '.join(regions[::3])}, each also with .k or .v"
            hint = nearest(str(region), regions) or known
            raise UsageError(f"{who} declares nan_regions of {region!r}, which is no region", hint)
        if contract not in get_args(NanContract):
            hint = nearest(str(contract), get_args(NanContract)) or f"there are {', '.join(get_args(NanContract))}"
            raise UsageError(f"{who} declares {contract!r} for {region}, which is no contract", hint)


def _names_of(function: Kernel, place: str) -> list[str]:
    """The name that it has in its file, under which it was asked for at `place`, and its own, which a partial, an
    object or what another function made has not, or not one that its author knows."""
    names = (place.rpartition(":")[2], getattr(function, "__name__", ""))
    return [name for name in names if name.isidentifier()]


def tells_path(function: Kernel, name: str) -> bool:
    """Whether a function of that name in its file says which path it computes, by its decorator or by a name."""
    return hasattr(function, MARK) or any(map(_path_in, _names_of(function, name)))


def _path_in(name: str) -> AttnPath | None:
    return next((path for end, path in _NAME_ENDINGS.items() if re.search(rf"(^|_){end}(_|$)", name)), None)


def _declared_by_name(names: Sequence[str], question: str) -> Declaration:
    for path in filter(None, map(_path_in, names)):
        return Declaration(path)
    raise UsageError(
        question,
        hint=f'write @pagedbench.backend(path="decode") above it, or let its name end in {", ".join(_NAME_ENDINGS)}',
    )


def _values(call: Call, path: AttnPath, plan: Any, wanted: frozenset[str]) -> dict[str, Any]:
    spec = call.spec
    values: dict[str, Any] = {name: getattr(spec, name) for name in wanted if hasattr(spec, name)}
    values |= {name: getattr(call, name) for name in wanted if hasattr(call, name)}
    values |= {"call": call, "plan": plan}
    if path is AttnPath.DECODE:
        values |= {"q": call.q_batched, "k_new": call.k_new_batched, "v_new": call.v_new_batched}
    return {name: value for name, value in values.items() if name in wanted}


class UserBackend(Backend):
    """One or more of a user's functions, at most one a path."""

    library = "your own"
    about = "a function of your own"

    def __init__(self, kernels: Mapping[AttnPath, UserKernel], name: str, source: str = "") -> None:
        self.name = name
        self._kernels = dict(kernels)
        self._source = source

    @property
    def paths(self) -> tuple[AttnPath, ...]:
        """The paths that there are functions for."""
        return tuple(path for path in AttnPath if path in self._kernels)

    def function_for(self, path: AttnPath) -> tuple[Path, str, list[str]]:
        """For a script that calls it: the file of the function for `path`, its name there, and the arguments it
        takes. Raises UsageError for a function that is in no file."""
        kernel = self._kernels[path]
        kinds = {parameter.kind for parameter in inspect.signature(kernel.function).parameters.values()}
        left_out = {"call", "plan"} if inspect.Parameter.VAR_KEYWORD in kinds else set()
        wanted = [name for name in ARGUMENTS[path] if name in kernel.arguments - left_out]
        code = getattr(kernel.function, "__globals__", {})
        file, names = code.get("__file__"), [name for name, value in code.items() if value is kernel.function]
        if file is not None and names:
            return Path(file), names[0], wanted
        # A partial, an object, or what another function made: the file that it was asked for in has a name for it.
        asked_for, _, name = self._source.rpartition(":")
        if not asked_for.endswith(".py"):
            raise UsageError(
                f"{kernel.name} is no function of a file, so that a script cannot import it",
                "give it a name at the top of a file, and ask for it as FILE.py:NAME",
            )
        return Path(asked_for), name, wanted

    def available(self, device: str) -> Availability:
        """Where the decorator says that it runs."""
        kind = device.split(":", maxsplit=1)[0]
        if kind == "cuda" and not torch.cuda.is_available():
            return Availability(False, reason="torch sees no CUDA device")
        if not any(kind in kernel.declaration.devices for kernel in self._kernels.values()):
            return Availability(False, reason=f"{self.name} is declared not to run on {kind}")
        return Availability(True)

    def unsupported(self, spec: CallSpec) -> str | None:
        """See `UserKernel.unsupported`; and decode needs equal query lengths."""
        if spec.path not in self._kernels:
            return f"{self.name} has no function for {spec.path}"
        if spec.path is AttnPath.DECODE and spec.query_len is None and spec.batch:
            return "decode cannot take prefill: query lengths differ"
        return self._kernels[spec.path].unsupported(spec)

    def traits_for(self, path: AttnPath) -> Traits:
        """What the decorator declared, and whether the function appends."""
        kernel = self._kernels.get(path)
        if kernel is None:
            return self.traits
        inferred = replace(
            self.traits, appends=kernel.appends, returns_lse=False, lse_note="if the function returns one"
        )
        return replace(inferred, **kernel.declaration.traits)

    def plan(self, call: Call) -> Any:
        """The decorator's `plan`, if there is one."""
        plan = self._kernels[call.spec.path].declaration.plan
        return None if plan is None else plan(call)

    def varlen(self, call: Call, plan: Any) -> Output:
        """The user's varlen function."""
        return self._kernels[AttnPath.VARLEN](call, plan)

    def decode(self, call: Call, plan: Any) -> Output:
        """The user's decode function."""
        return self._kernels[AttnPath.DECODE](call, plan)

    def paged_varlen(self, call: Call, plan: Any) -> Output:
        """The user's paged-varlen function."""
        return self._kernels[AttnPath.PAGED_VARLEN](call, plan)
