"""The torch backend against attention written out row by row, in every corner the design names."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from pagedbench.backends import torch_backend
from pagedbench.backends.torch_backend import TorchBackend
from pagedbench.words import AttnPath

from .calls import Batch, Made, make

BACKEND = TorchBackend()
FUNCTIONS = {AttnPath.VARLEN: "varlen", AttnPath.DECODE: "decode", AttnPath.PAGED_VARLEN: "paged_varlen"}

RAGGED = Batch((3, 0, 1, 5, 2), (0, 4, 7, 9, 0))
CASES = {
    "ragged": RAGGED,
    "nothing appended, more queries than keys": Batch((10, 3, 1), (0, 1, 7), append=False),
    "one token each": Batch((1, 1, 1), (30, 32, 70), block_size=32),
    "several tokens each": Batch((4, 4), (7, 0)),
    "no sequence": Batch((), ()),
    "no query token": Batch((0, 0), (3, 0)),
    "MHA": replace(RAGGED, num_heads=2),
    "MQA": replace(RAGGED, num_kv_heads=1),
    "head_dim_v": replace(RAGGED, head_dim_v=3),
    "window": replace(RAGGED, window_size=(2, 0)),
    "window both ways": replace(RAGGED, causal=False, window_size=(2, 1)),
    "window, nothing appended": Batch((6, 2), (3, 9), append=False, window_size=(1, 0)),
    "not causal": replace(RAGGED, causal=False),
    "softcap": replace(RAGGED, softcap=0.7),
    "sinks": replace(RAGGED, sinks=(0.5, -1.0, 2.0, 0.0)),
    "sinks where nothing is seen": Batch((3, 2), (0, 1), append=False, sinks=(0.5, -1.0, 2.0, 0.0)),
    "alibi": replace(RAGGED, alibi=(0.5, 0.25, 0.125, 0.0625)),
    "everything": replace(RAGGED, window_size=(4, 0), softcap=2.0, sinks=(0.1,) * 4, alibi=(0.5, 0.25, 0.125, 0.0625)),
    "HND": replace(RAGGED, order="HND"),
    "block of one token": replace(RAGGED, block_size=1),
    "padding names a real block": replace(RAGGED, padding=0),
    "padding is rubbish": replace(RAGGED, padding=2_000_000_000),
    "infinite poison": replace(RAGGED, poison=math.inf),
}


def run(made: Made) -> torch_backend.Output:
    call = made.call
    return getattr(BACKEND, FUNCTIONS[call.spec.path])(call, BACKEND.plan(call))


@pytest.mark.parametrize("path", AttnPath)
@pytest.mark.parametrize("case", CASES)
def test_output_and_lse(case: str, path: AttnPath) -> None:
    made = make(CASES[case], path)
    output = run(made)
    assert output.lse is not None
    torch.testing.assert_close(output.out.double(), made.out, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(output.lse.double(), made.lse, rtol=1e-5, atol=1e-5)
    assert (output.out[made.out == 0] == 0).all(), "a row that sees no key is exactly 0"


@pytest.mark.parametrize("path", [AttnPath.DECODE, AttnPath.PAGED_VARLEN])
@pytest.mark.parametrize("case", CASES)
def test_append_is_exact_and_touches_nothing_else(case: str, path: AttnPath) -> None:
    made = make(CASES[case], path)
    run(made)
    for pool, after in ((made.call.k_cache, made.k_after), (made.call.v_cache, made.v_after)):
        assert torch.equal(pool.contiguous().view(torch.int32), after.view(torch.int32))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_once(dtype: torch.dtype) -> None:
    made = make(replace(RAGGED, dtype=dtype), AttnPath.PAGED_VARLEN)
    output = run(made)
    assert output.out.dtype == dtype
    torch.testing.assert_close(output.out.double(), made.out, rtol=torch.finfo(dtype).eps, atol=1e-6)


def test_fp8_keys_and_values_are_dequantised() -> None:
    batch = Batch((2, 1), (5, 3))
    made = make(batch, AttnPath.DECODE)
    call, fp8 = made.call, torch.float8_e4m3fn
    call.k_cache, call.v_cache, call.k_new, call.v_new = (
        t.to(fp8) for t in (call.k_cache, call.v_cache, call.k_new, call.v_new) if t is not None
    )
    call.k_scale, call.v_scale = 2.0, 0.5
    same = make(batch, AttnPath.DECODE)
    for name, scale in (("k_cache", 2.0), ("v_cache", 0.5), ("k_new", 2.0), ("v_new", 0.5)):
        setattr(same.call, name, getattr(same.call, name).to(fp8).float() * scale)
    torch.testing.assert_close(run(made).out, run(same).out)


def test_small_steps_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tiles and several chunks of keys: long queries, and little room."""
    monkeypatch.setitem(torch_backend.STEP_ELEMENTS, "cpu", 1)
    made = make(Batch((150, 1), (20, 200), num_heads=1, num_kv_heads=1, window_size=(99, 0)), AttnPath.PAGED_VARLEN)
    output = run(made)
    assert len(BACKEND.plan(made.call).groups) >= 3
    torch.testing.assert_close(output.out.double(), made.out, rtol=1e-5, atol=1e-5)


def test_a_little_ragged_batch_is_one_group_of_tiles() -> None:
    """Each group costs some forty operations, whatever it holds."""
    made = make(Batch((5, 1, 3), (20, 200, 3)), AttnPath.PAGED_VARLEN)
    assert len(BACKEND.plan(made.call).groups) == 1
    torch.testing.assert_close(run(made).out.double(), made.out, rtol=1e-5, atol=1e-5)


def test_writes_into_given_memory() -> None:
    made = make(RAGGED, AttnPath.PAGED_VARLEN)
    made.call.out = torch.full((made.call.spec.total_q, 4, 8), math.nan)
    output = run(made)
    assert output.out is made.call.out
    assert not output.out.isnan().any()


def test_long_context_is_worked_through_in_chunks() -> None:
    """131,072 keys: uniform scores make the answer the mean of V, and no step holds more than its bound."""
    batch = Batch((1,), (1,), block_size=16, num_heads=2, num_kv_heads=1)
    call = make(batch, AttnPath.VARLEN).call
    n = 131_072
    v = torch.randn(n, 1, 8)
    call.k, call.v = torch.zeros(n, 1, 8), v
    call.cu_seqlens_k = torch.tensor([0, n], dtype=torch.int32)
    call.host = None
    output = BACKEND.varlen(call, BACKEND.plan(call))
    torch.testing.assert_close(output.out[0, 0].double(), v.double().mean(0)[0], rtol=1e-4, atol=1e-6)
    assert output.lse is not None
    assert output.lse[0, 0].item() == pytest.approx(math.log(n), rel=1e-6)
