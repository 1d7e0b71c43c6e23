from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pagedbench.errors import UsageError
from pagedbench.layout.build import build_layout
from pagedbench.scenario.loader import loads
from pagedbench.scenario.model import Override, Scenario
from pagedbench.tensors.bits import bits
from pagedbench.tensors.inputs import random_inputs
from pagedbench.tensors.kvcache import PagedKVCache
from pagedbench.tensors.prepare import Fill, Prepared, available_bytes, call_spec, estimate_bytes, prepare
from pagedbench.words import AttnPath
from tests.tensors.cells import POOL_LAYOUTS, docs_decode, scenario


def prepared(wanted: Scenario, path: AttnPath = AttnPath.DECODE, fill: Fill | None = None) -> Prepared:
    layout = build_layout(wanted)
    return prepare(wanted, layout, random_inputs(wanted, layout, "cpu"), path, "cpu", fill=fill)


def test_the_guide_s_decode_example_becomes_its_call() -> None:
    call = prepared(docs_decode()).call
    assert call.cache_seqlens.tolist() == [30, 32, 70]
    assert call.total_seqlens.tolist() == [31, 33, 71]
    assert call.block_table.tolist() == [[2, -1, -1, -1], [0, 1, -1, -1], [3, 5, 6, -1]]
    assert call.cu_seqlens_q.tolist() == [0, 1, 2, 3]
    assert call.write_slots.tolist() == [2 * 32 + 30, 1 * 32 + 0, 6 * 32 + 6]
    assert (call.max_seqlen_q, call.max_seqlen_k) == (1, 71)
    assert call.q_batched.shape == (3, 1, 4, 16)
    assert call.k_new is not None
    assert call.k_new.shape == (3, 2, 16)


def test_the_guide_s_varlen_example_becomes_its_call() -> None:
    call = prepared(scenario((10, 3, 1), (0, 1, 7), append=False), AttnPath.VARLEN).call
    assert call.cu_seqlens_q.tolist() == [0, 10, 13, 14]
    assert call.cu_seqlens_k.tolist() == [0, 0, 1, 8]
    assert (call.max_seqlen_q, call.max_seqlen_k) == (10, 7)
    assert call.k_new is None
    assert len(call.read_slots) == 8


def test_index_arrays_are_int32_unless_the_scenario_says_otherwise() -> None:
    plain = prepared(docs_decode()).call
    wide = prepared(
        replace(docs_decode(), attention=replace(docs_decode().attention, index_dtype={"block_table": "int64"}))
    )
    assert plain.block_table.dtype == plain.cu_seqlens_q.dtype == torch.int32
    assert wide.call.block_table.dtype == torch.int64
    assert wide.call.cu_seqlens_q.dtype == torch.int32
    assert wide.call.spec.index_dtypes == {"block_table": "int64"}


def test_an_override_reaches_the_kernel_and_only_what_it_names() -> None:
    wrong = Override({"cu_seqlens_q": (0, 2, 2, 3), "max_seqlen_k": 5})
    call = prepared(replace(docs_decode(), override=wrong)).call
    assert call.cu_seqlens_q.tolist() == [0, 2, 2, 3]
    assert (call.max_seqlen_k, call.spec.max_seqlen_k) == (5, 5)
    assert call.host is not None
    assert call.host.cu_seqlens_q.tolist() == [0, 2, 2, 3]
    assert call.cache_seqlens.tolist() == [30, 32, 70]
    with pytest.raises(UsageError, match=r"override\.block_table"):
        prepared(replace(docs_decode(), override=Override({"block_table": (1, 2)})))


@pytest.mark.parametrize("name", POOL_LAYOUTS)
def test_a_new_token_without_a_slot_is_not_written_and_the_others_are(name: str) -> None:
    """An engine's padding tokens have the slot −1: the tool's own write leaves them out, as an engine's does."""
    wanted = replace(docs_decode(layout=POOL_LAYOUTS[name]), override=Override({"write_slots": (7, -1, 9)}, "as-given"))
    made = prepared(wanted, AttnPath.VARLEN)
    call, before = made.call, bits(made.pool.k).clone()
    assert call.k_new is not None
    assert call.v_new is not None
    PagedKVCache(call.k_cache, call.v_cache).update(
        call.k_new, call.v_new, call.write_slots, call.read_slots, call.written
    )
    assert call.write_slots.tolist() == [7, -1, 9]
    changed = (bits(made.pool.k) != before).flatten(2).any(-1).flatten().nonzero().flatten()
    assert changed.tolist() == [7, 9]
    assert torch.equal(made.pool.k[0, 9], call.k_new[2])
    assert torch.equal(bits(made.expected().pool.k), bits(made.pool.k))


@pytest.mark.parametrize("name", POOL_LAYOUTS)
def test_the_expected_memory_differs_by_the_new_tokens_alone(name: str) -> None:
    before = prepared(docs_decode(layout=POOL_LAYOUTS[name]))
    after = before.expected()
    changed = (bits(before.pool.k) != bits(after.pool.k)).flatten(2).any(-1).flatten().nonzero().flatten()
    assert sorted(changed.tolist()) == [32, 94, 198]
    assert torch.equal(after.pool.k[0 + 1, 0], before.call.k_new[1])  # type: ignore[index]
    places = {place for place, _, _ in before.arena.changed_bytes(after.arena)}
    assert places <= {"k_cache", "v_cache", "kv_cache"}


def test_without_an_append_the_expected_memory_is_the_same() -> None:
    before = prepared(scenario((10, 3, 1), (0, 1, 7), append=False), AttnPath.VARLEN)
    assert before.arena.equals(before.expected().arena)


def test_the_output_s_memory_holds_the_pattern_asked_for() -> None:
    out = prepared(docs_decode(), fill=replace(Fill.poison("nan"), out=0x1234)).call.out
    assert out is not None
    assert (out.view(torch.int16) == 0x1234).all()
    assert prepared(docs_decode()).call.out.isnan().all()  # type: ignore[union-attr]


def test_keys_that_nobody_sees_and_that_have_no_block_can_be_gathered() -> None:
    cache = {"block_table": ((-1, 1),), "num_blocks": 2, "block_size": 4, "max_blocks_per_seq": 2}
    call = prepared(scenario((1,), (5,), cache=cache, attention={"window_size": (1, 0)}), AttnPath.VARLEN).call
    assert call.read_slots.tolist() == [5, 5, 5, 5, 4, 5], "the unseen four are read from the last key's slot"


def test_an_empty_batch_is_a_call() -> None:
    wanted = scenario((), (), cache={"num_blocks": 0})
    call = prepared(wanted).call
    assert (call.spec.batch, call.spec.query_len, call.spec.total_q) == (0, 1, 0)
    assert call.q_batched.shape == (0, 1, 4, 16)


def test_the_spec_needs_no_memory_and_says_what_backends_ask() -> None:
    wanted = scenario((4, 0), (0, 3), append=False)
    spec = call_spec(wanted, build_layout(wanted), AttnPath.VARLEN, "cpu")
    assert (spec.has_empty_query, spec.has_empty_keys, spec.has_blind_rows) == (True, True, True)
    assert spec.query_len is None


def test_the_estimate_covers_what_is_allocated_and_grows_with_the_pool() -> None:
    wanted = docs_decode()
    layout = build_layout(wanted)
    need = estimate_bytes(wanted, layout, AttnPath.VARLEN)
    assert need.parts["call"] == prepared(wanted).arena.memory.numel() * 2
    assert need.total > 2 * need.parts["call"]
    # Half a million keys of eight heads of 128 in bf16: 1 GiB each for K and V.
    long = scenario((1,), (524_287,), heads=(32, 8), head_dim=128, cache={"block_size": 256})
    parts = estimate_bytes(long, build_layout(long), AttnPath.DECODE).parts
    assert parts["logical inputs"] >= 2 << 30
    assert parts["call"] >= 2 << 30
    assert parts["gathered keys"] == 0


def test_a_machine_has_some_memory_left() -> None:
    assert 0 < available_bytes("cpu") < 1 << 50


@pytest.mark.parametrize(("sinks", "fit"), [((-1.0, 0.0, 0.5, 2.0), True), ((0.3, 0.0, 0.5, 2.0), False)])
def test_a_call_says_whether_bfloat16_holds_its_sinks(sinks: tuple[float, ...], fit: bool) -> None:
    text = f"""
name: sinks
about: Sinks.
batch: {{query_lens: [1], cached_lens: [3]}}
cache: {{block_size: 4}}
attention: {{num_heads: 4, num_kv_heads: 2, head_dim: 16, sinks: {list(sinks)}}}
"""
    (loaded,) = loads(text)
    assert call_spec(loaded, build_layout(loaded), AttnPath.DECODE, "cpu").sinks_fit_bf16 is fit
