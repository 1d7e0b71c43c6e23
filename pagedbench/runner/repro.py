"""Repro: a failure as one script that needs torch and the library alone, ready for a bug report upstream.

The script makes its own numbers, lays them out in blocks with NaN around them, calls the library, and compares every
row with a dense fp64 answer, and memory with what it must hold after the call. It knows how to call user functions and
the libraries of `library_call`; anything else is refused.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pagedbench.backends.base import Traits
from pagedbench.checks.budget import SLACK, UNIT, score_unit
from pagedbench.errors import UsageError
from pagedbench.layout.batch import BatchLayout
from pagedbench.scenario.model import Attention, Scenario
from pagedbench.words import AttnPath

_VARLEN_ARGUMENTS = "q, k, v, cu_seqlens_q, cu_seqlens_k, max(query_lens), max(total), softmax_scale=scale"
_KVCACHE_ARGUMENTS = "q, k_cache, v_cache, {new}cache_seqlens=cache_seqlens, {table}=block_table, softmax_scale=scale"


_ARRAYS = ("cu_seqlens_q", "cu_seqlens_k", "cache_seqlens", "total_seqlens", "sinks")
_PAGED = ("k_cache", "v_cache", "k_new", "v_new", "block_table")

_EXAMPLE = "q, k_cache, v_cache, block_table, softmax_scale, ..."
_ANYWAY = "else send the scenario itself: `pagedbench check FILE` shows the failure"


@dataclass(frozen=True)
class KernelCall:
    """How a script calls a kernel: the import, the expression, and whether it appends the new tokens itself. Of a
    function, whose second result is the LSE as this tool has it, also what it is declared to do."""

    imports: str
    expression: str
    appends: bool
    declared: Traits | None = None

    def passes(self, name: str) -> bool:
        """Whether the variable `name` is among the arguments."""
        return re.search(rf"\b{name}[,)]", self.expression) is not None


def library_call(backend: str, scenario: Scenario, path: AttnPath) -> KernelCall:
    """The call of a known library. UsageError for one that is not known."""
    modules = {"flash-attn": ("flash_attn", "block_table"), "flash-attn-3": ("flash_attn_interface", "page_table")}
    if backend not in modules or path is AttnPath.PAGED_VARLEN:
        known = ", ".join(modules)
        raise UsageError(
            f"repro cannot call {backend}:{path} without pagedbench", f"it knows {known}, and FILE:FUNCTION"
        )
    module, table = modules[backend]
    spec = scenario.attention
    options = [f"causal={spec.causal}", f"window_size={spec.window_size}"]
    if spec.softcap is not None:
        options.append("softcap=softcap")
    if backend == "flash-attn-3":
        options.append(f"num_splits={spec.num_splits}")
    if path is AttnPath.VARLEN:
        return KernelCall(
            f"from {module} import flash_attn_varlen_func",
            f"flash_attn_varlen_func({_VARLEN_ARGUMENTS}, {', '.join(options)})",
            False,
        )
    new = "k=k_new, v=v_new, " if scenario.batch.append else ""
    arguments = _KVCACHE_ARGUMENTS.format(new=new, table=table)
    return KernelCall(
        f"from {module} import flash_attn_with_kvcache",
        f"flash_attn_with_kvcache({arguments}, {', '.join(options)})",
        scenario.batch.append,
    )


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
        "out": "None",
    }
    for own, what in (("call", "`call`"), ("plan", "`plan`")):
        if own in arguments:
            raise UsageError(
                f"{function} takes the tool's own {what}, which a script without pagedbench does not have",
                f"write a function beside it that takes what it needs by name ({_EXAMPLE}) and name that one",
            )
    passed = ", ".join(f"{name}={given.get(name, name)}" for name in arguments)
    imports = f"import sys\n\nsys.path.insert(0, {str(file.resolve().parent)!r})\nfrom {file.stem} import {function}"
    return KernelCall(
        imports, f"{function}({passed})", {"k_new", "v_new"} <= set(arguments), declared=declared or Traits()
    )


def reach(scenario: Scenario) -> str:
    """What the script tries of a scenario, and what does not show in that."""
    step = f", the first of the scenario's {scenario.steps} steps" if scenario.steps > 1 else ""
    return (
        f"the script makes one call{step}: what takes several (UNSTABLE, steps, a replayed graph) or the mean of all "
        "rows (a lean) to see does not show in it"
    )


def script(scenario: Scenario, layout: BatchLayout, path: AttnPath, call: KernelCall, title: str) -> str:
    """The whole script as text. UsageError for what it cannot say (fp8, ALiBi, overridden arrays, padding rows), and
    for a batch that cannot go through decode."""
    _refuse(scenario)
    if path is AttnPath.DECODE and layout.uniform_query_len is None:
        raise UsageError(f"decode cannot take {scenario.name}: its query lengths differ", "choose another --path")
    parts = [
        '"""' + textwrap.fill(title, 110),
        "\n"
        + textwrap.fill(f"Needs torch and the kernel alone; exit 1 where it is wrong; {reach(scenario)}.", 110)
        + '"""\n',
        call.imports,
        "\nimport torch\n" if "import sys" in call.imports else "import torch\n",
        _facts(scenario, layout, call),
        _numbers(scenario, layout, call),
        _arrays(scenario, path, call),
        _memory(scenario, path, call),
        _CALL.format(expression=call.expression),
        _judge(scenario, call),
    ]
    return "\n".join(parts)


def _refuse(scenario: Scenario) -> None:
    spec = scenario.attention
    refusals = (
        ("fp8", "float8" in spec.kv_dtype or "float8" in spec.q_dtype, "give kv_dtype and q_dtype 16 bits"),
        ("ALiBi", spec.alibi_slopes is not None, "take attention.alibi out, as `pagedbench shrink` tries"),
        ("overridden arrays", bool(scenario.override.values), "take `override` out"),
        ("padding rows", scenario.batch.padding_rows > 0, "take batch.padding_rows out, as `pagedbench shrink` tries"),
    )
    for what, there, without in refusals:
        if there:
            raise UsageError(f"repro cannot write a script with {what}", f"if it fails without: {without}; {_ANYWAY}")


def _facts(scenario: Scenario, layout: BatchLayout, call: KernelCall) -> str:
    spec = scenario.attention
    index = _index_dtypes(scenario)
    lines = [
        'device = "cuda" if torch.cuda.is_available() else "cpu"',
        f"torch.manual_seed({scenario.inputs.seed})",
        f"query_lens, cached_lens = {list(scenario.batch.query_lens)}, {list(scenario.batch.cached_lens)}",
        f"total = {layout.total_seqlens.tolist()}  # keys that the step attends to",
        f"block_table = torch.tensor({layout.block_table.tolist()}, dtype=torch.{index('block_table')}, device=device)",
        f"num_blocks, block_size, heads, kv_heads = "
        f"{layout.num_blocks}, {layout.block_size}, {spec.num_heads}, {spec.num_kv_heads}",
        f"dim, dim_v, dtype = {spec.head_dim}, {spec.head_dim_v}, torch.{spec.dtype}",
        f"scale, causal, window, softcap = {spec.softmax_scale!r}, {spec.causal}, {spec.window_size}, {spec.softcap}",
    ]
    if call.declared is not None:  # a function, perhaps on a CPU: see `choose_device`
        lines.append("torch.logsumexp(torch.zeros(2), 0)  # the first call, on many threads, may be off by 4e-5")
    if spec.sinks is not None:
        lines.append(f"sinks = torch.tensor({list(spec.sinks)}, device=device)")
    elif call.passes("sinks"):  # a function is passed all that it takes
        lines.append("sinks = None")
    if call.passes("num_splits"):
        lines.append(f"num_splits = {spec.num_splits}")
    return "\n".join([*lines, "", ""])


def _numbers(scenario: Scenario, layout: BatchLayout, call: KernelCall) -> str:
    """One random row a slot; the cache holds NaN but for the keys that are in it before the call."""
    how = scenario.inputs
    stored = "cached_lens" if _appends(scenario, call) else "total"
    k_stride, v_stride = _strides(scenario, layout)
    return f"""def rows(n, heads, dim, scale, offset):
    return (torch.randn(n, heads, dim) * scale + offset).to(dtype).to(device)


q = rows({layout.total_q}, heads, dim, {how.q.scale}, {how.q.offset})
k_all = rows(num_blocks * block_size, kv_heads, dim, {how.k.scale}, {how.k.offset})
v_all = rows(num_blocks * block_size, kv_heads, dim_v, {how.v.scale}, {how.v.offset})
slots = []  # of each sequence's keys
for b, n in enumerate(total):
    key = torch.arange(n)
    slots.append(block_table.cpu()[b, key // block_size].long() * block_size + key % block_size)
k_cache = torch.empty_strided((num_blocks, block_size, kv_heads, dim), {k_stride}, dtype=dtype, device=device)
v_cache = torch.empty_strided((num_blocks, block_size, kv_heads, dim_v), {v_stride}, dtype=dtype, device=device)
held = torch.cat([at[:n][at[:n] >= 0] for at, n in zip(slots, {stored})]).to(device)  # -1: given up, unseen
for cache, every in ((k_cache, k_all), (v_cache, v_all)):
    cache.fill_(float("nan"))
    cache[held // block_size, held % block_size] = every[held]
"""


def _strides(scenario: Scenario, layout: BatchLayout) -> tuple[tuple[int, ...], tuple[int, ...]]:
    from pagedbench.tensors.pool import placings
    from pagedbench.tensors.prepare import pool_shape

    k, v = placings(pool_shape(scenario, layout))
    return k.stride, v.stride


def _appends(scenario: Scenario, call: KernelCall) -> bool:
    return call.appends and scenario.batch.append


def _index_dtypes(scenario: Scenario) -> Callable[[str], str]:
    return lambda array: str(scenario.attention.index_dtype.get(array, "int32"))


def _arrays(scenario: Scenario, path: AttnPath, call: KernelCall) -> str:
    """The arguments that a call may name."""
    index = _index_dtypes(scenario)
    made = {
        "cache_seqlens": f"torch.tensor(cached_lens, dtype=torch.{index('cache_seqlens')}, device=device)",
        "total_seqlens": f"torch.tensor(total, dtype=torch.{index('cache_seqlens')}, device=device)",
        **{
            array: f"torch.tensor([0, *{lens}], device=device).cumsum(0).to(torch.{index(array)})"
            for array, lens in (("cu_seqlens_q", "query_lens"), ("cu_seqlens_k", "total"))
        },
    }
    lines = [f"{array} = {how}" for array, how in made.items() if call.passes(array)]
    if path is AttnPath.VARLEN:
        lines.append("k, v = (torch.cat([every[at.to(device)] for at in slots]) for every in (k_all, v_all))")
    if _appends(scenario, call):
        lines.append("new = torch.cat([at[n:] for at, n in zip(slots, cached_lens)]).to(device)")
        batched = ".view(len(query_lens), -1, *every.shape[1:])" if path is AttnPath.DECODE else ""
        lines.append(f"k_new, v_new = (every[new]{batched} for every in (k_all, v_all))")
    elif call.appends:
        lines.append("k_new = v_new = None  # nothing is appended")
    lines.append("queries = q.clone().split(query_lens)")
    if path is AttnPath.DECODE:
        lines.append("q = q.view(len(query_lens), -1, heads, dim)")
    return "\n".join(lines)


def _memory(scenario: Scenario, path: AttnPath, call: KernelCall) -> str:
    """What memory must hold after the call."""
    names = ("q", *(("k", "v") if path is AttnPath.VARLEN else _PAGED), *_ARRAYS)
    none = {"sinks": scenario.attention.sinks is None, **dict.fromkeys(("k_new", "v_new"), not scenario.batch.append)}
    passed = [name for name in names if call.passes(name) and not none.get(name)]
    lines = [
        "memory = {" + ", ".join(f"{name!r}: {name}" for name in passed) + "}",
        "after = {name: t.clone() for name, t in memory.items()}",
    ]
    if _appends(scenario, call):
        lines.append("after['k_cache'][new // block_size, new % block_size] = k_all[new]")
        lines.append("after['v_cache'][new // block_size, new % block_size] = v_all[new]")
    return "\n".join(lines)


def _reference(scenario: Scenario) -> str:
    """The mask and score lines that this scenario needs."""
    spec = scenario.attention
    left, right = spec.window_size
    lines = ["    seen = key <= own" if spec.causal else "    seen = torch.ones(m, n, dtype=torch.bool)"]
    if left >= 0:
        lines.append(f"    seen &= key >= own - {left}")
    if right >= 0 and not spec.causal:
        lines.append(f"    seen &= key <= own + {right}")
    if spec.softcap is not None:
        lines.append("    s = softcap * torch.tanh(s / softcap)")
    lines.append('    s = s.masked_fill(~seen.to(device), -float("inf"))')
    if spec.sinks is not None:
        lines.append("    s = torch.cat([s, sinks.double()[:, None, None].expand(-1, m, 1)], -1)")
    return "\n".join(lines)


def _judge(scenario: Scenario, call: KernelCall) -> str:
    """Every row against what the roundings of its own terms explain, as the check of accuracy does, with half as much
    again: a script has no traits of a library to go by."""
    reference, unit = _reference(scenario), UNIT[scenario.attention.dtype]
    if call.declared is None:
        return _JUDGE.format(reference=reference, unit=unit, results=_LIBRARYS, judge_lse="") + _END
    judge_lse = _JUDGE_LSE.format(room=_lse_room(scenario.attention, call.declared))
    return _JUDGE.format(reference=reference, unit=unit, results=_FUNCTIONS, judge_lse=judge_lse) + _END


def _lse_room(spec: Attention, traits: Traits) -> str:
    """About the check's budget of an LSE, with half as much again, from `needed` and the number of keys `n`: a row's
    largest score, which it is made of, is near its LSE."""
    fp32 = UNIT["float32"]
    of_scores, of_sum = 2 * fp32 + SLACK * score_unit(spec, traits), fp32 / 16
    room = f"{1.5 * of_scores:.3g} * (1 + needed.abs()) + {1.5 * of_sum:.3g} * n**0.5"
    if traits.sum_of_rounded_weights:
        room += f" + {1.5 * SLACK * UNIT[traits.p_dtype or spec.dtype]:.3g}"
    return room


_CALL = """try:
    result = {expression}
except SystemExit as ended:
    raise SystemExit(f"the kernel ended the program by sys.exit({{ended.code}})  WRONG") from None"""

_LIBRARYS = "out = result[0] if isinstance(result, tuple) else result"

_FUNCTIONS = """out, lse = result if isinstance(result, (tuple, list)) and len(result) == 2 else (result, None)
for name, told in (("output", out), ("LSE", lse)):
    if not isinstance(told, torch.Tensor) and (name == "output" or told is not None):
        raise SystemExit(f"the {name} is a {type(told).__name__}, needed a tensor  WRONG")
    if told is not None and not told.is_floating_point():
        raise SystemExit(f"the {name} is {told.dtype}, which is no float  WRONG")
lse = None if lse is None else lse.reshape(-1, heads).double()"""

_JUDGE_LSE = """    if lse is not None and m:
        told, needed = lse.split(query_lens)[b], torch.logsumexp(s, -1).T
        room = {room}
        far = float(torch.where(told == needed, 0.0, (told - needed).abs() / room).max())
        if not far <= 1:
            wrong += [b]
            print(f"sequence {{b}}: the LSE is off by up to {{far:.3g}} times what rounding explains  WRONG")
"""

_JUDGE = """{results}
changed = [name for name, t in memory.items() if not torch.equal(t.nan_to_num(9), after[name].nan_to_num(9))]
wrong = [f"{{name}} is not what it must be after the call" for name in changed]
if out.dtype != dtype:
    wrong += [f"the output is {{out.dtype}}, needed {{dtype}}"]
for what in wrong:
    print(f"{{what}}  WRONG")
out = out.reshape(-1, heads, dim_v).double()
for b, (n, m, mine) in enumerate(zip(total, query_lens, out.split(query_lens))):
    k, v = (every[slots[b].to(device)].double().repeat_interleave(heads // kv_heads, 1) for every in (k_all, v_all))
    s = torch.einsum("qhd,khd->hqk", queries[b].double(), k) * scale
    own, key = torch.arange(n - m, n)[:, None], torch.arange(n)
{reference}
    p = torch.softmax(s, -1)[..., :n].nan_to_num()  # rows that see no key are zero
    right = torch.einsum("hqk,khd->qhd", p, v)
    rounding = {unit} * (right.norm(dim=-1) + torch.einsum("hqk,khd->qh", p**2, v**2).sqrt())
    error = float(((mine - right).norm(dim=-1) / (rounding + 1e-9)).max()) if m else 0.0
    wrong += [] if error <= 3 else [b]
    word = "" if error <= 3 else "  WRONG"
    print(f"sequence {{b}}, {{n}} keys: worst row off by {{error:.3g}} times its rounding{{word}}")
{judge_lse}"""

_END = """\
raise SystemExit(1 if wrong else print("nothing wrong in this one call; others, or other batches, are not tried"))
"""
