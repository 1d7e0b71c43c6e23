"""Adapters of libraries that run on a CPU: transformers for real, flex as plain operations instead of compiled."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pagedbench.backends import flex
from pagedbench.backends.execute import execute
from pagedbench.backends.flex import FlexBackend
from pagedbench.backends.transformers_backend import TransformersBackend, TransformersEagerBackend
from pagedbench.words import AttnPath

from .calls import Batch, Made, make

pytest.importorskip("transformers")
RAGGED = Batch((3, 1, 5, 2), (0, 7, 9, 1))
TRANSFORMERS = {
    "ragged": RAGGED,
    "one token each": Batch((1, 1, 1), (30, 32, 70), block_size=32),
    "nothing appended": Batch((2, 1), (5, 3), append=False),
    "no query token": Batch((2, 0), (5, 3)),
    "window": replace(RAGGED, window_size=(3, 0)),
    "MHA": replace(RAGGED, num_heads=2),
}


def assert_right(made: Made, out: torch.Tensor) -> None:
    torch.testing.assert_close(out.double(), made.out, rtol=1e-5, atol=1e-5)
    assert torch.equal(made.call.k_cache.contiguous().view(torch.int32), made.k_after.view(torch.int32))
    assert torch.equal(made.call.v_cache.contiguous().view(torch.int32), made.v_after.view(torch.int32))


@pytest.mark.parametrize("backend", [TransformersBackend(), TransformersEagerBackend()], ids=lambda b: b.name)
@pytest.mark.parametrize("case", TRANSFORMERS)
def test_transformers_own_cache_and_functions(backend: TransformersBackend, case: str) -> None:
    made = make(TRANSFORMERS[case], AttnPath.VARLEN)
    assert backend.unsupported(made.call.spec) is None
    assert_right(made, execute(backend, made.call).out)


def test_the_library_updates_the_pool_itself() -> None:
    """Without the tool's write before it, the new tokens are in their slots all the same."""
    made = make(RAGGED, AttnPath.VARLEN)
    backend = TransformersBackend()
    output = backend.varlen(made.call, backend.plan(made.call))
    assert_right(made, output.out)


@pytest.mark.parametrize("backend", [TransformersBackend(), TransformersEagerBackend()], ids=lambda b: b.name)
def test_a_new_token_without_a_slot_is_left_out_by_the_librarys_own_update(backend: TransformersBackend) -> None:
    made = make(Batch((1, 1), (3, 5)), AttnPath.VARLEN)
    call, before = made.call, made.call.k_cache.clone()
    assert call.k_new is not None
    first, second = call.write_slots.tolist()
    call.write_slots, call.written = torch.tensor([first, -1]), torch.tensor([0])
    backend.varlen(call, backend.plan(call))
    keys, was = call.k_cache.flatten(0, 1), before.flatten(0, 1)
    assert torch.equal(keys[first], call.k_new[0])
    assert torch.equal(keys[second].view(torch.int32), was[second].view(torch.int32))


def test_eager_has_sinks() -> None:
    made = make(replace(RAGGED, sinks=(0.5, -1.0, 2.0, 0.0)), AttnPath.VARLEN)
    assert TransformersBackend().unsupported(made.call.spec) is not None
    assert_right(made, execute(TransformersEagerBackend(), made.call).out)


def test_a_pool_that_is_not_dense_is_refused_and_never_copied() -> None:
    made = make(replace(RAGGED, order="HND"), AttnPath.VARLEN)
    assert "dense in NHD order" in (TransformersBackend().unsupported(made.call.spec) or "")
    with pytest.raises(RuntimeError, match="view"):
        TransformersBackend().plan(made.call)


FLEX = {
    "ragged": replace(RAGGED, block_size=16),
    "one token each": Batch((1, 1, 1), (30, 32, 70), block_size=32),
    "no query token, no key": Batch((2, 0, 1), (0, 3, 0), block_size=16, append=False, causal=False),
    "more queries than keys": Batch((6, 2), (3, 9), block_size=16, append=False),
    "window": replace(RAGGED, block_size=16, window_size=(3, 0)),
    "window both ways": replace(RAGGED, block_size=16, causal=False, window_size=(3, 1)),
    "softcap and ALiBi": replace(RAGGED, block_size=16, softcap=0.7, alibi=(0.5, 0.25, 0.125, 0.0625)),
}


@pytest.mark.parametrize("path", [AttnPath.DECODE, AttnPath.PAGED_VARLEN])
@pytest.mark.parametrize("case", FLEX)
def test_flex_reads_through_its_own_page_table(monkeypatch: pytest.MonkeyPatch, case: str, path: AttnPath) -> None:
    from torch.nn.attention.flex_attention import flex_attention

    monkeypatch.setattr(flex, "_compiled", lambda: flex_attention)
    made = make(replace(FLEX[case], poison=1e3), path)  # as plain operations it multiplies the whole pool by weights
    output = execute(FlexBackend(), made.call)
    assert_right(made, output.out)
    assert output.lse is not None
    torch.testing.assert_close(output.lse.double(), made.lse, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("query_len", "block_size", "general"),
    [(1, 16, False), (64, 64, False), (65, 16, True), (100, 16, True), (1, 128, False), (1, 96, True)],
)
def test_flex_is_kept_from_a_decode_kernel_that_has_no_tile(query_len: int, block_size: int, general: bool) -> None:
    """Two query heads a KV head: 64 tokens are the most that its 128 rows hold."""
    made = make(Batch((query_len,), (5,), block_size=block_size), AttnPath.PAGED_VARLEN)
    assert made.call.spec.group_size == 2
    assert flex._kernel_options(made.call.spec)["FORCE_USE_FLEX_ATTENTION"] is general
