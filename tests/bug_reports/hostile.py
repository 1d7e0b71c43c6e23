"""Kernels that break manners rather than mathematics: the right answer in a wrong form, or right with side effects.

Given to pagedbench as a user would: `--backend hostile.py:wrong_dtype_decode`.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from typing import Any

import torch

import pagedbench

calls: dict[str, int] = {}
kept: list[object] = []


def attention(call: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Right: `(total_q, num_heads, head_dim_v)` and LSE `(total_q, num_heads)` in fp32, for one query token each."""
    rows, lses = [], []
    for q, blocks, length in zip(call.q, call.block_table.long(), call.total_seqlens.tolist(), strict=True):
        used = blocks[: -(-length // call.spec.block_size)]
        k, v = (
            cache[used].flatten(0, 1)[:length].float().repeat_interleave(call.spec.group_size, 1)
            for cache in (call.k_cache, call.v_cache)
        )
        scores = torch.einsum("hd,khd->hk", q.float(), k) * call.spec.softmax_scale
        rows.append(torch.einsum("hk,khd->hd", scores.softmax(-1), v))
        lses.append(scores.logsumexp(-1))
    return torch.stack(rows), torch.stack(lses)


def right(call: Any) -> torch.Tensor:
    """The output alone, in the dtype that it has to have."""
    return attention(call)[0].to(call.out.dtype)


# The output's form ---------------------------------------------------------------------------------------------------


def fp32_decode(call):
    return attention(call)[0]


def fp16_decode(call):
    return attention(call)[0].half()


def int_decode(call):
    return attention(call)[0].round().int()


def too_few_rows_decode(call):
    return right(call)[:-1]


def too_many_channels_decode(call):
    return torch.cat([right(call)] * 2, -1)


def heads_first_decode(call):
    """The right numbers in the order (num_heads, total_q, head_dim_v)."""
    return right(call).transpose(0, 1)


def strided_decode(call):
    """A view with gaps, which is right."""
    return torch.stack([right(call)] * 2, -1)[..., 0]


def expanded_decode(call):
    """One head's output for all of them, as a view with a stride of zero."""
    return right(call)[:, :1].expand(-1, call.spec.num_heads, -1)


def list_decode(call):
    return [right(call)]


def nothing_decode(call):
    """Writes into `out`, and forgets to return it."""
    call.out.copy_(right(call))


def numpy_decode(call):
    return attention(call)[0].numpy()


def three_things_decode(call):
    """Output, LSE and an attention matrix, as some libraries return."""
    return (*attention(call), None)


def one_value_a_row_decode(call):
    """The mean over the channels."""
    return right(call).mean(-1)


# The LSE's form ------------------------------------------------------------------------------------------------------


@pagedbench.backend("decode", returns_lse=True)
def lse_in_fp64(call):
    out, lse = attention(call)
    return out.to(call.out.dtype), lse.double()


def int_lse_decode(call):
    out, lse = attention(call)
    return out.to(call.out.dtype), lse.int()


def bool_lse_decode(call):
    out, lse = attention(call)
    return out.to(call.out.dtype), lse > 0


def complex_decode(call):
    return attention(call)[0].to(torch.complex64)


@pagedbench.backend("decode", returns_lse=True)
def lse_heads_first(call):
    """`(num_heads, total_q)`, as FlashAttention's varlen function returns it: other numbers at most places."""
    out, lse = attention(call)
    return out.to(call.out.dtype), lse.T


@pagedbench.backend("decode", returns_lse=True)
def lse_promised(call):
    """Declared, and not returned."""
    return right(call)


# Memory --------------------------------------------------------------------------------------------------------------


def into_q_decode(call):
    """Writes its output over the queries."""
    return call.q.copy_(right(call))


def into_the_cache_decode(call):
    """Keeps its output in the first slots of the K cache."""
    out = right(call)
    memory = call.k_cache.view(-1)[: out.numel()].view(out.shape)
    return memory.copy_(out)


def sorts_its_table_decode(call):
    out = right(call)
    call.block_table.copy_(call.block_table.sort(-1, descending=True).values)
    return out


def changes_host_arrays_decode(call):
    """A planner that turns lengths into page counts in place."""
    out = right(call)
    call.host.total_seqlens.fill_(1)
    call.host.block_table.zero_()
    return out


def changes_slots_decode(call):
    out = right(call)
    call.write_slots.zero_()
    call.read_slots.zero_()
    return out


def scales_q_in_place_decode(call):
    out = right(call)
    call.q.mul_(call.spec.softmax_scale)
    return out


def one_buffer_decode(call, _buffer: dict[object, torch.Tensor] = {}):  # noqa: B006
    """The same memory at every call, as a workspace is."""
    out = right(call)
    return _buffer.setdefault((out.shape, out.dtype), torch.empty_like(out)).copy_(out)


def keeps_everything_decode(call):
    kept.append(torch.zeros(1 << 20))
    return right(call)


@pagedbench.backend("decode")
def right_after_dtype(call):
    return right(call)


# The process ---------------------------------------------------------------------------------------------------------


def chatty_decode(call):
    print('{"event": "done", "record": "forged"}')
    os.write(1, b'{"event": "done"}\n')
    sys.stderr.write("\x1b[2J and noise\n")
    sys.stdout.flush()
    return right(call)


def closes_stdout_decode(call):
    os.close(1)
    sys.stdout = None
    return right(call)


def default_dtype_decode(call):
    torch.set_default_dtype(torch.float64)
    return right(call)


def deterministic_decode(call):
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    torch.set_num_threads(2)
    torch.set_grad_enabled(False)
    return right(call)


def inference_mode_decode(call):
    with torch.inference_mode():
        return right(call)


def requires_grad_decode(call):
    return right(call).requires_grad_()


def default_device_decode(call):
    out = right(call)
    torch.set_default_device("meta")
    return out


def second_call_decode(call):
    calls["second"] = calls.get("second", 0) + 1
    if calls["second"] == 2:
        raise RuntimeError("workspace already in use")
    return right(call)


def exits_decode(call):
    sys.exit(0)


def really_exits_decode(call):
    os._exit(0)


def interrupts_decode(call):
    raise KeyboardInterrupt


def generator_exit_decode(call):
    raise GeneratorExit


def late_thread_decode(call):
    """Another thread scribbles over the output a moment after it was returned."""
    out = right(call)

    def scribble():
        time.sleep(0.002)
        out.fill_(7)

    threading.Thread(target=scribble, daemon=True).start()
    return out


def idle_threads_decode(call):
    threading.Thread(target=time.sleep, args=(600,)).start()
    return right(call)


def chdir_decode(call):
    os.chdir("/")
    os.environ["OMP_NUM_THREADS"] = "7"
    gc.disable()
    return right(call)


def recursion_decode(call):
    return recursion_decode(call)


class _Odd(Exception):
    def __str__(self):
        raise ValueError("no words")


def unprintable_decode(call):
    raise _Odd


def empty_message_decode(call):
    raise RuntimeError


def long_message_decode(call):
    raise RuntimeError("x\x1b[31m" * 100_000 + "\nsecond line")
