"""How a script of `repro` calls a kernel: a library by its own names, or a user's function. Writes no script.

Each library's call is the one that its adapter makes, written out for one scenario. Names of arguments that differ
between versions are those of the version at hand, or of the newest where the library is not installed here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagedbench.backends.base import Backend, Traits
from pagedbench.backends.flashinfer_backend import WORKSPACE_BYTES
from pagedbench.backends.indices import kernel_window
from pagedbench.backends.library import LibraryBackend, accepted, named
from pagedbench.backends.loading import load
from pagedbench.errors import UsageError
from pagedbench.scenario.model import UNLIMITED, Attention, Scenario
from pagedbench.words import AttnPath

_EXAMPLE = "q, k_cache, v_cache, block_table, softmax_scale, ..."

OF_FUNCTION = """out, lse = result if isinstance(result, (tuple, list)) and len(result) == 2 else (result, None)
for name, told, width in (("output", out, dim_v), ("LSE", lse, 1)):
    if not isinstance(told, torch.Tensor) and (name == "output" or told is not None):
        raise SystemExit(f"the {name} is a {type(told).__name__}, needed a tensor  WRONG")
    if told is not None and not told.is_floating_point():
        raise SystemExit(f"the {name} is {told.dtype}, which is no float  WRONG")
    if told is not None and told.numel() != sum(query_lens) * heads * width:
        raise SystemExit(f"the {name} has the shape {tuple(told.shape)}  WRONG")
lse = None if lse is None else lse.reshape(-1, heads).double()"""

_HEADS_FIRST = """out, lse = result[:2]
lse = (lse.transpose(1, 2).reshape(-1, heads) if lse.dim() == 3 else lse.T).double()"""

_BASE_2 = """out, lse = result
lse = torch.where(lse < -49_900, -float("inf"), lse.double() * 0.6931471805599453)  # base 2; -50,000: sees no key"""


@dataclass(frozen=True)
class KernelCall:
    """How a script calls a kernel.

    `imports` are lines, `expression` is the call and `before` lines that it needs; `appends`: it writes the new tokens
    itself. `traits` are those that it is declared to have, `results` the lines that make `out` and `lse`, natural
    logarithm `(total_q, num_heads)` fp64 or None, of what it returned. `from_file`: it is a function of a file.
    """

    imports: str
    expression: str
    appends: bool
    traits: Traits = Traits()  # noqa: RUF009  frozen
    before: str = ""
    results: str = OF_FUNCTION
    from_file: bool = False

    def passes(self, name: str) -> bool:
        """Whether the variable `name` is among the arguments."""
        return re.search(rf"\b{name}[,)]", f"{self.before}\n{self.expression}") is not None


def function_call(file: Path, function: str, arguments: Sequence[str], declared: Traits | None = None) -> KernelCall:
    """The call of a function in a file, with the arguments that it takes, by name, and the traits declared for it."""
    given = {
        "softmax_scale": "scale",
        "window_size": "window",
        "max_seqlen_q": "max(query_lens)",
        "max_seqlen_k": "max(total)",
        "total_seqlens": "total_seqlens",
        "alibi_slopes": "None",
        "k_scale": "1.0",
        "v_scale": "1.0",
    }
    for own, what in (("call", "`call`"), ("plan", "`plan`")):
        if own in arguments:
            raise UsageError(
                f"{function} takes the tool's own {what}, which a script without pagedbench does not have",
                f"write a function beside it that takes what it needs by name ({_EXAMPLE}) and name that one",
            )
    return KernelCall(
        f"import sys\n\nsys.path.insert(0, {str(file.resolve().parent)!r})\nfrom {file.stem} import {function}",
        _called(function, {name: given.get(name, name) for name in arguments}),
        {"k_new", "v_new"} <= set(arguments),
        traits=declared or Traits(),
        from_file=True,
    )


def library_call(backend: Backend, scenario: Scenario, path: AttnPath) -> KernelCall:
    """The call of a library. UsageError for one that is not known, and for a path that it does not have."""
    builder = _LIBRARIES.get(backend.name)
    if builder is None or not isinstance(backend, LibraryBackend):
        raise UsageError(
            f"repro cannot call {backend.name} without pagedbench",
            f"it knows {', '.join(_LIBRARIES)}, and FILE:FUNCTION",
        )
    return builder(backend, scenario, path)


def _called(function: str, keywords: Mapping[str, str], *positional: str) -> str:
    return f"{function}({', '.join([*positional, *(f'{name}={value}' for name, value in keywords.items())])})"


def _function(backend: LibraryBackend, *names: str) -> tuple[str, Any]:
    """The module at hand, or the first that would do, and what stands under these names in it, or None."""
    found: Any = load(backend.lib.modules).module
    module = backend.lib.modules[0] if found is None else str(found.__name__)
    for name in names:
        found = getattr(found, name, None)
    return module, found


def _argument(function: Any, *names: str) -> str:
    """Which of these names the function has for an argument."""
    return (None if function is None else named(function, *names)) or names[0]


def _taken(function: Any, keywords: dict[str, str]) -> dict[str, str]:
    return keywords if function is None else accepted(function, keywords)


def _new_tokens(scenario: Scenario) -> dict[str, str]:
    return {"k": "k_new", "v": "v_new"} if scenario.batch.append else {}


def _empty_rows(spec: Attention) -> str:
    """FlashAttention-2 and -3 have +inf where this tool has −inf, or the sink."""
    blind = '-float("inf")' if spec.sinks is None else "sinks.double()"
    return f'\nlse = torch.where(lse == float("inf"), {blind}, lse)  # the library\'s word for a row that sees no key'


_LENGTHS = ("cu_seqlens_q", "cu_seqlens_k", "max(query_lens)", "max(total)")


def _flash_attention(backend: LibraryBackend, scenario: Scenario, path: AttnPath, name: str, call: str) -> KernelCall:
    (module, _), traits = _function(backend), backend.traits_for(path)
    return KernelCall(
        f"from {module} import {name}",
        call,
        traits.appends and path is not AttnPath.VARLEN,  # whose keys are gathered beforehand
        traits=traits,
        results=_HEADS_FIRST + _empty_rows(scenario.attention),
    )


def _flash_attention_2(backend: LibraryBackend, scenario: Scenario, path: AttnPath) -> KernelCall:
    spec = scenario.attention
    common = {"softmax_scale": "scale", "causal": f"{spec.causal}", "window_size": f"{kernel_window(spec)}"}
    common |= {} if spec.softcap is None else {"softcap": "softcap"}
    if path is AttnPath.DECODE:
        _, function = _function(backend, name := "flash_attn_with_kvcache")
        lengths = "cache_seqlens" if scenario.batch.append else "total_seqlens"
        paged = {"cache_seqlens": lengths, _argument(function, "block_table", "page_table"): "block_table"}
        more = {"num_splits": f"{spec.num_splits}", "return_softmax_lse": "True"}
        keywords = {**_new_tokens(scenario), **paged, **common, **more}
        return _flash_attention(backend, scenario, path, name, _called(name, keywords, "q", "k_cache", "v_cache"))
    name = "flash_attn_varlen_func"
    keys = ("k", "v") if path is AttnPath.VARLEN else ("k_cache", "v_cache")
    table = {} if path is AttnPath.VARLEN else {"block_table": "block_table"}
    keywords = {**table, **common, "return_attn_probs": "True"}
    return _flash_attention(backend, scenario, path, name, _called(name, keywords, "q", *keys, *_LENGTHS))


def _flash_attention_3(backend: LibraryBackend, scenario: Scenario, path: AttnPath) -> KernelCall:
    spec = scenario.attention
    name = "flash_attn_varlen_func" if path is AttnPath.VARLEN else "flash_attn_with_kvcache"
    _, function = _function(backend, name)
    common = {"softmax_scale": "scale", "causal": f"{spec.causal}", "window_size": f"{kernel_window(spec)}"}
    common |= {} if spec.softcap is None else {"softcap": "softcap"}
    common |= {"num_splits": f"{spec.num_splits}"}
    if spec.sinks is not None:
        common |= {_argument(function, "sinks", "s_aux", "learnable_sink"): "sinks.to(torch.bfloat16)"}
    if path is AttnPath.VARLEN:
        keywords = {**common, _argument(function, "return_attn_probs", "return_softmax_lse"): "True"}
        return _flash_attention(backend, scenario, path, name, _called(name, keywords, "q", "k", "v", *_LENGTHS))
    paged = {
        "cache_seqlens": "cache_seqlens" if scenario.batch.append else "total_seqlens",
        _argument(function, "page_table", "block_table"): "block_table",
    }
    ragged = {}
    if path is AttnPath.PAGED_VARLEN:
        ragged = {"cu_seqlens_q": "cu_seqlens_q", "max_seqlen_q": "max(query_lens)"}
        ragged |= {"cu_seqlens_k_new": "cu_seqlens_q"} if scenario.batch.append else {}
    keywords = {**_new_tokens(scenario), **paged, **ragged, **common, "return_softmax_lse": "True"}
    return _flash_attention(backend, scenario, path, name, _called(name, keywords, "q", "k_cache", "v_cache"))


def _flash_attention_4(backend: LibraryBackend, scenario: Scenario, path: AttnPath) -> KernelCall:
    spec, name = scenario.attention, "flash_attn_varlen_func"
    module, function = _function(backend, name)
    left, right = (None if side == UNLIMITED else side for side in kernel_window(spec))
    keywords = {"cu_seqlens_q": "cu_seqlens_q"}
    if path is AttnPath.VARLEN:
        keywords |= {"cu_seqlens_k": "cu_seqlens_k"}
    else:
        keywords |= {"seqused_k": "total_seqlens", _argument(function, "page_table", "block_table"): "block_table"}
    keywords |= {"max_seqlen_q": "max(query_lens)", "max_seqlen_k": "max(total)", "softmax_scale": "scale"}
    keywords |= {"causal": f"{spec.causal}", "window_size": f"({left}, {right})"}
    keywords |= {"num_splits": f"{max(spec.num_splits, 1)}"}  # its own choice, 0, fails on GPUs that cannot split
    keywords |= {} if spec.softcap is None else {"softcap": "softcap"}
    keywords |= {} if spec.sinks is None else {_argument(function, "learnable_sink", "sinks", "s_aux"): "sinks"}
    keys = ("k", "v") if path is AttnPath.VARLEN else ("k_cache", "v_cache")
    return KernelCall(
        f"from {module} import {name}",
        _called(name, {**keywords, "return_lse": "True"}, "q", *keys),
        False,
        traits=backend.traits_for(path),
        results=_HEADS_FIRST,
    )


def _torch_varlen(backend: LibraryBackend, scenario: Scenario, path: AttnPath) -> KernelCall:
    spec, name = scenario.attention, "varlen_attn"
    _, function = _function(backend, name)
    window = (UNLIMITED, 0) if spec.causal and spec.window_size[0] == UNLIMITED else kernel_window(spec)
    keywords = _taken(
        function,
        {
            "scale": "scale",
            "window_size": f"{window}",
            "is_causal": f"{spec.causal}",
            "enable_gqa": f"{spec.group_size > 1}",
            "return_aux": "AuxRequest(lse=True)",
            **({"num_splits": f"{spec.num_splits}"} if spec.num_splits else {}),
        },
    )
    lengths, keys = list(_LENGTHS), ("k", "v")
    if path is AttnPath.PAGED_VARLEN:
        lengths[1], keys = "None", ("k_cache", "v_cache")
        keywords |= {"seqused_k": "total_seqlens", "block_table": "block_table"}
    expression = _called(name, keywords, "q", *keys, *lengths)
    return _flash_attention(backend, scenario, path, f"AuxRequest, {name}", expression)


_BLOCK_LISTS = """rows_of = [row[: -(-n // block_size)] for row, n in zip(block_table.tolist(), total)]
legal = [[t for t in row if 0 <= t < num_blocks] for row in rows_of]  # below a window an entry may be anything
indices = [t if 0 <= t < num_blocks else legal[b][0] for b, row in enumerate(rows_of) for t in row]
indptr, indices = torch.tensor([0, *map(len, rows_of)]).cumsum(0).int(), torch.tensor(indices).int()
last_len = torch.tensor([n - max(len(row) - 1, 0) * block_size for n, row in zip(total, rows_of)]).int()
"""
_QUERY_LENGTHS = "torch.tensor([0, *query_lens]).cumsum(0).int()"
_WORKSPACE = f"workspace = torch.zeros({WORKSPACE_BYTES >> 20} << 20, dtype=torch.uint8, device=device)\n"
_INFER_KERNELS = {"flashinfer": "fa2", "flashinfer-fa3": "fa3", "flashinfer-cuda-cores": "auto"}


def _flashinfer(backend: LibraryBackend, scenario: Scenario, path: AttnPath) -> KernelCall:
    spec, hnd = scenario.attention, scenario.cache.layout.order == "HND"
    kernels, single = _INFER_KERNELS[backend.name], path is AttnPath.DECODE and set(scenario.batch.query_lens) == {1}
    options = {"backend": f'"{kernels}"'}
    sizes = ("heads", "kv_heads", "dim")
    blocks = ("indptr", "indices", "last_len")
    causal = {"causal": f"{spec.causal}"}
    if path is AttnPath.VARLEN:
        kind, keywords = "BatchPrefillWithRaggedKVCacheWrapper", {"head_dim_vo": "dim_v", **causal}
        positional: tuple[str, ...] = (_QUERY_LENGTHS, "torch.tensor([0, *total]).cumsum(0).int()", *sizes)
    elif single and kernels != "fa3":
        kind, keywords = "BatchDecodeWithPagedKVCacheWrapper", {}
        options = {"use_tensor_cores": f"{kernels == 'fa2'}"} | (options if kernels == "fa2" else {})
        positional = (*blocks, *sizes, "block_size")
    else:
        kind, keywords = "BatchPrefillWithPagedKVCacheWrapper", causal
        positional = (_QUERY_LENGTHS, *blocks, *sizes, "block_size")
    _, plan = _function(backend, kind, "plan")
    shared = {"window_left": f"{spec.window_size[0]}", "logits_soft_cap": "softcap or 0.0", "sm_scale": "scale"}
    shared |= dict.fromkeys(("q_data_type", "kv_data_type", "o_data_type"), "dtype")
    shared |= {"disable_split_kv": "True"} if spec.num_splits == 1 else {}
    lists = "" if path is AttnPath.VARLEN else _BLOCK_LISTS
    order = '"HND"' if hnd and path is not AttnPath.VARLEN else '"NHD"'
    made = "wrapper = " + _called(f"flashinfer.{kind}", options, "workspace", order)
    planned = _called("wrapper.plan", {**keywords, **_taken(plan, shared)}, *positional)
    pools = "(k_cache.transpose(1, 2), v_cache.transpose(1, 2))" if hnd else "(k_cache, v_cache)"
    keys = ("k", "v") if path is AttnPath.VARLEN else (pools,)
    queries = "q.flatten(0, 1)" if path is AttnPath.DECODE else "q"
    return KernelCall(
        "import flashinfer",
        _called("wrapper.run", {"return_lse": "True"}, queries, *keys),
        False,
        traits=backend.traits_for(path),
        before=f"{lists}{_WORKSPACE}{made}\n{planned}",
        results=_BASE_2,
    )


_LIBRARIES: Mapping[str, Callable[[LibraryBackend, Scenario, AttnPath], KernelCall]] = {
    "flash-attn": _flash_attention_2,
    "flash-attn-3": _flash_attention_3,
    "fa3-fwd": _flash_attention_3,
    "flash-attn-4": _flash_attention_4,
    "torch-varlen": _torch_varlen,
    **dict.fromkeys(_INFER_KERNELS, _flashinfer),
}
