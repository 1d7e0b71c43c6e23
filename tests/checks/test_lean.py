"""No right kernel is accused of errors to one side, whatever the numbers are; one that cuts its output off is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedbench.backends.base import Output, Traits
from pagedbench.checks.accuracy import Accuracy
from pagedbench.checks.base import CheckResult
from pagedbench.checks.budget import UNIT
from pagedbench.scenario.model import Distribution, Inputs, Scenario
from pagedbench.tensors.call import Call
from pagedbench.words import Verdict
from tests.checks.kernels import Plain, context
from tests.tensors.cells import scenario

Weights = Literal["not rounded", "against the largest", "against the sink", "divided by their sum"]
End = Callable[[torch.Tensor, torch.dtype], torch.Tensor]


def nearest(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return values.to(dtype)


def cut_off(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """fp32 in a dtype of 16 bits, the bits that it has no room for dropped."""
    rounded = values.to(dtype)
    too_far = rounded.float().abs() > values.abs()
    return (rounded.view(torch.int16) - too_far.short()).view(dtype)  # sign and magnitude: one step nearer to 0


def scaled(factor: float) -> End:
    return lambda values, dtype: (values * factor).to(dtype)


class Rounding(Plain):
    """Rounds its weights for the product with V, and V where it comes with a scale, as right kernels of many kinds do;
    `end` makes the output of the exact numbers."""

    def __init__(self, dtype: str, weights: Weights, end: End, scaled_values: bool) -> None:
        super().__init__(traits=Traits(p_dtype="float32" if weights == "not rounded" else dtype))
        self._weights, self._end, self._scaled_values = weights, end, scaled_values

    def _finish(self, call: Call, keys: list[tuple[torch.Tensor, torch.Tensor]]) -> Output:
        dtype = call.q.dtype
        wide = replace(call, out=torch.empty(*call.q.shape[:2], call.spec.head_dim_v))
        exact = super()._finish(wide, keys)
        return Output(self._end(exact.out, dtype), exact.lse)

    def row(self, call: Call, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        spec, dtype = call.spec, call.q.dtype
        if spec.window_size[0] >= 0:
            k, v = (t[max(len(k) - spec.window_size[0] - 1, 0) :] for t in (k, v))
        k, v = k.float() * call.k_scale, v.float() * call.v_scale
        v = v.to(dtype).float() if self._scaled_values else v
        k, v = (t.repeat_interleave(spec.group_size, 1) for t in (k, v))
        scores = self.products(q.float(), k) * spec.softmax_scale
        if spec.softcap is not None:
            scores = spec.softcap * torch.tanh(scores / spec.softcap)
        none = torch.full((len(q), 1), -torch.inf)
        sink = none if call.sinks is None else call.sinks.float()[:, None]
        lse = torch.logsumexp(torch.cat([scores, sink], 1), -1, keepdim=True)
        peak = {
            "against the largest": torch.cat([scores, none], 1).amax(-1, keepdim=True),
            "against the sink": torch.cat([scores, sink], 1).amax(-1, keepdim=True),
        }.get(self._weights, lse)
        weights = torch.exp(scores - peak)
        if self._weights != "not rounded":
            weights = weights.to(dtype).float()
        return torch.einsum("hk,khd->hd", weights, v) * torch.exp(peak - lse), lse[:, 0]


def judged(
    wanted: Scenario, weights: Weights = "not rounded", end: End = nearest, *, scaled_values: bool = False
) -> CheckResult:
    return Accuracy().run(context(wanted, Rounding(wanted.attention.dtype, weights, end, scaled_values)))


HEADS = 32
WEIGHTS: list[Weights] = ["not rounded", "against the largest", "against the sink", "divided by their sum"]
SINKS = [None, (0.5,) * HEADS, tuple(h / 8 - 2 for h in range(HEADS)), (6.0,) * HEADS]


@st.composite
def distributions(draw: st.DrawFn) -> Distribution:
    """Numbers that differ much, a little or not at all, about 0 or beside it."""
    scale = draw(st.sampled_from([1.0, 0.001, 0.01, 0.1]) | st.floats(0.125, 4, width=16))
    offset = draw(st.sampled_from([0.0, 0.0, 1.0]) | st.floats(-5, 5, width=16))
    of_kinds = [
        Distribution("normal", scale, offset),
        Distribution("uniform", scale, offset),
        Distribution("constant", scale, offset),
    ]
    return draw(st.sampled_from(of_kinds))


@st.composite
def cells(draw: st.DrawFn, *, lengths: st.SearchStrategy[int], inputs: st.SearchStrategy[Inputs]) -> Scenario:
    """256 rows of alike or of various lengths, with what changes scores, weights and values."""
    fp8 = draw(st.sampled_from([False, False, True]))
    dtype = draw(st.sampled_from(["bfloat16", "float16"]))
    attention: dict[str, object] = {
        "window_size": draw(st.sampled_from([(-1, -1), (-1, -1), (9, 0)])),
        "softcap": draw(st.sampled_from([None, 2.0, 30.0])),
        "sinks": draw(st.sampled_from(SINKS)),
        "k_scale": 0.5 if fp8 else 1.0,
        "v_scale": 0.25 if fp8 else 1.0,
    }
    return scenario(
        (1,) * 8,
        tuple(draw(st.lists(lengths, min_size=8, max_size=8) | lengths.map(lambda length: [length] * 8))),
        heads=(HEADS, draw(st.sampled_from([2, 8, HEADS]))),
        head_dim=32,
        head_dim_v=draw(st.sampled_from([16, 32, 64])),
        dtype=dtype,
        kv_dtype="float8_e4m3fn" if fp8 else dtype,
        attention=attention,
        inputs=draw(inputs),
    )


ANY_INPUTS = st.builds(Inputs, st.integers(0, 99), distributions(), distributions(), distributions(), st.booleans())
ANY_LENGTHS = st.integers(0, 12) | st.sampled_from([30, 100, 400])
OF_ONE_SIDE = "than it should in the mean"


@pytest.mark.parametrize(
    ("end", "side"),
    [(cut_off, "nearer to zero"), (scaled(0.996), "nearer to zero"), (scaled(1.004), "farther from zero")],
)
def test_errors_of_one_side_are_found_where_every_row_is_within_its_budget(end: End, side: str) -> None:
    result = judged(scenario(heads=(HEADS, 2), head_dim=64), "against the largest", end)
    assert result.verdict is Verdict.MISMATCH
    assert result.metrics["worst_ratio"] < 1
    assert side in result.message


def test_a_few_rows_or_rows_that_are_alike_say_nothing() -> None:
    """The roundings of one row may have one direction, and so those of its equals."""
    few = scenario((1,), (5,), heads=(8, 2))
    alike = scenario((1,) * 40, (7,) * 40, inputs=Inputs(v=Distribution("constant", 0.99)))
    for wanted, end in ((few, cut_off), (alike, lambda values, dtype: cut_off(values * 0.999, dtype))):
        assert judged(wanted, "against the largest", end).verdict is Verdict.PASS


@settings(max_examples=30, deadline=None)
@given(cells(lengths=ANY_LENGTHS, inputs=ANY_INPUTS), st.sampled_from(WEIGHTS))
def test_rounding_to_nearest_is_never_taken_for_a_lean(wanted: Scenario, weights: Weights) -> None:
    """What the budget of a row says of odd inputs is not asked here."""
    assert OF_ONE_SIDE not in judged(wanted, weights).message


@settings(max_examples=20, deadline=None)
@given(cells(lengths=st.sampled_from([12, 30, 100]), inputs=st.builds(Inputs, st.integers(0, 99))))
def test_cutting_off_is_found_where_rows_are_many_and_numbers_differ(wanted: Scenario) -> None:
    """By the lean, or by the budget of a row that it leaves; rounding is no fault of either."""
    assert judged(wanted, "against the largest", cut_off).verdict is Verdict.MISMATCH
    assert judged(wanted, "against the largest").verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("keys", "values"),
    [(3, Distribution()), (6, Distribution()), (7, Distribution()), (255, Distribution("constant", 1.5))],
)
def test_weights_that_are_alike_are_rounded_to_one_side(keys: int, values: Distribution) -> None:
    """A third and a seventh have their nearest bfloat16 on one side, in all rows; 1/255 is off by almost a whole step
    of 1/256, and so is a row of values that are alike, by more than the root of a sum of squares."""
    inputs = Inputs(k=Distribution("constant", 0.5), v=values)
    wanted = scenario((1,) * 8, (keys - 1,) * 8, heads=(HEADS, 4), head_dim=64, inputs=inputs)
    assert judged(wanted, "divided by their sum").verdict is Verdict.PASS


@pytest.mark.parametrize("values", [Distribution(scale=0.01, offset=1.0025), Distribution(scale=0.01, offset=4.01)])
def test_outputs_that_are_alike_are_rounded_to_one_side(values: Distribution) -> None:
    """The nearest bfloat16 of 1.0025 ± 0.0006 is 1."""
    wanted = scenario((1,) * 8, (299,) * 8, heads=(HEADS, 4), head_dim=64, inputs=Inputs(v=values))
    for weights in WEIGHTS[:2]:
        assert judged(wanted, weights).verdict is Verdict.PASS


def test_the_few_numbers_of_eight_bits_times_a_scale_are_rounded_to_one_side() -> None:
    wanted = scenario(
        (1,) * 8,
        (70,) * 8,
        heads=(HEADS, 4),
        head_dim=64,
        kv_dtype="float8_e4m3fn",
        attention={"v_scale": 0.8142319},
    )
    assert judged(wanted, "against the largest", scaled_values=True).verdict is Verdict.PASS


def test_sums_that_tensor_cores_cut_off_at_every_sixteen_keys_may_lean_by_as_much() -> None:
    """A quarter of fp32's last place at each of 8,192 steps is more than a lean may be where keys are few."""
    keys = 131_072
    short = 2.0**-23 / 4 * keys / 16
    assert short > 0.9 * UNIT["float16"]

    long, few = (
        scenario((1,), (n - 1,), heads=(64, 1), head_dim=8, head_dim_v=32, dtype="float16") for n in (keys, 256)
    )
    assert judged(long, end=scaled(1 - short)).verdict is Verdict.PASS
    assert OF_ONE_SIDE in judged(few, end=scaled(1 - short)).message


def test_the_rows_that_are_said_to_lean_are_those_that_were_judged() -> None:
    """Not the padding rows of a padded graph, nor rows with one key, which has no weight to be rounded."""
    cached = (1, 20, 30, 40, 50, 0, 0, 0)
    wanted = scenario((1,) * 8, cached, append=False, heads=(HEADS, 2), head_dim=64, padding_rows=3)
    message = judged(wanted, "against the largest", cut_off).message
    assert message.startswith("the output of 128 rows lies")
