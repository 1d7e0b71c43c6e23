"""A script that stands alone: it runs without pagedbench, fails for a wrong kernel and not for a right one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pagedbench.backends.base import Traits
from pagedbench.backends.registry import find_backend
from pagedbench.errors import UsageError
from pagedbench.layout.build import build_layout
from pagedbench.runner.repro import script
from pagedbench.runner.repro_calls import KernelCall, function_call, library_call
from pagedbench.scenario.loader import load_scenarios
from pagedbench.scenario.model import PoolLayout, Scenario
from pagedbench.words import AttnPath
from tests.tensors.cells import docs_decode, scenario

KERNEL = '''
import torch


def my_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, softmax_scale, causal, window_size, softcap=None, sinks=None):
    """Dense attention, sequence by sequence, in fp32."""
    out = torch.zeros(*q.shape[:2], v.shape[-1], dtype=q.dtype)
    for b in range(len(cu_seqlens_q) - 1):
        rows, keys = slice(cu_seqlens_q[b], cu_seqlens_q[b + 1]), slice(cu_seqlens_k[b], cu_seqlens_k[b + 1])
        kb, vb = (t[keys].float().repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
        m, n = len(q[rows]), len(kb)
        s = torch.einsum("qhd,khd->hqk", q[rows].float(), kb) * softmax_scale
        if softcap is not None:
            s = softcap * torch.tanh(s / softcap)
        gap = torch.arange(n - m, n)[:, None] - torch.arange(n)
        hidden = (gap < 0) if causal else torch.zeros_like(gap, dtype=torch.bool)
        if window_size[0] >= 0:
            hidden |= gap > window_size[0]
        s = s.masked_fill(hidden, -float("inf"))
        if sinks is not None:
            s = torch.cat([s, sinks[:, None, None].expand(-1, m, 1)], -1)
        out[rows] = torch.einsum("hqk,khd->qhd", torch.softmax(s, -1)[..., :n].nan_to_num(), vb).to(q.dtype)
    return out


def wrong_varlen(**arguments):
    return my_varlen(**{**arguments, "softmax_scale": 2 * arguments["softmax_scale"]})
'''
ARGUMENTS = ["q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "softmax_scale", "causal", "window_size"]


def start(tmp_path: Path, wanted: Scenario, function: str, more: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    (tmp_path / "kernel.py").write_text(KERNEL)
    call = function_call(tmp_path / "kernel.py", function, [*ARGUMENTS, *more])
    file = tmp_path / f"repro_{function}.py"
    file.write_text(script(wanted, build_layout(wanted), AttnPath.VARLEN, call, "A title."))
    return subprocess.Popen([sys.executable, str(file)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


CASES = [
    (docs_decode(), ()),
    (scenario((5, 3, 0, 1), (2, 33, 12, 20), append=False), ()),
    (scenario((9, 1), (0, 40), attention={"window_size": (6, 0), "softcap": 2.0}), ("softcap",)),
    (scenario(attention={"sinks": (1.0, 0.0, 3.0, -1.0)}, cache={"layout": PoolLayout(order="HND")}), ("sinks",)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("wanted", "more"), CASES, ids=range(len(CASES)))
def test_a_right_kernel_exits_0_and_a_wrong_one_1(tmp_path: Path, wanted: Scenario, more: tuple[str, ...]) -> None:
    right, wrong = (start(tmp_path, wanted, function, more) for function in ("my_varlen", "wrong_varlen"))
    told = right.communicate(timeout=100)[0]
    assert right.returncode == 0, told
    assert told.splitlines()[-1].startswith("nothing wrong in this one call"), "what it cannot show, it says"
    told = wrong.communicate(timeout=100)[0]
    assert wrong.returncode == 1, told
    assert "WRONG" in told


DECODE_KERNEL = '''
import torch


def my_decode(q, k_cache, v_cache, k_new, v_new, block_table, cache_seqlens, softmax_scale, sinks, alibi_slopes):
    """Appends and attends in fp32; returns the output and the LSE."""
    (batch, m, heads), size, group = q.shape[:3], k_cache.shape[1], q.shape[2] // k_cache.shape[2]
    out, lse = torch.zeros_like(q), torch.full(q.shape[:3], -float("inf"))
    for b in range(batch):
        n = int(cache_seqlens[b]) + (m if k_new is not None else 0)
        key = torch.arange(n)
        block, offset = block_table[b].long()[key // size], key % size
        if k_new is not None:
            k_cache[block[n - m:], offset[n - m:]] = k_new[b]
            v_cache[block[n - m:], offset[n - m:]] = v_new[b]
        kb, vb = (pool[block, offset].float().repeat_interleave(group, 1) for pool in (k_cache, v_cache))
        s = torch.einsum("qhd,khd->hqk", q[b].float(), kb) * softmax_scale
        s = s.masked_fill(key > torch.arange(n - m, n)[:, None], -float("inf"))
        lse[b] = torch.logsumexp(s, -1).T
        out[b] = torch.einsum("hqk,khd->qhd", torch.softmax(s, -1).nan_to_num(), vb).to(q.dtype)
    return out, lse


def lse_decode(**arguments):
    out, lse = my_decode(**arguments)
    return out, lse / 0.6931


def query_decode(**arguments):
    result = my_decode(**arguments)
    arguments["q"][0, 0, 0, 0] += 1
    return result


def stray_decode(**arguments):
    result = my_decode(**arguments)
    arguments["v_cache"][-1, -1] = 0
    return result


def one_head_decode(**arguments):
    out, lse = my_decode(**arguments)
    out[-1, :, -1] *= 1.03
    return out, lse


def slightly_off_lse_decode(**arguments):
    out, lse = my_decode(**arguments)
    return out, lse + 5e-4


def rounded_lse_decode(**arguments):
    out, lse = my_decode(**arguments)
    return out, lse.bfloat16().float()


def new_tokens_decode(**arguments):
    result = my_decode(**arguments)
    arguments["k_new"].mul_(2)
    return result


def lengths_decode(total_seqlens, **arguments):
    total_seqlens += 1
    return my_decode(**arguments)


def fp32_decode(**arguments):
    out, lse = my_decode(**arguments)
    return out.float(), lse


def no_lse_decode(**arguments):
    return 1.1 * my_decode(**arguments)[0], None


def list_decode(**arguments):
    out, lse = my_decode(**arguments)
    return [1.1 * out, lse]


def alone_decode(**arguments):
    return [my_decode(**arguments)[0]]


def int_lse_decode(**arguments):
    out, lse = my_decode(**arguments)
    return out, lse.int()


def given_memory_decode(out, **arguments):
    out.copy_(my_decode(**arguments)[0].view_as(out))
    return out


def narrow_decode(**arguments):
    return my_decode(**arguments)[0][..., :1]


def exiting_decode(**arguments):
    raise SystemExit(0)
'''
DECODE_ARGUMENTS = [
    "q", "k_cache", "v_cache", "k_new", "v_new", "block_table", "cache_seqlens", "softmax_scale", "sinks",
    "alibi_slopes",
]  # fmt: skip


def told_by(tmp_path: Path, wanted: Scenario, function: str, declared: Traits | None = None) -> tuple[int, str]:
    """Exit code and words of the script for a function of `DECODE_KERNEL`."""
    (tmp_path / "kernel.py").write_text(DECODE_KERNEL)
    more = {"lengths_decode": ["total_seqlens"], "given_memory_decode": ["out"]}.get(function, [])
    call = function_call(tmp_path / "kernel.py", function, [*DECODE_ARGUMENTS, *more], declared)
    file = tmp_path / "repro.py"
    file.write_text(script(wanted, build_layout(wanted), AttnPath.DECODE, call, "A title."))
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=False, timeout=100)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("append", [True, False])
def test_a_function_may_take_what_the_scenario_does_not_have(tmp_path: Path, append: bool) -> None:
    code, told = told_by(tmp_path, scenario((1, 1), (5, 0), append=append), "my_decode")
    assert code == 0, told


@pytest.mark.slow
def test_a_function_is_given_memory_for_its_output(tmp_path: Path) -> None:
    code, told = told_by(tmp_path, docs_decode(), "given_memory_decode")
    assert code == 0, told


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("lse_decode", "the LSE is off by"),
        ("query_decode", "q is not what it must be"),
        ("stray_decode", "v_cache is not what it must be"),
        ("one_head_decode", "sequence 2, 71 keys: the output is off by"),
        ("slightly_off_lse_decode", "the LSE is off by"),
        ("rounded_lse_decode", "the LSE is off by"),
        ("new_tokens_decode", "k_new is not what it must be"),
        ("lengths_decode", "total_seqlens is not what it must be"),
        ("fp32_decode", "the output is torch.float32, needed torch.bfloat16"),
        ("no_lse_decode", "sequence 2, 71 keys: the output is off by"),
        ("list_decode", "sequence 2, 71 keys: the output is off by"),
        ("alone_decode", "the output is a list, needed a tensor"),
        ("int_lse_decode", "the LSE is torch.int32, which is no float"),
        ("narrow_decode", "the output has the shape (3, 1, 4, 1)"),
        ("exiting_decode", "the kernel ended the program by sys.exit(0)"),
    ],
)
def test_what_is_wrong_beside_the_output_or_in_few_rows_of_it_is_shown(
    tmp_path: Path, function: str, words: str
) -> None:
    code, told = told_by(tmp_path, docs_decode(), function)
    assert code == 1, told
    assert any(words in line and "WRONG" in line for line in told.splitlines()), told


@pytest.mark.slow
def test_an_lse_may_be_as_far_off_as_the_kernel_is_declared_to_compute(tmp_path: Path) -> None:
    code, told = told_by(tmp_path, docs_decode(), "slightly_off_lse_decode", Traits(sum_of_rounded_weights=True))
    assert code == 0, told


def test_a_script_of_the_first_of_several_steps_says_so() -> None:
    wanted = scenario(steps=4)
    text = script(wanted, build_layout(wanted), AttnPath.DECODE, KernelCall("", "f(q)", False), "A title.")
    assert "one call, the first of the scenario's 4 steps" in " ".join(text.split('"""')[1].split())


def test_a_function_is_passed_the_scenarios_number_of_splits() -> None:
    wanted = scenario(attention={"num_splits": 3})
    call = function_call(Path("kernel.py"), "f", ["q", "num_splits"])
    assert "\nnum_splits = 3\n" in script(wanted, build_layout(wanted), AttnPath.DECODE, call, "A title.")


def test_a_library_is_called_by_its_own_names() -> None:
    call = library_call(find_backend("flash-attn-3"), docs_decode(), AttnPath.DECODE)
    assert call.imports == "from flash_attn_interface import flash_attn_with_kvcache"
    assert "page_table=block_table" in call.expression
    assert call.appends
    assert (
        "block_table=block_table" in library_call(find_backend("flash-attn"), docs_decode(), AttnPath.DECODE).expression
    )


def test_a_script_has_few_lines_and_is_valid_python() -> None:
    (wanted,) = load_scenarios(["docs-decode"])
    text = script(
        wanted,
        build_layout(wanted),
        AttnPath.DECODE,
        library_call(find_backend("flash-attn-3"), wanted, AttnPath.DECODE),
        "T",
    )
    compile(text, "repro.py", "exec")
    assert sum(bool(line.strip()) for line in text.splitlines()) <= 70
    assert "import pagedbench" not in text


@pytest.mark.parametrize("backend", ["triton", "torch"])
def test_a_backend_that_needs_the_tool_is_refused(backend: str) -> None:
    with pytest.raises(UsageError, match="without pagedbench"):
        library_call(find_backend(backend), docs_decode(), AttnPath.DECODE)


def test_what_a_script_cannot_say_is_refused() -> None:
    padded = scenario((1, 1), (5, 0), padding_rows=1, cache={"trash_block": True})
    with pytest.raises(UsageError, match="padding rows"):
        script(padded, build_layout(padded), AttnPath.DECODE, KernelCall("", "", False), "")
