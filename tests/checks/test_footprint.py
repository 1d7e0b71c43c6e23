"""Footprint: a right kernel passes at any length and in any dtype; what a wrong one reads is said exactly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from pagedbench.backends.base import Output, Traits
from pagedbench.checks.base import CheckResult
from pagedbench.checks.footprint import Footprint
from pagedbench.checks.footprint_codes import expected_sums, included_keys, rows_of, sum_codes
from pagedbench.checks.footprint_detect import detect
from pagedbench.faults.catalogue import find_fault
from pagedbench.faults.fault import Fault
from pagedbench.faults.kernel import FaultyBackend
from pagedbench.faults.program import AttentionProgram
from pagedbench.layout.build import build_layout
from pagedbench.scenario.model import Scenario
from pagedbench.tensors.call import Call
from pagedbench.words import AttnPath, Verdict
from tests.checks.kernels import Plain, context
from tests.tensors.cells import docs_decode, scenario


def judged(wanted: Scenario, fault: Fault | None = None, path: AttnPath = AttnPath.DECODE) -> CheckResult:
    return Footprint().run(context(wanted, FaultyBackend(fault), path))


def messages(wanted: Scenario, fault: Fault, path: AttnPath = AttnPath.DECODE) -> list[str]:
    result = judged(wanted, fault, path)
    assert result.verdict is Verdict.FOOTPRINT
    return [finding.message for finding in result.findings]


def planted(change: Callable[[AttentionProgram], AttentionProgram]) -> Fault:
    return Fault("planted", "planted", "W", change)


def weighing(sequence: int, keys: list[int], weight: float) -> Fault:
    """A kernel that counts these keys of one sequence so often."""

    def change(program: AttentionProgram) -> AttentionProgram:
        changed = program.weight.clone()
        changed[sequence, keys] = weight
        return program.replace(weight=changed)

    return planted(change)


RIGHT = [
    docs_decode(),
    scenario((10, 3, 1), (0, 1, 7), append=False),
    scenario((5, 3, 0, 1), (2, 33, 12, 20), append=False),
    scenario((20, 7, 1), (0, 19, 40), cache={"block_size": 16}, attention={"window_size": (16, 0)}),
    scenario((4, 6), (9, 30), attention={"causal": False, "window_size": (3, 5)}),
    scenario(attention={"sinks": (1.0, -2.0, 0.0, 5.0)}),
    scenario(attention={"softcap": 20.0}),
    scenario(attention={"softcap": 1000.0}),
    scenario(attention={"alibi_slopes": (0.5, 0.25, 0.125, 0.0625)}),
    scenario(attention={"softmax_scale": 3.0}),
    scenario(heads=(6, 6), head_dim_v=24),
    scenario((1, 1), (40, 50), cache={"placement": "shared-prefix", "block_size": 16}),
    scenario((1, 1, 1, 1), (37, 5, 90, 0), padding_rows=1, cache={"trash_block": True, "block_size": 16}),
    scenario((1, 1, 1), (37, 0, 5), append=False),
]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("wanted", RIGHT, ids=range(len(RIGHT)))
def test_a_right_kernel_reads_exactly_its_keys(wanted: Scenario, dtype: str) -> None:
    typed = replace(wanted.attention, dtype=dtype, q_dtype=dtype, kv_dtype=dtype)
    uniform = set(wanted.batch.query_lens) == {1}
    result = judged(replace(wanted, attention=typed), None, AttnPath.DECODE if uniform else AttnPath.PAGED_VARLEN)
    assert result.verdict is Verdict.PASS, result.message


class SinksInBf16(FaultyBackend):
    """A right kernel that takes sinks in bf16, as FlashAttention-3 does."""

    def decode(self, call: Call, plan: object) -> Output:
        assert call.sinks is not None
        return super().decode(replace(call, sinks=call.sinks.bfloat16().float()), plan)


@pytest.mark.parametrize("softcap", [None, 20.0])
@pytest.mark.parametrize("keys", [100, 3000])
def test_a_kernel_may_take_sinks_in_bf16(keys: int, softcap: float | None) -> None:
    wanted = scenario((1, 1), (keys, keys // 2), attention={"sinks": (1.0, -2.0, 0.0, 5.0), "softcap": softcap})
    result = Footprint().run(context(wanted, SinksInBf16(None), AttnPath.DECODE))
    assert result.verdict is Verdict.PASS, result.message


@pytest.mark.parametrize("path", list(AttnPath))
def test_another_right_kernel_passes_too(path: AttnPath) -> None:
    assert Footprint().run(context(scenario(append=path is AttnPath.DECODE), Plain(), path)).verdict is Verdict.PASS


@pytest.mark.parametrize("keys", [70, 1000, 8192, pytest.param(32768, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_one_key_of_many_is_not_overlooked(keys: int, dtype: str) -> None:
    wanted = scenario((1,), (keys - 1,), heads=(2, 1), head_dim=16, dtype=dtype, cache={"block_size": 64})
    assert judged(wanted).verdict is Verdict.PASS
    missed = keys // 3
    assert messages(wanted, weighing(0, [missed], 0.0)) == [
        f"sequence 0, query token 0, heads 0–1: misses key {missed:,}"
    ]


class RoundsPartials(Plain):
    """Attends to some keys at a time, and rounds each result to bf16 before it joins them."""

    def softmax(self, scores: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        short = -scores.shape[1] % 37
        parts = torch.nn.functional.pad(scores, (0, short), value=-torch.inf).unflatten(1, (-1, 37))
        values = torch.nn.functional.pad(v, (0, 0, 0, 0, 0, short)).unflatten(0, (-1, 37))
        lse = parts.logsumexp(-1)
        out = torch.einsum("hmk,mkhd->hmd", torch.exp(parts - lse[..., None]), values).bfloat16().float()
        total = lse.logsumexp(-1)
        return torch.einsum("hm,hmd->hd", torch.exp(lse - total[:, None]), out), total


class LosesAKey(RoundsPartials):
    def row(self, call: Call, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        kept = torch.arange(len(k)) != len(k) // 2
        return super().row(call, q, k[kept], v[kept])


class SwapsChannels(RoundsPartials):
    def row(self, call: Call, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        swapped = v.clone()
        swapped[..., 3], swapped[..., 9] = v[..., 9], v[..., 3]
        return super().row(call, q, k, swapped)


ROUNDED = Traits(out=True, rounded_partials=True)


def test_partial_results_may_be_rounded_where_that_is_declared() -> None:
    long = scenario(
        (1,), (60_000,), attention={"num_heads": 1, "num_kv_heads": 1, "head_dim": 128, "dtype": "bfloat16"}
    )
    assert Footprint().run(context(long, RoundsPartials(traits=ROUNDED))).verdict is Verdict.PASS
    accused = Footprint().run(context(long, RoundsPartials()))
    assert accused.verdict is Verdict.FOOTPRINT  # its splits are what makes the difference
    for wrong in (LosesAKey, SwapsChannels):
        assert Footprint().run(context(long, wrong(traits=ROUNDED))).verdict is Verdict.FOOTPRINT


def test_keys_counted_twice_are_listed() -> None:
    assert messages(docs_decode(), weighing(2, [3, 64, 65], 2.0)) == [
        "sequence 2, query token 0, heads 0–3: reads keys 3, 64–65 twice"
    ]


def test_a_block_of_another_sequence_is_named_with_both_ids() -> None:
    """Sequence 2 has blocks 3, 5, 6; block 2 is sequence 0's."""

    def change(program: AttentionProgram) -> AttentionProgram:
        slots = program.k_slots.clone()
        slots[2, 32:64] = torch.arange(2 * 32, 3 * 32)
        return program.replace(k_slots=slots, v_slots=slots)

    assert messages(docs_decode(), planted(change)) == [
        "sequence 2, query token 0, heads 0–3: reads block 2 (sequence 0's) instead of block 5 for keys 32–63"
    ]


def test_a_miss_and_a_replaced_block_are_both_said() -> None:
    def change(program: AttentionProgram) -> AttentionProgram:
        weight, slots = program.weight.clone(), program.k_slots.clone()
        weight[2, 70] = 0.0
        slots[2, 32:64] = torch.arange(4 * 32, 5 * 32)
        return program.replace(weight=weight, k_slots=slots, v_slots=slots)

    assert messages(docs_decode(), planted(change)) == [
        "sequence 2, query token 0, heads 0–3: reads block 4 (free) instead of block 5 for keys 32–63; misses key 70"
    ]


def test_two_keys_that_make_up_for_each_other_in_one_group_are_found() -> None:
    """Key 5 twice and key 6 not at all: the number of keys read from the block is right."""

    def change(program: AttentionProgram) -> AttentionProgram:
        slots = program.v_slots.clone()
        slots[0, 6] = slots[0, 5]
        return program.replace(v_slots=slots)

    wanted = scenario((1,), (400,), head_dim=16, cache={"block_size": 32})
    assert messages(wanted, planted(change)) == [
        "sequence 0, query token 0, heads 0–3: misses key 6; reads key 5 twice"
    ]


def test_only_the_heads_that_are_wrong_are_named() -> None:
    def change(program: AttentionProgram) -> AttentionProgram:
        heads = program.v_heads.clone()
        heads[1] = 1
        return program.replace(k_heads=heads, v_heads=heads)

    found = messages(docs_decode(), planted(change))
    assert found[0] == "sequence 0, query token 0, head 1: reads KV head 1 instead of 0"
    assert all("head 1:" in message for message in found)


class VChanged(FaultyBackend):
    """Reads its own slots, but takes V as `change` makes it."""

    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__(None)
        self._change = change

    def _run(self, call: Call) -> Output:
        right = super()._run(call)
        return Output(self._change(right.out), right.lse)


def in_channel(channel: int, other: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """One channel of V taken from another."""

    def change(v: torch.Tensor) -> torch.Tensor:
        changed = v.clone()
        changed[..., channel] = v[..., other]
        return changed

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda v: v * 0.25, "holds its keys' values times 0.25: V or the output is scaled"),
        (lambda v: v * 3, "holds its keys' values times 3: V or the output is scaled"),
        (lambda v: v + 0.5, "holds its keys' values and one number more in all channels"),
        (in_channel(5, 6), "holds the values of no key in channel 5 of V, the others are right"),
        (lambda v: v.flip(-1), "holds its keys' values with the channels of V in another order"),
    ],
)
@pytest.mark.parametrize("keys", [70, 300])
def test_values_that_no_set_of_slots_gives_are_said_to_be_no_keys(
    change: Callable[[torch.Tensor], torch.Tensor], said: str, keys: int
) -> None:
    result = Footprint().run(context(scenario((1, 1), (keys, 20), heads=(1, 1)), VChanged(change)))
    assert result.verdict is Verdict.FOOTPRINT
    assert said in result.message
    assert "misses" not in result.message


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("one-key-too-many", "reads offset 31 of block 2 (the unused rest of it)"),
        ("stale-new-token", "misses key 30; reads a slot that is appended to before the new token is there"),
        ("all-zeros", "its output is all zeros"),
        ("combine-to-row-0", "holds what belongs to query token 0 of sequence 2"),
        ("k-one-slot-late", "V is right, but K is not the keys' own within"),
        ("mean-of-v", "K does not matter"),
    ],
)
def test_what_a_fault_does_is_put_into_words(name: str, said: str) -> None:
    assert said in messages(docs_decode(), find_fault(name))[0]


def test_a_row_that_must_see_nothing_but_does_is_wrong() -> None:
    wanted = scenario((4,), (2,), append=False)
    found = messages(wanted, find_fault("causal-ignored"), AttnPath.PAGED_VARLEN)
    assert "query token 2" in found[0]
    assert "which it must not see" in found[0]


def test_an_lse_in_base_2_is_a_mismatch_though_the_slots_are_right() -> None:
    result = judged(docs_decode(), find_fault("lse-base-2"))
    assert result.verdict is Verdict.MISMATCH
    assert "reads the right slots" in result.message


def test_under_a_low_softcap_k_is_said_to_be_unchecked() -> None:
    result = judged(scenario(attention={"softcap": 1.0}))
    assert result.verdict is Verdict.PASS
    assert "softcap" in result.warnings[0]


def test_too_few_channels_are_said_and_not_passed() -> None:
    reason = Footprint().not_applicable(context(scenario(head_dim_v=4), FaultyBackend()))
    assert reason is not None
    assert "8" in reason


@pytest.mark.parametrize("wanted", RIGHT[:4], ids=range(4))
def test_codes_are_odd_and_their_sums_stay_small(wanted: Scenario) -> None:
    """Odd, so none is 0; telescoping, so that the sum over any run of included keys is at most 7."""
    layout = build_layout(wanted)
    generator = torch.Generator().manual_seed(0)
    included = included_keys(layout, 2, generator)
    codes = sum_codes(included, (layout.total_k, 2, 16), layout, generator)
    assert bool((codes % 2 != 0).all())
    assert int(codes.abs().max()) <= 7
    sums, counts = expected_sums(codes, included, rows_of(layout, "cpu"))
    assert int(sums.abs().max()) <= 7
    seen = torch.from_numpy(layout.visible_to - layout.visible_from)
    assert bool((counts[seen > 0] > 0).all())


@pytest.mark.parametrize("wanted", RIGHT[:4], ids=range(4))
def test_sums_are_those_of_adding_up_each_rows_own_keys(wanted: Scenario) -> None:
    layout = build_layout(wanted)
    generator = torch.Generator().manual_seed(0)
    for included in (included_keys(layout, 2, generator), None):
        codes = sum_codes(included, (layout.total_k, 2, 16), layout, generator)
        counting = torch.ones(layout.total_k, 2, dtype=torch.bool) if included is None else included
        sums, counts = expected_sums(codes, counting, rows_of(layout, "cpu"))
        for row, sequence in enumerate(layout.row_sequence()):
            first = int(layout.cu_seqlens_k[sequence])
            seen = slice(first + int(layout.visible_from[row]), first + int(layout.visible_to[row]))
            assert sums[row].equal((codes[seen].int() * counting[seen][..., None]).sum(0, dtype=torch.int32))
            assert counts[row].equal(counting[seen].sum(0, dtype=torch.int32))


def test_a_stranger_in_a_long_sequence_is_found_in_a_pool_of_many_blocks() -> None:
    """Key 9,000 of 20,000 comes from slot 3 of a free block, 1,500 blocks away from anything the sequence owns."""
    wanted = scenario(
        (1,), (19_999,), heads=(1, 1), cache={"block_size": 16, "num_blocks": 4000, "placement": "sequential"}
    )
    stranger = 3_990 * 16 + 3

    def change(program: AttentionProgram) -> AttentionProgram:
        slots = program.v_slots.clone()
        slots[0, 9_000] = stranger
        return program.replace(v_slots=slots)

    (said,) = messages(wanted, planted(change))
    assert "key 9,000" in said
    assert "block 3990 (free)" in said


def test_codes_made_for_one_cell_judge_the_next() -> None:
    """The same batch and inputs under another kernel: judged as on codes of its own."""
    wanted, fault = docs_decode(), weighing(2, [3, 64, 65], 2.0)
    first = context(wanted, FaultyBackend(None), AttnPath.DECODE)
    assert Footprint().run(first).verdict is Verdict.PASS
    second = replace(first, backend=FaultyBackend(fault))
    second.__dict__["inputs"] = first.inputs
    assert Footprint().run(second) == judged(wanted, fault)
    second.backend = FaultyBackend(None)
    assert Footprint().run(second).verdict is Verdict.PASS


def test_codes_are_made_anew_for_new_inputs() -> None:
    """A kernel that was found wrong may have written over the old ones."""
    first = context(docs_decode(), FaultyBackend(None), AttnPath.DECODE)
    one = detect(first, "K").included
    assert detect(first, "K").included is one
    new = replace(first)
    again = detect(new, "K").included
    assert again is not one
    assert again.equal(one)


@pytest.mark.parametrize(("v_scale", "fits"), [(1e-6, False), (3e-5, True), (1.7, True), (1e4, False)])
def test_a_scale_of_v_that_float16_cannot_hold_the_codes_with_is_said(v_scale: float, fits: bool) -> None:
    attention = {"dtype": "float16", "kv_dtype": "float8_e4m3fn", "v_scale": v_scale}
    wanted = scenario((1, 1), (100, 30), dtype="float16", attention=attention)
    cell = context(wanted, FaultyBackend(None))
    reason = Footprint().not_applicable(cell)
    assert (reason is None) == fits, reason
    assert not fits or Footprint().run(cell).verdict is Verdict.PASS
