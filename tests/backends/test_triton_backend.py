"""The Triton kernels against attention written out row by row: in the interpreter, or on the GPU where there is one."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch

from pagedbench.backends import triton_backend
from pagedbench.backends.base import Output
from pagedbench.backends.loading import Loaded
from pagedbench.backends.triton_backend import MAX_INTERPRETED_TILES, TritonBackend
from pagedbench.words import AttnPath

from .calls import Batch, Made, make, make_spec

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BACKEND = TritonBackend()
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}

RAGGED = Batch((3, 0, 1, 5, 2), (0, 4, 7, 9, 0))
DECODE = Batch((1, 1, 1), (30, 32, 70), block_size=32)
VERIFY = Batch((4, 4), (37, 3))
CASES = {
    "ragged": RAGGED,
    "nothing appended, more queries than keys": Batch((10, 3, 1), (0, 1, 7), append=False),
    "one token each": DECODE,
    "one token each, more tiles than one": Batch((1, 1), (200, 66), num_heads=2),
    "several tokens each": VERIFY,
    "no sequence": Batch((), ()),
    "no query token": Batch((0, 0), (3, 0)),
    "no keys at all": Batch((1, 1), (0, 0), append=False),
    "some keys, some none": Batch((1, 1, 1), (37, 0, 5), append=False),
    "MHA": replace(RAGGED, num_heads=2),
    "MQA, group of 7": replace(RAGGED, num_heads=7, num_kv_heads=1),
    "group of 16": replace(VERIFY, num_heads=16, num_kv_heads=1),
    "head dim 80": replace(DECODE, head_dim=80),
    "head dim 96": replace(DECODE, head_dim=96),
    "head dims 192 and 128": replace(VERIFY, head_dim=192, head_dim_v=128),
    "head dim 256": replace(DECODE, head_dim=256, num_heads=2),
    "window": replace(RAGGED, window_size=(2, 0)),
    "window of one": replace(DECODE, window_size=(0, 0)),
    "window both ways": replace(RAGGED, causal=False, window_size=(2, 1)),
    "window, nothing appended": Batch((6, 2), (3, 9), append=False, window_size=(1, 0)),
    "window starts in a later tile": Batch((2,), (150,), num_heads=2, window_size=(20, 0)),
    "not causal": replace(RAGGED, causal=False),
    "softcap": replace(RAGGED, softcap=0.7),
    "sinks": replace(RAGGED, sinks=(0.5, -1.0, 2.0, 0.0)),
    "sinks where nothing is seen": Batch((3, 2), (0, 1), append=False, sinks=(0.5, -1.0, 2.0, 0.0)),
    "alibi": replace(RAGGED, alibi=(0.5, 0.25, 0.125, 0.0625)),
    "everything": replace(RAGGED, window_size=(4, 0), softcap=2.0, sinks=(0.1,) * 4, alibi=(0.5, 0.25, 0.125, 0.0625)),
    "HND": replace(RAGGED, order="HND"),
    "block of one token": replace(RAGGED, block_size=1),
    "blocks of three": replace(DECODE, block_size=3),
    "blocks of 48": replace(DECODE, block_size=48),
    "blocks of 192": replace(DECODE, block_size=192),
    "padding names a real block": replace(RAGGED, padding=0),
    "padding is rubbish": replace(RAGGED, padding=2_000_000_000),
    "infinite poison": replace(RAGGED, poison=math.inf),
    "prefill over several row tiles": Batch((70, 3), (5, 40), num_heads=2, num_kv_heads=1),
    "prefill with a window": Batch((70,), (9,), num_heads=2, num_kv_heads=1, window_size=(30, 0)),
    "chunked prefill": Batch((40,), (100,), num_heads=4, num_kv_heads=1),
}
SPLIT = ("ragged", "one token each, more tiles than one", "some keys, some none", "window starts in a later tile",
         "sinks", "everything", "chunked prefill")  # fmt: skip


def run(made: Made) -> Output:
    return BACKEND.decode(made.call, None)


def expect_right(made: Made, output: Output, tolerance: float) -> None:
    assert output.lse is not None
    torch.testing.assert_close(output.out.double(), made.out, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(output.lse.double(), made.lse, rtol=1e-5, atol=1e-4)
    assert (output.out[made.out == 0] == 0).all(), "a row that sees no key is exactly 0"


@pytest.mark.parametrize(("case", "splits"), [*((case, 0) for case in CASES), *((case, 3) for case in SPLIT)])
def test_output_lse_and_append(case: str, splits: int) -> None:
    made = make(replace(CASES[case], num_splits=splits), AttnPath.PAGED_VARLEN, DEVICE)
    expect_right(made, run(made), TOLERANCE[torch.float32])
    for pool, after in ((made.call.k_cache, made.k_after), (made.call.v_cache, made.v_after)):
        bits = pool.contiguous().view(torch.int32)
        assert torch.equal(bits, after.view(torch.int32)), "the new tokens, bit by bit, and nothing else"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("case", ["several tokens each", "everything"])
def test_half_precision(case: str, dtype: torch.dtype) -> None:
    made = make(replace(CASES[case], dtype=dtype, head_dim=64), AttnPath.DECODE, DEVICE)
    output = run(made)
    assert output.out.dtype == dtype
    expect_right(made, output, TOLERANCE[dtype])


def test_fp8_keys_and_scales() -> None:
    """Quantised K and V: the answer is that of the values they stand for, times their scales."""
    made = make(replace(DECODE, dtype=torch.float16, head_dim=16), AttnPath.DECODE, DEVICE)
    call, fp8 = made.call, torch.float8_e4m3fn
    for name in ("k_cache", "v_cache", "k_new", "v_new"):
        setattr(call, name, getattr(call, name).to(fp8))
    right = replace(call, **{name: getattr(call, name).half() for name in ("k_cache", "v_cache", "k_new", "v_new")})
    right.k_new, right.k_cache = right.k_new * 0.5, right.k_cache * 0.5
    call.k_scale, call.v_scale = 0.5, 2.0
    ours, exact = BACKEND.decode(call, None), BACKEND.decode(right, None)
    torch.testing.assert_close(ours.out, 2 * exact.out, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(ours.lse, exact.lse)


def test_rows_of_a_padded_graph_write_nothing() -> None:
    """A dead row has a table of -1: its new token has no slot."""
    made = make(DECODE, AttnPath.DECODE, DEVICE)
    before = made.call.k_cache.clone()
    made.call.block_table.fill_(-1)
    made.call.cache_seqlens.zero_()
    output = run(made)
    assert torch.equal(made.call.k_cache.view(torch.int32), before.view(torch.int32))
    assert output.out.isfinite().all()


def test_a_length_beyond_the_table_reads_nothing_past_it() -> None:
    made = make(replace(DECODE, append=False, poison=0.0), AttnPath.DECODE, DEVICE)
    made.call.total_seqlens.fill_(1 << 20)
    made.call.block_table = made.call.block_table.clamp(min=0)
    run(made)


def test_out_memory_is_written() -> None:
    made = make(DECODE, AttnPath.DECODE, DEVICE)
    made.call.out = torch.full(made.out.shape, math.nan, dtype=DECODE.dtype, device=DEVICE)
    assert run(made).out is made.call.out
    assert made.call.out.isfinite().all()


def test_what_is_refused_says_what_is_needed() -> None:
    def reason(batch: Batch, device: str = "cuda") -> str | None:
        return BACKEND.unsupported(make_spec(batch, "decode", device=device))

    assert reason(DECODE) is None
    assert reason(replace(DECODE, block_size=3, head_dim=80)) is None
    assert "at most 256" in (reason(replace(DECODE, head_dim=320)) or "")
    assert "float64" in (reason(replace(DECODE, dtype=torch.float64)) or "")
    assert "at most" in (reason(replace(DECODE, num_splits=1000)) or "")
    long = Batch((1,) * 64, (8192,) * 64)
    assert reason(long) is None
    assert f"{MAX_INTERPRETED_TILES:,}" in (reason(long, "cpu") or "")


def test_triton_from_a_package_of_another_name_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds for nightly torch and for ROCm have no package called triton, and asking for it raises."""
    monkeypatch.setattr(triton_backend, "DISTRIBUTIONS", ("no-such-triton",))
    triton_backend._triton_version.cache_clear()
    try:
        assert BACKEND.available("cpu").version == "unknown"
    finally:
        triton_backend._triton_version.cache_clear()


def test_a_triton_that_cannot_be_imported_is_not_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_backend, "load", lambda modules: Loaded(None, "built for another torch"))
    monkeypatch.setattr(triton_backend, "_no_gpu", lambda: None)
    assert BACKEND.available("cuda").reason == "built for another torch"
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert BACKEND.available("cpu").reason == "built for another torch"
