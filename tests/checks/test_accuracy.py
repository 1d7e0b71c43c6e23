from __future__ import annotations

import math

import pytest
import torch

from pagedbench.backends.base import Backend, Output, Traits
from pagedbench.checks.accuracy import Accuracy
from pagedbench.checks.base import CheckResult
from pagedbench.faults.kernel import FaultyBackend
from pagedbench.scenario.model import Distribution, Inputs, Scenario
from pagedbench.tensors.call import Call
from pagedbench.words import AttnPath, Verdict
from tests.checks.kernels import Plain, RoundedSum, ShortProducts, Tamper, context
from tests.tensors.cells import docs_decode, scenario


def judged(
    tamper: Tamper | None = None,
    wanted: Scenario | None = None,
    path: AttnPath = AttnPath.DECODE,
    traits: Traits | None = None,
    backend: Backend | None = None,
) -> CheckResult:
    return Accuracy().run(context(wanted or docs_decode(), backend or Plain(tamper, traits), path))


@pytest.mark.parametrize("path", list(AttnPath))
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_right_kernel_passes_with_room_to_spare(path: AttnPath, dtype: str) -> None:
    result = judged(wanted=scenario(dtype=dtype), path=path, traits=Traits(appends=path is AttnPath.DECODE))
    assert result.verdict is Verdict.PASS
    assert 0 < result.metrics["worst_ratio"] < 0.7
    assert result.metrics["worst_lse_ratio"] < 0.5


@pytest.mark.parametrize("keys", [1, 70, 1000, 8192])
def test_the_budget_is_as_tight_for_long_rows_as_for_short_ones(keys: int) -> None:
    ratio = judged(wanted=scenario((1, 1), (keys, keys), dtype="bfloat16")).metrics["worst_ratio"]
    assert 0.05 < ratio < 0.7


class TestASumOfRoundedWeights:
    """As FlashInfer's fa2 kernels have it: the output is within its budget anyway, the LSE by what is declared."""

    traits = Traits(sum_of_rounded_weights=True)

    @pytest.mark.parametrize("keys", [0, 1, 2, 32, 70, 1000, 8192])
    @pytest.mark.parametrize("scale", [0.01, 1.0])
    def test_passes_where_it_is_declared(self, keys: int, scale: float) -> None:
        wanted = scenario((1,) * 3, (keys,) * 3, inputs=Inputs(k=Distribution(scale=scale)))
        result = judged(backend=RoundedSum(traits=self.traits), wanted=wanted)
        assert result.verdict is Verdict.PASS, result.message
        assert result.metrics["worst_ratio"] < 0.7

    def test_is_a_mismatch_of_the_lse_where_it_is_not(self) -> None:
        result = judged(backend=RoundedSum())
        assert result.verdict is Verdict.MISMATCH
        assert "LSE is" in result.message

    @pytest.mark.parametrize("keys", [70, 1000])
    def test_does_not_hide_a_lost_key(self, keys: int) -> None:
        def tamper(call: Call, output: Output) -> None:
            """What a key of average weight less does to the LSE."""
            assert output.lse is not None
            output.lse += math.log(1 - 1 / keys)

        result = judged(backend=RoundedSum(tamper, self.traits), wanted=scenario((1,), (keys - 1,)))
        assert result.verdict is Verdict.MISMATCH


def test_fp8_products_added_with_fourteen_bits_are_right_where_that_is_declared() -> None:
    wanted = scenario(kv_dtype="float8_e4m3fn", attention={"q_dtype": "float8_e4m3fn"}, head_dim=128)
    plain, declared = ShortProducts(), ShortProducts(traits=Traits(fp8_score_error=2.0**-13))
    assert judged(backend=plain, wanted=wanted).verdict is Verdict.MISMATCH
    result = judged(backend=declared, wanted=wanted)
    assert result.verdict is Verdict.PASS
    assert result.metrics["worst_lse_ratio"] < 0.7


class SinkAlone(FaultyBackend):
    """A right kernel, but for an error in the LSE of rows that see no key."""

    def __init__(self, error: float) -> None:
        super().__init__(None)
        self._error = error

    def paged_varlen(self, call: Call, plan: object) -> Output:
        output = super().paged_varlen(call, plan)
        lse = output.lse
        assert lse is not None
        lse[0] += self._error
        return Output(output.out, lse)


@pytest.mark.parametrize(("error", "verdict"), [(2.0**-22, Verdict.PASS), (1e-5, Verdict.MISMATCH)])
def test_a_sink_alone_has_the_roundings_of_its_way_through_exp2_and_log2(error: float, verdict: Verdict) -> None:
    wanted = scenario((4,), (1,), append=False, attention={"sinks": (-1.0,) * 4})
    assert judged(backend=SinkAlone(error), wanted=wanted, path=AttnPath.PAGED_VARLEN).verdict is verdict


class TestOneKeyWrong:
    """A key missed or seen twice, at lengths where a fixed tolerance of 1e-2 sees nothing."""

    @pytest.mark.parametrize("keys", [70, 1000, 8192])
    @pytest.mark.parametrize("weight", [0, 2])
    def test_is_a_mismatch(self, keys: int, weight: int) -> None:
        def tamper(call: Call, output: Output) -> None:
            """Leave the last key out, or count it twice."""
            k = call.k_cache.flatten(0, 1)[call.read_slots].float()
            v = call.v_cache.flatten(0, 1)[call.read_slots].float()
            scores = torch.einsum("hd,kd->hk", call.q[0].float(), k[:, 0]) * call.spec.softmax_scale
            scores[:, -1] += -math.inf if weight == 0 else math.log(weight)
            output.out[0] = torch.softmax(scores, -1) @ v[:, 0]
            output.lse = torch.logsumexp(scores, -1)[None]

        wanted = scenario((1,), (keys,), heads=(4, 1))
        result = judged(tamper, wanted)
        assert result.verdict is Verdict.MISMATCH
        assert max(result.metrics["worst_ratio"], result.metrics["worst_lse_ratio"]) > 2


class TestFindings:
    def test_name_the_row_and_its_blocks(self) -> None:
        def tamper(call: Call, output: Output) -> None:
            output.out[1, 3, 5] += 1.0

        result = judged(tamper)
        assert result.verdict is Verdict.MISMATCH
        finding = result.findings[0]
        assert (finding.sequence, finding.query_token, finding.head) == (1, 0, 3)
        # Sequence 1's new token is its key 32: the second block of its row, which is block 1 of the pool.
        assert (finding.key, finding.logical_block, finding.physical_block) == (32, 1, 1)
        place = "sequence 1, query token 0 (its newest key in logical block 1, physical block 1), head 3: "
        assert result.message.startswith(place)
        assert "times the budget" in result.message

    def test_are_one_a_sequence_and_the_worst_first(self) -> None:
        def tamper(call: Call, output: Output) -> None:
            output.out[0] += 0.5
            output.out[2] += 8.0

        assert [f.sequence for f in judged(tamper).findings] == [2, 0]

    def test_the_first_is_that_of_the_worst_ratio_be_it_of_output_or_of_lse(self) -> None:
        """The output of sequence 0 is off by some budgets, the LSE of sequence 2 by thousands."""

        def tamper(call: Call, output: Output) -> None:
            output.out[0] += 0.5
            assert output.lse is not None
            output.lse[2] += 1.0

        result = judged(tamper)
        assert [f.sequence for f in result.findings] == [2, 0]
        worst = result.metrics["worst_lse_ratio"]
        assert worst > result.metrics["worst_ratio"] > 1
        assert "LSE is" in result.message
        assert f"off by {worst:,.0f} times the budget" in result.message

    def test_say_when_a_whole_sequence_is_zero(self) -> None:
        def tamper(call: Call, output: Output) -> None:
            output.out[10:13] = 0

        result = judged(tamper, scenario((10, 3, 1), (3, 1, 7)), AttnPath.VARLEN)
        assert "all rows of sequence 1 are zero" in result.message

    def test_tell_query_tokens_of_a_sequence_apart(self) -> None:
        def tamper(call: Call, output: Output) -> None:
            output.out[11, 2] += 1

        result = judged(tamper, scenario((10, 3, 1), (3, 1, 7)), AttnPath.VARLEN)
        assert (result.findings[0].sequence, result.findings[0].query_token) == (1, 1)


class TestNotANumber:
    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_in_the_output_is_non_finite(self, value: float) -> None:
        def tamper(call: Call, output: Output) -> None:
            output.out[2, 1, 0] = value

        result = judged(tamper)
        assert result.verdict is Verdict.NON_FINITE
        assert result.findings[0].sequence == 2

    def test_in_the_lse_is_non_finite(self) -> None:
        def tamper(call: Call, output: Output) -> None:
            output.lse[0, 0] = math.nan  # type: ignore[index]

        assert judged(tamper).verdict is Verdict.NON_FINITE


class TestRowsWithoutKeys:
    """Queries 10, 3, 1 with keys 0, 1, 7, causal: 12 rows see nothing."""

    wanted = scenario((10, 3, 1), (0, 1, 7), append=False)

    def test_are_zero_with_lse_minus_infinity(self) -> None:
        assert judged(wanted=self.wanted, path=AttnPath.VARLEN).verdict is Verdict.PASS

    def test_must_be_exactly_zero(self) -> None:
        def tamper(call: Call, output: Output) -> None:
            output.out[4, 0, 0] = 1e-30

        result = judged(tamper, self.wanted, AttnPath.VARLEN)
        assert result.verdict is Verdict.MISMATCH
        assert "sees no key and must be exactly 0" in result.message

    def test_with_a_finite_lse_are_a_mismatch(self) -> None:
        def tamper(call: Call, output: Output) -> None:
            output.lse[4] = -1e30  # type: ignore[index]

        result = judged(tamper, self.wanted, AttnPath.VARLEN)
        assert result.verdict is Verdict.MISMATCH
        assert "needed -inf" in result.message
        assert result.metrics["worst_lse_ratio"] == math.inf, "no budget makes up for it, and 1.8e+308 is no ratio"

    def test_that_are_nan_are_non_finite(self) -> None:
        def tamper(call: Call, output: Output) -> None:
            output.out[4] = math.nan

        assert judged(tamper, self.wanted, AttnPath.VARLEN).verdict is Verdict.NON_FINITE

    def test_are_not_judged_where_the_backend_is_declared_to_leave_them(self) -> None:
        def tamper(call: Call, output: Output) -> None:
            output.out[:10] = math.nan

        leaves = Traits(empty_rows="untouched")
        assert judged(tamper, self.wanted, AttnPath.VARLEN, leaves).verdict is Verdict.PASS


class TestLse:
    def test_in_base_two_is_a_mismatch(self) -> None:
        def tamper(call: Call, output: Output) -> None:
            output.lse.div_(math.log(2))  # type: ignore[union-attr]

        result = judged(tamper)
        assert result.verdict is Verdict.MISMATCH
        assert "LSE is" in result.message

    def test_is_not_demanded(self) -> None:
        def tamper(call: Call, output: Output) -> None:
            output.lse = None

        result = judged(tamper)
        assert result.verdict is Verdict.PASS
        assert "no LSE" in result.message


def test_padding_rows_are_never_judged() -> None:
    def tamper(call: Call, output: Output) -> None:
        output.out[2:] = math.nan

    wanted = scenario((1, 1, 1, 1), (5, 40, 0, 0), padding_rows=2, cache={"trash_block": True})
    assert judged(tamper, wanted).verdict is Verdict.PASS


def test_constants_do_not_pass() -> None:
    def zeros(call: Call, output: Output) -> None:
        output.out.zero_()

    def mean_of_values(call: Call, output: Output) -> None:
        output.out.copy_(call.v_cache[0].float().mean().expand_as(output.out))

    for tamper in (zeros, mean_of_values):
        assert judged(tamper).verdict is not Verdict.PASS


def test_an_output_of_the_wrong_shape_is_said_so() -> None:
    def tamper(call: Call, output: Output) -> None:
        output.out = output.out.flatten(1)

    result = judged(tamper)
    assert result.verdict is Verdict.MISMATCH
    assert result.message == "the output has shape (3, 64), needed (3, 4, 16)"


def test_an_empty_batch_passes_and_says_what_that_means() -> None:
    result = judged(wanted=scenario((), ()))
    assert result.verdict is Verdict.PASS
    assert "no query tokens" in result.message


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("values", [Distribution(offset=4.0), Distribution("constant", 0.7)])
def test_a_right_kernel_passes_where_values_are_alike(dtype: str, values: Distribution) -> None:
    """The roundings of a row's weights have one direction then."""
    wanted = scenario((1,) * 6, (1, 2, 5, 30, 70, 700), dtype=dtype, heads=(32, 2), inputs=Inputs(v=values))
    kernels = [Plain()]
    if dtype == "bfloat16":
        kernels.append(RoundedSum(traits=Traits(sum_of_rounded_weights=True)))
    for kernel in kernels:
        assert judged(backend=kernel, wanted=wanted).verdict is Verdict.PASS


@pytest.mark.parametrize(("sink", "verdict"), [(95.0, Verdict.PASS), (15.0, Verdict.MISMATCH)])
def test_numbers_that_gpus_take_for_zero_may_be_zero(sink: float, verdict: Verdict) -> None:
    """With a sink 95 above the scores every weight, and so the output, is below the least normal number of fp32."""

    def flush(call: Call, output: Output) -> None:
        output.out.zero_()
        output.lse = None

    assert judged(flush, wanted=scenario(attention={"sinks": (sink,) * 4})).verdict is verdict
