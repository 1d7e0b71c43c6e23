from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pagedbench.backends.base import Output, Traits
from pagedbench.checks.base import CheckResult
from pagedbench.checks.cache_update import CacheUpdate
from pagedbench.scenario.model import Inputs, Scenario
from pagedbench.tensors.call import Call
from pagedbench.tensors.prepare import prepare
from pagedbench.words import AttnPath, Verdict
from tests.checks.kernels import Plain, Tamper, context
from tests.tensors.cells import POOL_LAYOUTS, docs_decode, scenario

# The guide's batch writes slot 30 of block 2, slot 0 of block 1, slot 6 of block 6.


def judged(
    tamper: Tamper | None = None,
    wanted: Scenario | None = None,
    path: AttnPath = AttnPath.DECODE,
    traits: Traits | None = None,
) -> CheckResult:
    return CacheUpdate().run(context(wanted or docs_decode(), Plain(tamper, traits), path))


@pytest.mark.parametrize("name", POOL_LAYOUTS)
@pytest.mark.parametrize("path", [AttnPath.DECODE, AttnPath.VARLEN])
def test_a_right_append_passes_in_every_layout(name: str, path: AttnPath) -> None:
    result = judged(wanted=docs_decode(layout=POOL_LAYOUTS[name]), path=path)
    assert result.verdict is Verdict.PASS
    assert result.message.startswith("3 new tokens")


def test_it_says_who_wrote() -> None:
    assert "appended" in judged().message
    assert "written by the tool" in judged(path=AttnPath.VARLEN).message
    assert "written by the tool" in judged(path=AttnPath.PAGED_VARLEN, traits=Traits(appends=False)).message
    assert "nothing to append" in judged(wanted=scenario(append=False), path=AttnPath.VARLEN).message


@pytest.mark.parametrize("poison", ["none", "nan", "inf", "large"])
def test_it_passes_whatever_fills_the_slots(poison: str) -> None:
    assert judged(wanted=replace(docs_decode(), inputs=Inputs(poison=poison))).verdict is Verdict.PASS  # type: ignore[arg-type]


def test_a_missed_token_is_named() -> None:
    class Forgets(Plain):
        def decode(self, call: Call, plan: object) -> Output:
            before = call.k_cache[1, 0].clone()
            output = super().decode(call, plan)
            call.k_cache[1, 0] = before
            return output

    result = CacheUpdate().run(context(docs_decode(), Forgets()))
    assert result.verdict is Verdict.CORRUPTED
    assert "sequence 1, new token 0: K missed" in result.message
    finding = result.findings[0]
    assert (finding.sequence, finding.query_token, finding.key) == (1, 0, 32)
    assert (finding.logical_block, finding.physical_block) == (1, 1)


def test_k_and_v_swapped_are_recognised() -> None:
    def tamper(call: Call, output: Output) -> None:
        call.k_cache[6, 6] = call.v_new[2]  # type: ignore[index]

    assert "K wrong value (that of V of query token 2 of the batch)" in judged(tamper).message


def test_a_slot_too_late_is_a_stray_write() -> None:
    def tamper(call: Call, output: Output) -> None:
        call.v_cache[2, 31] = call.v_new[0]  # type: ignore[index]

    result = judged(tamper)
    assert result.verdict is Verdict.CORRUPTED
    assert (
        "stray write into the tail of a block of sequence 0: V changed; slot 95 is block 2, offset 31" in result.message
    )


@pytest.mark.parametrize(
    ("block", "offset", "words"),
    [(5, 3, "a key of sequence 2"), (4, 0, "a block that nobody names"), (6, 7, "the tail of a block of sequence 2")],
)
def test_stray_writes_say_what_they_hit(block: int, offset: int, words: str) -> None:
    def tamper(call: Call, output: Output) -> None:
        call.k_cache[block, offset, 1, 3] = 0.125

    result = judged(tamper)
    assert f"stray write into {words}" in result.message
    assert result.findings[0].physical_block == block


def past(tensor: torch.Tensor, by: int) -> torch.Tensor:
    """One element, `by` elements past the end of a dense tensor."""
    return torch.as_strided(tensor, (1,), (1,), tensor.storage_offset() + tensor.numel() - 1 + by)


@pytest.mark.parametrize("name", ["k_cache", "v_cache", "out", "k_new", "q", "block_table", "cache_seqlens"])
def test_a_write_past_the_end_of_anything_is_found(name: str) -> None:
    def tamper(call: Call, output: Output) -> None:
        past(getattr(call, name), 3).fill_(1)

    result = judged(tamper)
    assert result.verdict is Verdict.CORRUPTED
    assert "guard band" in result.message
    assert name in result.message


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("q", "q changed in sequence 2, query token 0, head 3"),
        ("k_new", "k_new changed in sequence 2, query token 0, KV head 1"),
        ("v_new", "v_new changed in sequence 2, query token 0, KV head 1"),
        ("block_table", "block_table[2][3]: -1 became 0"),
        ("cache_seqlens", "cache_seqlens[2]: 70 became 71"),
        ("cu_seqlens_q", "cu_seqlens_q[3]: 3 became 4"),
        ("sinks", "sinks[3]: 0.5 became 1.5"),
    ],
)
def test_inputs_must_not_change_and_what_did_is_named(name: str, told: str) -> None:
    """The last element of each is one more than it was; the guide's batch with sinks."""

    def tamper(call: Call, output: Output) -> None:
        getattr(call, name).flatten()[-1] += 1

    guide = docs_decode()
    wanted = replace(guide, attention=replace(guide.attention, sinks=(0.0, 1.0, 2.0, 0.5)))
    result = judged(tamper, wanted)
    assert result.verdict is Verdict.CORRUPTED
    assert result.message == told


def test_changed_inputs_are_counted_by_row_and_by_entry() -> None:
    def tamper(call: Call, output: Output) -> None:
        call.q[1] += 1
        call.block_table[0, 1:] = 0

    first, second = judged(tamper).findings
    assert (first.sequence, first.query_token, first.head) == (1, 0, 0)
    assert first.message == "q changed in sequence 1, query token 0, head 0 (and in 3 more of its rows)"
    assert second.message == "block_table[0][1]: -1 became 0 (and 2 more of its entries changed)"


@pytest.mark.parametrize("name", ["layers NHD", "strided NHD"])
def test_memory_between_strided_blocks_must_not_change(name: str) -> None:
    def tamper(call: Call, output: Output) -> None:
        at = call.k_cache.storage_offset() + 32 * call.k_cache.stride(1)
        torch.as_strided(call.k_cache, (1,), (1,), at).fill_(1)

    result = judged(tamper, docs_decode(layout=POOL_LAYOUTS[name]))
    assert "the memory between the blocks of k_cache changed" in result.message


def test_every_slot_counts_also_the_ones_written_with_the_same_value() -> None:
    def tamper(call: Call, output: Output) -> None:
        call.k_cache.copy_(call.k_cache.clone())

    assert judged(tamper).verdict is Verdict.PASS


def test_padding_rows_may_write_into_the_trash_block_and_nowhere_else() -> None:
    wanted = scenario((1, 1, 1, 1), (5, 40, 0, 0), padding_rows=2, cache={"trash_block": True})

    def writes_into(block: int) -> Tamper:
        def tamper(call: Call, output: Output) -> None:
            call.v_cache[block] = 3.0

        return tamper

    assert judged(writes_into(-1), wanted).verdict is Verdict.PASS
    assert judged(writes_into(0), wanted).verdict is Verdict.CORRUPTED


def test_what_was_in_the_pool_before_is_not_asked_of_the_kernel() -> None:
    """The memory to compare with is made anew: a kernel cannot corrupt the expectation."""
    wanted = docs_decode()
    cell = context(wanted, Plain())
    first = prepare(wanted, cell.layout, cell.inputs, cell.path, "cpu")
    first.arena.memory.zero_()
    assert CacheUpdate().run(cell).verdict is Verdict.PASS


@pytest.mark.parametrize("name", ["k", "v"])
def test_the_gathered_keys_must_not_change(name: str) -> None:
    """They lie in memory of the tool's own, not in the arena: 31 keys of sequence 0 come first."""

    def tamper(call: Call, output: Output) -> None:
        getattr(call, name)[33:35] += 1

    result = judged(tamper, path=AttnPath.VARLEN)
    assert result.verdict is Verdict.CORRUPTED
    assert result.message == f"{name}, which the tool gathered, changed at sequence 1, key 2 (and 1 more of its keys)"
