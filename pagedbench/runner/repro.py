"""Repro: a failure as one script that needs torch and the library alone, ready for a bug report upstream.

The script makes its own numbers, lays them out in blocks with NaN around them, calls the library, and compares every
row with a dense fp64 answer, and memory with what it must hold after the call. How a kernel is called is in
`repro_calls.py`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable

from pagedbench.backends.base import Traits
from pagedbench.checks.budget import SLACK, UNIT, score_unit
from pagedbench.errors import UsageError
from pagedbench.layout.batch import BatchLayout
from pagedbench.runner.repro_calls import KernelCall
from pagedbench.scenario.model import Attention, Scenario
from pagedbench.words import AttnPath

_ARRAYS = ("cu_seqlens_q", "cu_seqlens_k", "cache_seqlens", "total_seqlens", "sinks")
_PAGED = ("k_cache", "v_cache", "k_new", "v_new", "block_table")

_ANYWAY = "else send the scenario itself: `pagedbench check FILE` shows the failure"


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
    if not scenario.batch.size:
        raise UsageError(f"{scenario.name} has no sequence, so that a script has nothing to compare", _ANYWAY)
    if path is AttnPath.DECODE and layout.uniform_query_len is None:
        raise UsageError(f"decode cannot take {scenario.name}: its query lengths differ", "choose another --path")
    parts = [
        '"""' + textwrap.fill(title, 110),
        "\n"
        + textwrap.fill(f"Needs torch and {_kernel(call)}; exit 1 where it is wrong; {reach(scenario)}.", 110)
        + '"""\n',
        call.imports,
        "\nimport torch\n" if "import sys" in call.imports else "import torch\n",
        _facts(scenario, layout, call),
        _numbers(scenario, layout, call),
        _arrays(scenario, path, call),
        _memory(scenario, path, call),
        *([call.before] if call.before else []),
        (_CALL if call.from_file else "result = {expression}").format(expression=call.expression),
        _judge(scenario, call),
    ]
    return "\n".join(parts)


def _kernel(call: KernelCall) -> str:
    return "the kernel's file, with what that imports" if call.from_file else "the library alone"


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
    if call.from_file:  # perhaps on a CPU: see `choose_device`
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


def pool(width, strides):  # NaN, with a block of NaN before it and behind it
    shape, block = (num_blocks, block_size, kv_heads, width), max(strides)
    size = sum((n - 1) * stride for n, stride in zip(shape, strides)) + 1
    return torch.full((size + 2 * block,), float("nan"), dtype=dtype, device=device).as_strided(shape, strides, block)


k_cache, v_cache = pool(dim, {k_stride}), pool(dim_v, {v_stride})
held = torch.cat([at[:n][at[:n] >= 0] for at, n in zip(slots, {stored})]).to(device)  # -1: given up, unseen
for cache, every in ((k_cache, k_all), (v_cache, v_all)):
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
    if call.passes("out"):
        lines.append('out = torch.full((sum(query_lens), heads, dim_v), float("nan"), dtype=dtype, device=device)')
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
    """Every row against what the roundings of its own terms explain, as the checks of accuracy do, with half as much
    again."""
    spec, traits = scenario.attention, call.traits
    return _JUDGE.format(
        results=call.results,
        reference=_reference(scenario),
        unit=UNIT[spec.dtype],
        unit_p=UNIT[traits.p_dtype or spec.kv_dtype] + traits.exp_error,
        of_scores=_of_scores(score_unit(spec, traits)),
        room=_lse_room(spec, traits),
    )


def _of_scores(unit: float) -> str:
    """The term for scores that are coarser than in fp32, which is nothing beside the others: the largest of a row."""
    highest = "torch.nn.functional.pad(s.abs().where(s.isfinite(), 0.0), (0, 1), value=1.0).amax(-1).T"
    return f" + {unit:.3g} * {highest} * (spread + size)" if unit > UNIT["float32"] else ""


def _lse_room(spec: Attention, traits: Traits) -> str:
    """About the check's budget of an LSE, with half as much again, from `needed` and the number of keys `n`: a row's
    largest score, which it is made of, is near its LSE."""
    fp32 = UNIT["float32"]
    of_scores, of_sum = 2 * fp32 + SLACK * score_unit(spec, traits), fp32 / 16
    room = f"{1.5 * of_scores:.3g} * (1 + needed.abs()) + {1.5 * of_sum:.3g} * n**0.5"
    if traits.sum_of_rounded_weights:
        room += f" + {1.5 * SLACK * UNIT[traits.p_dtype or spec.dtype]:.3g}"
    return room + (f" + {1.5 * traits.exp_error:.3g}" if traits.exp_error else "")


_CALL = """try:
    result = {expression}
except SystemExit as ended:
    raise SystemExit(f"the kernel ended the program by sys.exit({{ended.code}})  WRONG") from None"""

_JUDGE = """{results}
changed = [name for name, t in memory.items() if not torch.equal(t.nan_to_num(9), after[name].nan_to_num(9))]
wrong = [f"{{name}} is not what it must be after the call" for name in changed]
wrong += [f"the output is {{out.dtype}}, needed {{dtype}}"] if out.dtype != dtype else []
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
    size, spread = right.norm(dim=-1), torch.einsum("hqk,khd->qh", p**2, v**2).sqrt()
    room = {unit} * size + {unit_p} * spread.maximum(size){of_scores}
    off = {{"output": (mine - right).norm(dim=-1) / (3 * room + 1e-9)}}
    if lse is not None:
        told, needed = lse.split(query_lens)[b], torch.logsumexp(s, -1).T
        off["LSE"] = torch.where(told == needed, 0.0, (told - needed).abs() / ({room}))
    for what, rows_off in off.items():
        worst = float(rows_off.max()) if m else 0.0
        wrong += [] if worst <= 1 else [b]
        print(f"sequence {{b}}, {{n}} keys: the {{what}} is off by {{worst:.3g}} times what rounding explains", end="")
        print("" if worst <= 1 else "  WRONG")
raise SystemExit(1 if wrong else print("nothing wrong in this one call; others, or other batches, are not tried"))
"""
