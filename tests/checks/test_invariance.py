from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch

from pagedbench.backends.base import Output, Traits
from pagedbench.checks.base import CheckResult
from pagedbench.checks.invariance import OUTPUT_REUSED, Invariance
from pagedbench.checks.reorder import chosen, copies
from pagedbench.checks.variations import STRIDED
from pagedbench.layout.build import build_layout
from pagedbench.layout.variants import moved, with_padding
from pagedbench.scenario.model import Override, Scenario
from pagedbench.tensors.call import Call, CallSpec
from pagedbench.tensors.inputs import random_inputs
from pagedbench.words import AttnPath, Verdict
from tests.checks.kernels import Plain, Tamper, context
from tests.tensors.cells import docs_decode, scenario


class NoSplits(Plain):
    """Refuses to be told a number of splits, so that the tests below are about one thing each."""

    def unsupported(self, spec: CallSpec) -> str | None:
        return None if spec.num_splits == 0 else "it has no splits"


def judged(
    tamper: Tamper | None = None,
    wanted: Scenario | None = None,
    path: AttnPath = AttnPath.DECODE,
    traits: Traits | None = None,
) -> CheckResult:
    return Invariance().run(context(wanted or docs_decode(), NoSplits(tamper, traits), path))


def test_a_right_kernel_passes_and_the_sentence_says_what_was_done() -> None:
    result = judged()
    assert result.verdict is Verdict.PASS
    for words in ("20 repeats", "moved blocks", "padding 0", "padding num_blocks", "padding decoy", "wider table"):
        assert words in result.message
    for words in ("sequence 0 alone", "batch in reverse order", "3 times", "the varlen path"):
        assert words in result.message


def test_what_a_path_without_a_table_cannot_show_is_said_and_not_passed() -> None:
    message = judged(path=AttnPath.VARLEN).message
    assert "not applicable: blocks, padding and width (this path has no block table)" in message
    assert "moved blocks" not in message


@pytest.mark.parametrize("first", range(5))
def test_one_noisy_call_in_five_does_not_get_through(first: int) -> None:
    calls = 0

    def tamper(call: Call, output: Output) -> None:
        nonlocal calls
        calls += 1
        if calls % 5 == first:
            output.out[1, 2, 3] *= 1.01

    result = judged(tamper)
    assert result.verdict is Verdict.UNSTABLE
    assert any(f.message.startswith("repeats: sequence 1, query token 0") for f in result.findings)
    assert any("of 20 runs" in f.message for f in result.findings)


def test_noise_within_the_budget_is_a_matter_of_what_the_backend_declares() -> None:
    calls = 0

    def tamper(call: Call, output: Output) -> None:
        nonlocal calls
        calls += 1
        output.out[0, 0, 0] *= 1 + 2**-7 * (calls % 2)

    assert judged(tamper).verdict is Verdict.UNSTABLE
    accepted = judged(tamper, traits=Traits(repeatable=False))
    assert accepted.verdict is Verdict.PASS
    assert "within budget, largest difference" in accepted.message


def test_noise_beyond_the_budget_is_unstable_whatever_is_declared() -> None:
    calls = 0

    def tamper(call: Call, output: Output) -> None:
        nonlocal calls
        calls += 1
        output.out[0] += calls % 2

    result = judged(tamper, traits=Traits(repeatable=False))
    assert result.verdict is Verdict.UNSTABLE
    assert "leaves its budget" in result.message


def follows_padding(call: Call, output: Output) -> None:
    if int(call.block_table[0, 1]) >= 0:
        output.out[0] += 1


def test_following_padding_is_found() -> None:
    names = [f.message.split(":")[0] for f in judged(follows_padding).findings]
    assert set(names) >= {"padding 0", "padding num_blocks", "padding decoy"}


def test_an_error_on_a_legal_variation_is_an_error_that_names_it() -> None:
    def tamper(call: Call, output: Output) -> None:
        if call.spec.max_blocks_per_seq > 4:
            raise ValueError("four blocks at most")

    result = judged(tamper)
    assert result.verdict is Verdict.ERROR
    assert result.message == "wider table: ValueError: four blocks at most"


def test_dependence_on_batch_mates_is_reported_and_judged_by_the_budget() -> None:
    def slightly(call: Call, output: Output) -> None:
        output.out *= 1 + 1.1 * 2**-9 * (call.spec.batch == 1)

    def grossly(call: Call, output: Output) -> None:
        output.out *= 1 + (call.spec.batch == 1)

    result = judged(slightly)
    assert result.verdict is Verdict.PASS
    assert "largest difference: sequence 0 alone" in result.message
    assert judged(slightly, traits=Traits(batch_invariant=True)).verdict is Verdict.UNSTABLE
    assert judged(grossly).verdict is Verdict.UNSTABLE


def test_copies_that_differ_from_each_other_are_found() -> None:
    def tamper(call: Call, output: Output) -> None:
        if call.spec.batch == 3 and call.cache_seqlens.tolist() == [70, 70, 70]:
            output.out[1] += 1

    assert "sequence 2 3 times" in judged(tamper).message


def test_splits_are_varied_where_the_backend_takes_them() -> None:
    def tamper(call: Call, output: Output) -> None:
        output.out += call.spec.num_splits == 3

    result = Invariance().run(context(docs_decode(), Plain(tamper)))
    assert result.verdict is Verdict.UNSTABLE
    assert result.message.startswith("3 split(s)")


def test_splits_that_change_nothing_are_not_varied_and_that_is_said() -> None:
    seen = set()
    kernel = Plain(lambda call, output: seen.add(call.spec.num_splits), Traits(out=True, ignores_splits=True))
    assert "splits (plain cuts keys as it likes)" in Invariance().run(context(docs_decode(), kernel)).message
    assert seen == {0}


def test_what_is_wrong_with_another_path_is_a_warning_and_no_verdict_on_this_one() -> None:
    def wrong(call: Call, output: Output) -> None:
        output.out.masked_fill_(torch.tensor(call.spec.path is AttnPath.VARLEN), torch.nan)

    def raising(call: Call, output: Output) -> None:
        if call.spec.path is AttnPath.VARLEN:
            raise ValueError("no such kernel")

    result = judged(wrong)
    assert result.verdict is Verdict.PASS
    assert result.warnings == ("the varlen path is wrong itself (see its own cell)",)
    assert "the varlen path" not in result.message
    assert result.metrics["worst_ratio"] <= 1
    assert judged(raising).warnings == ("the varlen path raised ValueError: no such kernel (see its own cell)",)


def test_another_path_is_judged_by_what_is_declared_of_it() -> None:
    class Rougher(NoSplits):
        def traits_for(self, path: AttnPath) -> Traits:
            return replace(super().traits_for(path), p_dtype="float8_e4m3fn" if path is AttnPath.VARLEN else None)

    def tamper(call: Call, output: Output) -> None:
        output.out *= 1 + 2.0**-6 * (call.spec.path is AttnPath.VARLEN)

    assert judged(tamper).warnings == ("the varlen path is wrong itself (see its own cell)",)
    result = Invariance().run(context(docs_decode(), Rougher(tamper), AttnPath.DECODE))
    assert (result.verdict, result.warnings) == (Verdict.PASS, ())
    assert "within budget, largest difference" in result.message


class TestSplitsCutFromTheCapacityOfTheTable:
    """docs-decode has four columns; the wider table has more, so the order of sums is another one."""

    traits = Traits(splits_from_capacity=True)

    def judged(self, factor: float, traits: Traits, splits: int = 0) -> CheckResult:
        def tamper(call: Call, output: Output) -> None:
            output.out *= 1 + factor * (call.spec.max_blocks_per_seq > 4)

        wanted = docs_decode()
        wanted = replace(wanted, attention=replace(wanted.attention, num_splits=splits))
        return Invariance().run(context(wanted, Plain(tamper, traits)))

    @pytest.mark.parametrize("splits", [0, 2])
    def test_are_judged_by_the_budget(self, splits: int) -> None:
        result = self.judged(1.1 * 2**-9, self.traits, splits)
        assert result.verdict is Verdict.PASS
        assert "largest difference: wider table" in result.message
        assert "moved blocks" in result.message.split(";")[0]
        gross = self.judged(1.0, self.traits, splits)
        assert gross.verdict is Verdict.UNSTABLE
        assert gross.message.endswith("leaves its budget")

    def test_must_be_the_same_bits_with_one_split(self) -> None:
        assert self.judged(1.1 * 2**-9, self.traits, splits=1).verdict is Verdict.UNSTABLE

    def test_must_be_declared(self) -> None:
        result = self.judged(1.1 * 2**-9, Traits(), splits=2)
        assert result.verdict is Verdict.UNSTABLE
        assert result.message.startswith("wider table")


def test_arrays_that_are_wrong_on_purpose_are_only_repeated() -> None:
    wanted = replace(docs_decode(), override=Override({"max_seqlen_k": 128}))
    assert judged(wanted=wanted).message == "the same bits: 20 repeats"


def test_nothing_is_said_of_an_empty_batch() -> None:
    assert Invariance().not_applicable(context(scenario((), ()), Plain())) == "there are no query tokens"


class TestReorder:
    """Queries 2, 1, 3 and 1, 4, 0 cached keys: new layouts by hand."""

    wanted = scenario((2, 1, 3), (1, 4, 0), cache={"block_size": 4})

    def test_chosen_sequences_keep_their_blocks_keys_and_queries(self) -> None:
        layout = build_layout(self.wanted)
        inputs = random_inputs(self.wanted, layout, "cpu")
        other = chosen(layout, inputs, [2, 0])
        assert other.tokens.tolist() == [3, 4, 5, 0, 1]
        assert other.layout.cu_seqlens_q.tolist() == [0, 3, 5]
        assert other.layout.cu_seqlens_k.tolist() == [0, 3, 6]
        assert (other.layout.block_table == layout.block_table[[2, 0]]).all()
        assert torch.equal(other.inputs.q, inputs.q[[3, 4, 5, 0, 1]])
        assert torch.equal(other.inputs.k, inputs.k[[8, 9, 10, 0, 1, 2]])
        assert other.layout.read_slots.tolist() == layout.read_slots[[8, 9, 10, 0, 1, 2]].tolist()
        assert other.layout.write_slots.tolist() == layout.write_slots[[3, 4, 5, 0, 1]].tolist()

    def test_copies_have_blocks_of_their_own(self) -> None:
        layout = build_layout(self.wanted)
        other = copies(layout, random_inputs(self.wanted, layout, "cpu"), 1, 3)
        used = other.layout.block_table[:, :2]
        assert len(np.unique(used)) == 6
        assert used.min() >= layout.num_blocks
        assert other.layout.num_blocks > used.max()
        assert other.tokens.tolist() == [2, 2, 2]
        assert torch.equal(other.inputs.k[:5], other.inputs.k[5:10])


def test_a_variant_kept_from_another_cell_is_the_call_made_anew() -> None:
    """Moved blocks, a decoy block, the batch reversed: memory bit for bit, whatever the last kernel did to its own."""
    one = context(docs_decode(), Plain(), AttnPath.DECODE)
    inputs = one.inputs
    reversed_batch = chosen(one.layout, inputs, [2, 1, 0])
    for layout, numbers in (
        (moved(one.layout, seed=1), inputs),
        (with_padding(one.layout, "decoy"), inputs),
        (with_padding(one.layout, 0), inputs),
        (reversed_batch.layout, reversed_batch.inputs),
    ):
        one.prepare_variant(layout, numbers).arena.memory.zero_()
        again, fresh = one.prepare_variant(layout, numbers), one.prepare(layout=layout, inputs=numbers)
        assert again.arena.equals(fresh.arena)
        assert again.call.block_table.equal(fresh.call.block_table)
        assert again.call.write_slots.equal(fresh.call.write_slots)


def test_a_fault_on_a_variation_is_found_though_the_cell_before_passed() -> None:
    """The second kernel reads what the table's padding says; the layouts and images are the first one's."""
    first = context(docs_decode(), NoSplits(), AttnPath.DECODE)
    assert Invariance().run(first).verdict is Verdict.PASS
    second = replace(first, backend=NoSplits(follows_padding))
    second.__dict__["inputs"] = first.inputs
    again, fresh = Invariance().run(second), judged(follows_padding)
    assert again.verdict is Verdict.UNSTABLE
    assert again == fresh


def test_a_difference_of_the_lse_alone_is_called_one() -> None:
    def tamper(call: Call, output: Output) -> None:
        if call.spec.batch == 1 and output.lse is not None:
            output.lse += 0.5

    message = judged(tamper).message
    assert message.startswith("sequence 0 alone, without batch mates: sequence 0, query token 0")
    assert "its LSE differs by up to 0.5 (" in message


def test_an_output_that_a_later_call_overwrites_is_a_warning() -> None:
    """Legal for one who knows of it, and harm to the layer that still holds the earlier output."""

    class OneBuffer(NoSplits):
        buffers: ClassVar[dict[torch.Size, torch.Tensor]] = {}

        def decode(self, call: Call, plan: object) -> Output:
            right = super().decode(call, plan)
            kept = self.buffers.setdefault(right.out.shape, torch.empty_like(right.out))
            return Output(kept.copy_(right.out), right.lse)

    result = Invariance().run(context(docs_decode(), OneBuffer()))
    assert result.verdict is Verdict.PASS
    assert OUTPUT_REUSED in result.warnings
    assert OUTPUT_REUSED not in judged().warnings


def dense(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """As a kernel sees it that does not look at strides."""
    if tensor is None:
        return None
    strides = torch.empty(tensor.shape, device="meta").stride()
    return tensor.as_strided(tensor.shape, strides, tensor.storage_offset())


class Dense(NoSplits):
    """Takes one of its inputs to be dense."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def paged_varlen(self, call: Call, plan: object) -> Output:
        return super().paged_varlen(replace(call, **{self._name: dense(getattr(call, self._name))}), plan)

    def decode(self, call: Call, plan: object) -> Output:
        return super().decode(replace(call, **{self._name: dense(getattr(call, self._name))}), plan)


@pytest.mark.parametrize("name", ["q", "k_new", "v_new", "block_table"])
def test_strides_that_are_not_read_are_found(name: str) -> None:
    result = Invariance().run(context(docs_decode(), Dense(name), AttnPath.DECODE))
    assert result.verdict is Verdict.UNSTABLE
    assert {f.message.partition(":")[0] for f in result.findings} == {STRIDED}


def test_a_kernel_may_refuse_what_is_not_dense_and_that_is_said() -> None:
    def tamper(call: Call, output: Output) -> None:
        if not call.q.is_contiguous():
            raise ValueError("q must be contiguous")

    result = judged(tamper)
    assert result.verdict is Verdict.PASS
    assert STRIDED not in result.message
    assert result.warnings == (f"not taken: {STRIDED} (ValueError: q must be contiguous)",)


@pytest.mark.parametrize("path", [AttnPath.DECODE, AttnPath.VARLEN])
def test_a_kernel_that_reads_strides_gives_the_same(path: AttnPath) -> None:
    assert STRIDED in judged(path=path).message


def test_the_strides_of_fp8_are_tried_as_well() -> None:
    result = judged(wanted=scenario(kv_dtype="float8_e4m3fn"))
    assert result.verdict is Verdict.PASS
    assert STRIDED in result.message
