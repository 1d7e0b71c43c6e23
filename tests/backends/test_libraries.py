"""Adapters of libraries that need a GPU, on the CPU: what each is called with, and what is made of what it returns."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch

from pagedbench.backends import flash_attn_3, flash_attn_4, flashinfer_backend, library
from pagedbench.backends.base import Availability, Backend, Output
from pagedbench.backends.flash_attn_2 import FlashAttention2Backend
from pagedbench.backends.flash_attn_3 import Fa3FwdBackend, FlashAttention3Backend
from pagedbench.backends.flash_attn_4 import FlashAttention4Backend
from pagedbench.backends.flashinfer_backend import (
    FlashInferBackend,
    FlashInferCudaCoresBackend,
    FlashInferFa3Backend,
)
from pagedbench.backends.loading import Library, Loaded
from pagedbench.backends.torch_varlen import TorchVarlenBackend
from pagedbench.backends.vllm_flash_attn import VllmFlashAttentionBackend
from pagedbench.tensors.call import CallSpec
from pagedbench.words import AttnPath

from . import fakes
from .calls import Batch, Made, make, make_spec

HALF = Batch((1, 1, 1), (30, 32, 70), block_size=256, num_heads=8, num_kv_heads=2, head_dim=64, dtype=torch.bfloat16)
RAGGED = replace(HALF, query_lens=(5, 0, 2), cached_lens=(3, 8, 0))
BLIND = replace(HALF, query_lens=(10, 3, 1), cached_lens=(0, 1, 7), append=False)

Fake = Callable[[fakes.Recorder], ModuleType]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[Fake, Made], fakes.Recorder]:
    """Put a fake in the place of every library."""
    monkeypatch.setattr(flashinfer_backend, "WORKSPACE_BYTES", 1)

    def put(fake: Fake, made: Made) -> fakes.Recorder:
        recorder = fakes.Recorder(made)
        module = fake(recorder)
        monkeypatch.setattr(Library, "module", lambda self: module)
        return recorder

    return put


def run(backend: Backend, made: Made) -> Output:
    path = made.call.spec.path
    function = {AttnPath.VARLEN: backend.varlen, AttnPath.DECODE: backend.decode}.get(path, backend.paged_varlen)
    return function(made.call, backend.plan(made.call))


def assert_answer(output: Output, made: Made) -> None:
    """Adapters must bring whatever form a library returns into the one of the contract."""
    assert torch.equal(output.out, made.out.to(made.call.q.dtype))
    assert output.lse is not None
    assert output.lse.dtype == torch.float32
    torch.testing.assert_close(output.lse, made.lse.float(), rtol=1e-5, atol=1e-5)


def torch_2_11(recorder: fakes.Recorder) -> ModuleType:
    return fakes.torch_varlen(recorder, paged=False)


def torch_2_13(recorder: fakes.Recorder) -> ModuleType:
    return fakes.torch_varlen(recorder, paged=True)


TORCH = TorchVarlenBackend()
FAMILY: list[tuple[Backend, Fake, AttnPath]] = [
    (FlashAttention2Backend(), fakes.flash_attn_2, AttnPath.VARLEN),
    (FlashAttention2Backend(), fakes.flash_attn_2, AttnPath.PAGED_VARLEN),
    (FlashAttention2Backend(), fakes.flash_attn_2, AttnPath.DECODE),
    (FlashAttention3Backend(), fakes.flash_attn_3, AttnPath.VARLEN),
    (FlashAttention3Backend(), fakes.flash_attn_3, AttnPath.PAGED_VARLEN),
    (FlashAttention3Backend(), fakes.flash_attn_3, AttnPath.DECODE),
    (FlashAttention4Backend(), fakes.flash_attn_4, AttnPath.VARLEN),
    (FlashAttention4Backend(), fakes.flash_attn_4, AttnPath.PAGED_VARLEN),
    (TORCH, torch_2_13, AttnPath.VARLEN),
    (TORCH, torch_2_11, AttnPath.VARLEN),
    (TORCH, torch_2_13, AttnPath.PAGED_VARLEN),
    (VllmFlashAttentionBackend(), fakes.vllm, AttnPath.PAGED_VARLEN),
    (VllmFlashAttentionBackend(), fakes.vllm, AttnPath.DECODE),
    (FlashInferBackend(), fakes.flashinfer, AttnPath.VARLEN),
    (FlashInferBackend(), fakes.flashinfer, AttnPath.PAGED_VARLEN),
    (FlashInferBackend(), fakes.flashinfer, AttnPath.DECODE),
    (FlashInferFa3Backend(), fakes.flashinfer, AttnPath.DECODE),
    (FlashInferCudaCoresBackend(), fakes.flashinfer, AttnPath.DECODE),
]
FAMILY_IDS = [f"{backend.name}:{path}-{number}" for number, (backend, _, path) in enumerate(FAMILY)]


@pytest.mark.parametrize(("backend", "fake", "path"), FAMILY, ids=FAMILY_IDS)
def test_answers_come_in_the_contracts_form(use: Any, backend: Backend, fake: Fake, path: AttnPath) -> None:
    batch = replace(HALF, query_lens=(2, 2, 2), cached_lens=(0, 5, 9)) if path is AttnPath.DECODE else BLIND
    if path is AttnPath.DECODE and backend.name == "flashinfer-cuda-cores":
        batch = HALF
    made = make(batch, path)
    use(fake, made)
    assert_answer(run(backend, made), made)


@pytest.mark.parametrize(("backend", "fake", "path"), FAMILY, ids=FAMILY_IDS)
def test_the_scale_and_the_arrays_are_passed(use: Any, backend: Backend, fake: Fake, path: AttnPath) -> None:
    made = make(HALF if path is AttnPath.DECODE else replace(RAGGED, query_lens=(5, 1, 2)), path)
    recorder = use(fake, made)
    run(backend, made)
    seen, call = recorder.seen, made.call
    scale = next(seen[name] for name in ("softmax_scale", "scale", "sm_scale") if name in seen)
    assert scale == pytest.approx(1 / 8)
    lengths = [value for value in seen.values() if isinstance(value, torch.Tensor) and value.dtype == torch.int32]
    assert lengths, "index arrays are int32"
    if "q" in seen and "k_cache" in seen:
        assert seen["k_cache"] is call.k_cache


def test_fa2_decode_appends_through_the_library(use: Any) -> None:
    made = make(HALF, AttnPath.DECODE)
    seen = _seen(use, FlashAttention2Backend(), fakes.flash_attn_2, made)
    call = made.call
    assert seen["cache_seqlens"] is call.cache_seqlens
    assert seen["block_table"] is call.block_table
    assert seen["q"].shape == (3, 1, 8, 64)
    assert seen["k"].shape == seen["v"].shape == (3, 1, 2, 64)
    assert (seen["causal"], seen["num_splits"], seen["window_size"]) == (True, 0, (-1, -1))


def test_without_an_append_the_lengths_are_totals(use: Any) -> None:
    made = make(replace(HALF, append=False), AttnPath.DECODE)
    for backend, fake in (
        (FlashAttention2Backend(), fakes.flash_attn_2),
        (FlashAttention3Backend(), fakes.flash_attn_3),
    ):
        seen = _seen(use, backend, fake, made)
        assert seen["cache_seqlens"] is made.call.total_seqlens
        assert seen["k"] is None


def test_fa3_paged_varlen_is_kvcache_with_ragged_queries(use: Any) -> None:
    made = make(replace(RAGGED, num_splits=3), AttnPath.PAGED_VARLEN)
    seen = _seen(use, FlashAttention3Backend(), fakes.flash_attn_3, made)
    call = made.call
    assert seen["q"] is call.q
    assert seen["k"] is call.k_new
    assert seen["cu_seqlens_q"] is seen["cu_seqlens_k_new"] is call.cu_seqlens_q
    assert seen["cache_seqlens"] is call.cache_seqlens
    assert seen["page_table"] is call.block_table
    assert (seen["max_seqlen_q"], seen["num_splits"]) == (5, 3)


def test_fa3_splits_are_automatic_on_both_functions(use: Any) -> None:
    """Its varlen function defaults to 1, so that leaving it out would compare defaults."""
    made = make(HALF, AttnPath.VARLEN)
    assert _seen(use, FlashAttention3Backend(), fakes.flash_attn_3, made)["num_splits"] == 0


def test_fa3_sinks_are_bfloat16_and_name_the_lse_of_empty_rows(use: Any) -> None:
    made = make(replace(BLIND, sinks=tuple(i / 4 for i in range(8))), AttnPath.VARLEN)
    recorder = use(fakes.flash_attn_3, made)
    recorder.lse = lambda *, batched: torch.full((8, 14), math.inf)
    output = run(FlashAttention3Backend(), made)
    assert recorder.seen["sinks"].dtype == torch.bfloat16
    assert output.lse is not None
    assert output.lse[0].tolist() == [i / 4 for i in range(8)]


def test_fa3_fp8_scales_are_tensors_a_sequence_and_head(use: Any) -> None:
    made = make(HALF, AttnPath.DECODE)
    made.call.spec = replace(made.call.spec, q_dtype="float8_e4m3fn", kv_dtype="float8_e4m3fn")
    made.call.k_scale, made.call.v_scale = 0.5, 2.0
    seen = _seen(use, FlashAttention3Backend(), fakes.flash_attn_3, made)
    assert seen["k_descale"].shape == (3, 2)
    assert [seen[f"{n}_descale"][0, 0].item() for n in "qkv"] == [1.0, 0.5, 2.0]


def test_fa4_windows_use_none(use: Any) -> None:
    made = make(replace(RAGGED, window_size=(9, 0)), AttnPath.PAGED_VARLEN)
    seen = _seen(use, FlashAttention4Backend(), fakes.flash_attn_4, made)
    assert seen["window_size"] == (9, 0)
    assert seen["seqused_k"] is made.call.total_seqlens
    assert seen["cu_seqlens_k"] is None
    made = make(replace(RAGGED, causal=False), AttnPath.VARLEN)
    assert _seen(use, FlashAttention4Backend(), fakes.flash_attn_4, made)["window_size"] == (None, None)


@pytest.mark.parametrize(("capability", "splits"), [((9, 0), 1), ((10, 0), 0), ((12, 0), 1), ((8, 0), 1)])
def test_fa4_chooses_splits_only_where_its_kernels_can_split(
    use: Any, monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], splits: int
) -> None:
    """On Hopper its own choice of more than one split fails: «SplitKV not supported on SM 9.0»."""
    monkeypatch.setattr(flash_attn_4, "compute_capability", lambda: capability)
    made = make(RAGGED, AttnPath.PAGED_VARLEN)
    assert _seen(use, FlashAttention4Backend(), fakes.flash_attn_4, made)["num_splits"] == splits
    assert bool(FlashAttention4Backend().traits_for(AttnPath.VARLEN).exp_error) == (capability[0] == 10)


@pytest.mark.parametrize(
    ("capability", "batch", "path", "words"),
    [
        ((9, 0), replace(HALF, num_splits=3), AttnPath.PAGED_VARLEN, "num_splits 3"),
        ((10, 0), replace(HALF, num_splits=3), AttnPath.PAGED_VARLEN, "nothing"),
        ((9, 0), replace(HALF, num_splits=1), AttnPath.PAGED_VARLEN, "nothing"),
        ((8, 6), HALF, AttnPath.PAGED_VARLEN, "no paged kernel for compute capability 8.x"),
        ((12, 0), HALF, AttnPath.PAGED_VARLEN, "no paged kernel for compute capability 12.x"),
        ((8, 6), HALF, AttnPath.VARLEN, "nothing"),
        ((10, 0), replace(HALF, head_dim=192), AttnPath.VARLEN, "on Blackwell"),
        ((9, 0), replace(HALF, head_dim=120), AttnPath.PAGED_VARLEN, "head dim 120 in blocks of 256"),
        ((9, 0), replace(HALF, head_dim=120, block_size=16), AttnPath.PAGED_VARLEN, "or blocks of 128 keys"),
        ((9, 0), replace(HALF, head_dim=120, block_size=16), AttnPath.VARLEN, "nothing"),
        ((9, 0), replace(HALF, head_dim=120, block_size=128), AttnPath.PAGED_VARLEN, "nothing"),
        ((9, 0), replace(HALF, head_dim=112, block_size=16), AttnPath.PAGED_VARLEN, "nothing"),
        ((9, 0), replace(HALF, head_dim=64, head_dim_v=72), AttnPath.PAGED_VARLEN, "head dim 72 in blocks of 256"),
        ((10, 0), replace(HALF, head_dim=120, block_size=64), AttnPath.PAGED_VARLEN, "or blocks of 128 keys"),
    ],
)
def test_fa4_says_what_it_has_for_other_gpus_only(
    use: Any, monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], batch: Batch, path: AttnPath, words: str
) -> None:
    use(fakes.flash_attn_4, make(HALF, V))
    monkeypatch.setattr(flash_attn_4, "compute_capability", lambda: capability)
    assert words in (FlashAttention4Backend().unsupported(_spec(batch, path)) or "nothing")


@pytest.mark.parametrize(
    ("head_dim", "mask", "tile"),
    [
        (56, {"causal": False}, 128),
        (88, {"causal": True}, 128),
        (88, {"causal": False}, 144),
        (88, {"causal": False, "window_size": (9, 3)}, 128),
        (136, {"causal": True, "head_dim_v": 128}, 128),
        (136, {"causal": True}, 112),
        (136, {"causal": True, "window_size": (9, 0)}, 96),
        (248, {"causal": False}, 80),
        (248, {"causal": True, "window_size": (9, 0)}, 64),
    ],
)
def test_fa4_takes_odd_head_dims_in_blocks_of_its_tile(
    use: Any, monkeypatch: pytest.MonkeyPatch, head_dim: int, mask: dict[str, Any], tile: int
) -> None:
    """The tiles are those that flash-attn-4 4.0.0b36 chooses on Hopper; another block size fails in an assertion."""
    use(fakes.flash_attn_4, make(HALF, V))
    monkeypatch.setattr(flash_attn_4, "compute_capability", lambda: (9, 0))
    odd = replace(HALF, head_dim=head_dim, **mask)
    assert FlashAttention4Backend().unsupported(_spec(replace(odd, block_size=tile), P)) is None
    for block_size in (16, 2 * tile):
        reason = FlashAttention4Backend().unsupported(_spec(replace(odd, block_size=block_size), P)) or ""
        assert f"or blocks of {tile} keys" in reason


@pytest.mark.parametrize(
    ("dims", "fits"), [((192, 128), True), ((192, 256), False), ((96, 192), False), ((128, 256), True)]
)
def test_fa4_refuses_a_v_that_does_not_fit_beside_its_tile(
    use: Any, monkeypatch: pytest.MonkeyPatch, dims: tuple[int, int], fits: bool
) -> None:
    """It chooses tiles by the head dim of K; on Hopper the launch fails where V is too wide for them."""
    use(fakes.flash_attn_4, make(HALF, V))
    monkeypatch.setattr(flash_attn_4, "compute_capability", lambda: (9, 0))
    wide = replace(HALF, head_dim=dims[0], head_dim_v=dims[1])
    for path in (V, P):
        reason = FlashAttention4Backend().unsupported(_spec(wide, path))
        assert reason is None if fits else "KB of shared memory, of 227 here" in (reason or "")


def test_torch_varlen_says_causal_by_its_window(use: Any) -> None:
    seen = _seen(use, TORCH, torch_2_13, make(RAGGED, AttnPath.PAGED_VARLEN))
    assert (seen["window_size"], seen["enable_gqa"], seen["num_splits"]) == ((-1, 0), True, None)
    assert seen["cu_seq_k"] is None
    assert seen["seqused_k"].tolist() == [8, 8, 2]
    made = make(replace(RAGGED, window_size=(4, 0), num_splits=2), AttnPath.VARLEN)
    seen = _seen(use, TORCH, torch_2_13, made)
    assert (seen["window_size"], seen["num_splits"]) == ((4, 0), 2)


# Window, whether causal, and whether FlashAttention-2 then runs its causal kernel; the longest sequence has 6 keys.
ALIBI_KERNELS = [((-1, -1), True, True), ((5, 0), True, False), ((6, 0), True, True), ((6, 0), False, True)]


@pytest.mark.parametrize(("window", "causal", "shifts"), ALIBI_KERNELS)
def test_alibi_of_fa2_is_brought_back_to_distances(
    use: Any, window: tuple[int, int], causal: bool, shifts: bool
) -> None:
    """Causal FlashAttention-2 adds slope * j where the definition subtracts slope * (position - j); its kernel for
    windows does not, but it takes one that reaches as far as the longest sequence for none."""
    batch = replace(HALF, query_lens=(2, 3), cached_lens=(4, 0), alibi=tuple(2.0**-i for i in range(8)))
    made = make(replace(batch, window_size=window, causal=causal), AttnPath.VARLEN)
    recorder = use(fakes.flash_attn_2, made)
    positions = torch.tensor([4, 5, 0, 1, 2])
    shifted = made.lse.float() + shifts * positions[:, None] * torch.tensor(batch.alibi)
    recorder.lse = lambda **_: shifted.t().clone()
    assert_answer(run(FlashAttention2Backend(), made), made)


def test_fa2_measures_a_window_in_decode_by_the_table(use: Any) -> None:
    """Its kvcache function is not told the longest sequence: it takes what a row of the table can hold."""
    batch = replace(HALF, query_lens=(1, 1), cached_lens=(4, 0), alibi=tuple(2.0**-i for i in range(8)))
    for window, shifts in ((6, False), (511, False), (512, True)):
        made = make(replace(batch, window_size=(window, 0)), AttnPath.DECODE)
        recorder = use(fakes.flash_attn_2, made)
        assert made.call.block_table.shape[1] == 512 // HALF.block_size
        shifted = made.lse.float() + shifts * torch.tensor([[4], [0]]) * torch.tensor(batch.alibi)
        recorder.lse = lambda shifted=shifted, **_: shifted[:, :, None].clone()
        assert_answer(run(FlashAttention2Backend(), made), made)


def test_flashinfer_lists_blocks(use: Any) -> None:
    batch = replace(HALF, block_size=32, cached_lens=(30, 31, 70))
    made = make(batch, AttnPath.DECODE)
    seen = _seen(use, FlashInferBackend(), fakes.flashinfer, made)
    assert (seen["kind"], seen["tensor_cores"], seen["layout"]) == ("decode", True, "NHD")
    assert seen["indptr"].tolist() == [0, 1, 2, 5]
    assert seen["last_page_len"].tolist() == [31, 32, 7]
    table = made.call.block_table
    assert seen["indices"].tolist() == [table[0, 0], table[1, 0], *table[2, :3]]
    assert seen["indices"].dtype == torch.int32


def test_flashinfers_lists_have_a_block_of_the_sequence_where_the_table_is_rubbish(use: Any) -> None:
    """Below a window nobody needs an entry, but a list must be legal, and a masked key of a stranger could leak."""
    made = make(replace(HALF, block_size=32, cached_lens=(30, 31, 70), window_size=(3, 0)), AttnPath.DECODE)
    table = made.call.block_table
    table[2, 0], table[2, 1] = -1, 10_000
    made.call.host = None
    seen = _seen(use, FlashInferBackend(), fakes.flashinfer, made)
    assert seen["indices"].tolist() == [table[0, 0], table[1, 0], *[table[2, 2]] * 3]


def test_a_plan_that_hides_its_keywords_gets_them_all(use: Any) -> None:
    """The softmax scale would otherwise be left out without a word."""
    seen = _seen(use, FlashInferBackend(), fakes.flashinfer_0_7, make(HALF, AttnPath.DECODE))
    assert seen["sm_scale"] == pytest.approx(1 / 8)
    assert seen["q_data_type"] == torch.bfloat16


def test_flashinfer_of_no_keys_lists_no_block(use: Any) -> None:
    made = make(replace(HALF, cached_lens=(0, 5, 0), append=False), AttnPath.PAGED_VARLEN)
    seen = _seen(use, FlashInferBackend(), fakes.flashinfer, made)
    assert seen["paged_kv_indptr"].tolist() == [0, 0, 1, 1]
    assert seen["paged_kv_last_page_len"].tolist() == [0, 5, 0]


def test_flashinfer_hnd_pools_are_handed_over_as_they_lie(use: Any) -> None:
    made = make(replace(RAGGED, order="HND"), AttnPath.PAGED_VARLEN)
    seen = _seen(use, FlashInferBackend(), fakes.flashinfer, made)
    assert seen["layout"] == "HND"
    assert seen["pools"][0].is_contiguous()
    assert seen["pools"][0].shape[1:] == (2, 256, 64)


def test_flashinfers_fa3_kernels_are_not_given_rows_that_see_no_key(use: Any) -> None:
    """They would answer with the mean of V. A sequence without any key is another case: it is not computed."""
    use(fakes.flashinfer, make(HALF, V))
    backend, blind = FlashInferFa3Backend(), {"has_blind_rows": True}
    several = _spec(replace(HALF, query_lens=(5, 5, 5)), AttnPath.PAGED_VARLEN, **blind)
    assert "mean of V" in (backend.unsupported(several) or "")
    assert FlashInferBackend().unsupported(several) is None
    assert backend.unsupported(_spec(HALF, AttnPath.DECODE, has_empty_keys=True, **blind)) is None


def test_flashinfer_plans_of_two_calls_live_side_by_side(use: Any) -> None:
    backend, first, second = FlashInferBackend(), make(HALF, AttnPath.DECODE), make(HALF, AttnPath.DECODE)
    use(fakes.flashinfer, first)
    wrapper = backend.plan(first.call)
    assert backend.plan(second.call) is not wrapper
    assert backend.plan(first.call) is wrapper


def test_variants_of_flashinfer_choose_their_kernels(use: Any) -> None:
    several = make(replace(HALF, query_lens=(2, 2, 2)), AttnPath.DECODE)
    assert _seen(use, FlashInferBackend(), fakes.flashinfer, several)["kind"] == "paged"
    one = make(HALF, AttnPath.DECODE)
    assert _seen(use, FlashInferFa3Backend(), fakes.flashinfer, one)["backend"] == "fa3"
    assert _seen(use, FlashInferCudaCoresBackend(), fakes.flashinfer, one)["tensor_cores"] is False


def _seen(use: Any, backend: Backend, fake: Fake, made: Made) -> dict[str, Any]:
    recorder = use(fake, made)
    run(backend, made)
    return recorder.seen


def _spec(batch: Batch, path: AttnPath, **changes: Any) -> CallSpec:
    return replace(make_spec(batch, path, device="cuda"), **changes)


P, D, V = AttnPath.PAGED_VARLEN, AttnPath.DECODE, AttnPath.VARLEN
FA2, FA3, FI = FlashAttention2Backend(), FlashAttention3Backend(), FlashInferBackend()
CUDA_CORES = FlashInferCudaCoresBackend()
EMPTY_QUERY = replace(HALF, query_lens=(1, 0, 1))
REASONS = [
    (FA2, fakes.flash_attn_2, D, replace(HALF, block_size=32), {}, "block size 32: flash-attn needs a multiple of 256"),
    (FA2, fakes.flash_attn_2, D, RAGGED, {}, "decode cannot take prefill: query lengths differ"),
    (FA2, fakes.flash_attn_2, D, HALF, {"device": "cpu"}, "needs a CUDA GPU"),
    (FA2, fakes.flash_attn_2, D, HALF, {"index_dtypes": {"block_table": "int64"}}, "block_table in int64"),
    (FA2, fakes.flash_attn_2, D, replace(HALF, dtype=torch.float32), {}, "flash-attn takes float16 and bfloat16"),
    (FA2, fakes.flash_attn_2, D, replace(HALF, sinks=(0.0,) * 8), {}, "sinks: flash-attn has none"),
    (FA3, fakes.flash_attn_3, D, replace(HALF, sinks=(0.3,) * 8), {"sinks_fit_bf16": False}, "takes them in bfloat16"),
    (FA2, fakes.flash_attn_2, D, replace(HALF, head_dim_v=32), {}, "head_dim_v 32 beside head_dim 64"),
    (FA2, fakes.flash_attn_2, D, replace(HALF, head_dim=264), {}, "takes at most 256"),
    (FA2, fakes.flash_attn_2, D, replace(HALF, head_dim=60), {}, "needs a multiple of 8"),
    (FA2, fakes.flash_attn_2, P, replace(HALF, num_splits=2), {}, "num_splits 2: flash-attn chooses it itself"),
    (FA2, fakes.flash_attn_2, V, EMPTY_QUERY, {}, "reshapes q by sequences"),
    (FA2, fakes.flash_attn_2, V, replace(HALF, query_lens=(0, 0, 0)), {}, "without a query token"),
    (FA2, fakes.flash_attn_2, D, HALF, {"kv_dtype": "float8_e4m3fn"}, "K and V in float8_e4m3fn"),
    (FA3, fakes.flash_attn_3, D, HALF, {"kv_dtype": "float8_e4m3fn"}, "wants q in float8_e4m3fn as well"),
    (
        FA3, fakes.flash_attn_3, D, HALF,
        {"kv_dtype": "float8_e4m3fn", "q_dtype": "float8_e4m3fn", "out_dtype": "float16"},
        "an output in float16 beside q in fp8: flash-attn-3 gives bfloat16",
    ),
    (FA3, fakes.flash_attn_3, D, replace(HALF, softcap=5.0), {}, "softcap: flash-attn-3 has none"),
    (FA3, fakes.flash_attn_3, V, replace(HALF, head_dim=128, head_dim_v=64), {}, "not in this build"),
    (FA3, fakes.flash_attn_3, D, replace(HALF, alibi=(0.0,) * 8), {}, "ALiBi: flash-attn-3 has none"),
    (FI, fakes.flashinfer, D, replace(HALF, head_dim=96), {}, "head_dim 96: flashinfer takes 64, 128, 256"),
    (FI, fakes.flashinfer, P, replace(HALF, sinks=(0.0,) * 8), {}, "sinks: flashinfer has none"),
    (FI, fakes.flashinfer, P, replace(HALF, num_splits=4), {}, "auto or 1"),
    (FI, fakes.flashinfer, P, replace(HALF, causal=False, window_size=(3, 2)), {}, "a window with a right side"),
    (FI, fakes.flashinfer, P, HALF, {"kv_same_strides": False}, "K and V with different strides"),
    (CUDA_CORES, fakes.flashinfer, D, replace(HALF, num_heads=14), {}, "7 query heads a KV head"),
    (CUDA_CORES, fakes.flashinfer, D, replace(HALF, query_lens=(2, 2, 2)), {}, "2 query tokens a sequence"),
    (TORCH, torch_2_11, P, HALF, {}, "torch 2.13 or later"),
    (TORCH, torch_2_11, V, replace(HALF, num_splits=1), {}, "num_splits 1"),
    (TORCH, torch_2_13, D, HALF, {}, "has no function for decode"),
    (FlashAttention4Backend(), fakes.flash_attn_4, D, HALF, {}, "has no function for decode"),
]  # fmt: skip
FLAGS = {
    "FLASHATTENTION_DISABLE_SOFTCAP": True,
    "FLASHATTENTION_DISABLE_HDIM96": True,
    "FLASH_ATTENTION_DISABLE_HDIMDIFF64": True,
    "FLASH_ATTENTION_DISABLE_HDIMDIFF192": True,
}


@pytest.mark.parametrize(
    ("backend", "fake", "path", "batch", "changes", "words"), REASONS, ids=[f"{r[0].name}: {r[5]}" for r in REASONS]
)
def test_reasons_are_sentences_to_act_on(
    use: Any, monkeypatch: pytest.MonkeyPatch, backend: Backend, fake: Fake, path: AttnPath, batch: Batch,
    changes: dict[str, Any], words: str,
) -> None:  # fmt: skip
    use(fake, make(HALF, V))
    monkeypatch.setattr(flash_attn_3, "load", lambda modules: Loaded(_config(FLAGS)))
    assert words in (backend.unsupported(_spec(batch, path, **changes)) or "nothing")


@pytest.mark.parametrize(("backend", "fake", "path"), FAMILY, ids=FAMILY_IDS)
def test_an_ordinary_call_is_supported(use: Any, backend: Backend, fake: Fake, path: AttnPath) -> None:
    use(fake, make(HALF, V))
    reason = backend.unsupported(_spec(HALF, path))
    assert reason is None or "2.13" in reason


def test_a_build_without_paged_kv_says_so(use: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    use(fakes.flash_attn_3, make(HALF, V))
    flags = _config({"FLASHATTENTION_DISABLE_PAGEDKV": True, "FLASHATTENTION_DISABLE_FP16": True})
    monkeypatch.setattr(flash_attn_3, "load", lambda modules: Loaded(flags))
    backend = Fa3FwdBackend()
    assert "no paged KV" in (backend.unsupported(_spec(HALF, D)) or "")
    assert backend.unsupported(_spec(HALF, V)) is None
    assert "float16: fa3-fwd takes bfloat16" in (
        backend.unsupported(_spec(replace(HALF, dtype=torch.float16), V)) or ""
    )


def test_flash_attn_2s_early_cute_is_not_flash_attn_4(use: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("flash_attn.cute.interface")
    module.flash_attn_varlen_func = lambda q, k, v, page_table=None: None  # type: ignore[attr-defined]
    monkeypatch.setattr(Library, "module", lambda self: module)
    monkeypatch.setattr(library.LibraryBackend, "available", lambda self, device: Availability(True))
    assert "early one" in (FlashAttention4Backend().available("cuda").reason or "")


def _config(flags: dict[str, bool]) -> ModuleType:
    module = ModuleType("flash_attn_config")
    module.CONFIG = {"build_flags": flags}
    return module
