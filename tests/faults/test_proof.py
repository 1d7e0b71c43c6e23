"""Every fault of the catalogue, where it first shows: caught by a check, and named from behaviour alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch

from pagedbench.backends.base import Output
from pagedbench.checks.base import CheckContext, CheckResult, Finding
from pagedbench.checks.registry import CHECKS
from pagedbench.faults import diagnosis
from pagedbench.faults.catalogue import FAULTS, find_fault
from pagedbench.faults.diagnosis import diagnose
from pagedbench.faults.effect import effect
from pagedbench.faults.fault import Fault
from pagedbench.faults.kernel import FaultyBackend
from pagedbench.faults.program import AttentionProgram, program_for
from pagedbench.faults.scenarios import Trial, trials
from pagedbench.faults.scoring import Change
from pagedbench.layout.steps import step_layouts
from pagedbench.runner.selftest import Power, context_for, power, right_program
from pagedbench.tensors.call import Call
from pagedbench.words import AttnPath, Verdict
from tests.checks.kernels import Plain, RoundedSum
from tests.checks.kernels import context as plain_context
from tests.tensors.cells import docs_decode, scenario


class Forgetful(FaultyBackend):
    """Right but for three rows that it does not write, over memory that holds another number each time."""

    def _run(self, call: Call) -> Output:
        output = super()._run(call)
        torch.empty_like(output.out).fill_(self.calls)  # what was freed last is what is handed out next
        mine = torch.empty_like(output.out)
        kept = [row for row in range(len(mine)) if row not in (0, 1, 6)]
        mine[kept] = output.out[kept]
        return Output(mine, output.lse)


COSTLY = ("decode-high-ids", "decode-long")
NEEDS_A_HUGE_POOL = "int32-overflow"


@cache
def cheapest_first() -> list[Trial]:
    return sorted(trials(), key=lambda trial: trial.scenario.name in COSTLY)


def first_cell_that_shows(fault: Fault) -> CheckContext:
    for trial in cheapest_first():
        context = context_for(trial, fault, "cpu")
        if power(context, fault, right_program(context)) is Power.SHOWS:
            return context
    raise AssertionError(f"{fault.name} shows nowhere")


def judged(context: CheckContext, name: str) -> CheckResult:
    try:
        return CHECKS[name].run(context)
    except RuntimeError as error:
        return CheckResult(name, Verdict.ERROR, str(error))


def first_failure(context: CheckContext) -> CheckResult | None:
    for name in ("accuracy", "cache-update", "leaks", "footprint", "unwritten", "invariance"):
        result = judged(context, name)
        if result.verdict not in (Verdict.PASS, Verdict.SKIPPED):
            return result
    return None


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_caught_and_named(fault: Fault) -> None:
    if fault.name == NEEDS_A_HUGE_POOL:
        pytest.skip("needs a pool of 2³¹ elements; see test_effect.py and the selftest on a GPU")
    context = first_cell_that_shows(fault)
    failure = first_failure(context)
    assert failure is not None, "missed"
    named = diagnose(context, [failure], deadline=math.inf)
    assert named, "no diagnosis"
    assert named[0].score == 1.0
    right = program_for(context.prepare().call)
    both = find_fault(named[0].fault).change(right), fault.change(right)
    assert named[0].fault == fault.name or effect(*both, context.layout).none, named


@pytest.mark.parametrize("trial", trials(), ids=lambda trial: trial.name)
def test_the_right_kernel_is_accused_of_nothing_and_diagnosed_with_nothing(trial: Trial) -> None:
    context = context_for(trial, None, "cpu")
    results = [
        CheckResult(name, Verdict.SKIPPED) if CHECKS[name].not_applicable(context) else CHECKS[name].run(context)
        for name in CHECKS
    ]
    assert {result.verdict for result in results} <= {Verdict.PASS, Verdict.SKIPPED}
    assert diagnose(context, results) == []


def test_what_is_too_large_to_try_is_said_and_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest sequence has 1 query token, 71 keys and 4 heads."""
    context = context_for(trials()[0], find_fault("last-key-missed"), "cpu")
    failure = CHECKS["accuracy"].run(context)
    monkeypatch.setattr(diagnosis, "MOST_SCORES", 4 * 71 - 1)
    (said,) = diagnose(context, [failure])
    assert said.fault is None
    assert "shrink" in said.sentence
    monkeypatch.setattr(diagnosis, "MOST_SCORES", 4 * 71)
    assert diagnose(context, [failure])[0].fault == "last-key-missed"


def test_a_failure_that_no_fault_explains_is_given_no_name() -> None:
    """A kernel that is wrong in a way of its own: every output is a third of what it should be."""
    odd = Fault("odd", "every output is a third", "W", lambda program: program.replace(out_factor=1 / 3))
    context = context_for(trials()[0], odd, "cpu")
    found = diagnose(context, [CHECKS["accuracy"].run(context)])
    assert all(diagnosis.score < 1 for diagnosis in found)
    assert all("no fault of the catalogue" in diagnosis.sentence for diagnosis in found)


class NoLse(FaultyBackend):
    """Returns the output alone."""

    def _run(self, call: Call) -> Output:
        return Output(super()._run(call).out)


@pytest.mark.parametrize("name", ["last-key-missed", "append-skipped", "v-one-slot-late"])
def test_a_fault_is_named_where_no_lse_is_returned(name: str) -> None:
    fault = find_fault(name)
    shows = first_cell_that_shows(fault)
    context = CheckContext(shows.scenario, shows.layout, NoLse(fault), shows.path, shows.device)
    named = diagnose(context, [CHECKS["accuracy"].run(context)], deadline=math.inf)
    assert name in [guess.fault for guess in named]


class ScoresRounded(FaultyBackend):
    """Right but for scores that were rounded to bf16: the LSE is off by far more than fp32 explains, and by far less
    than a lost key makes it."""

    def _run(self, call: Call) -> Output:
        right = super()._run(call)
        assert right.lse is not None
        return Output(right.out, right.lse * 1.0006)


class SometimesOff(FaultyBackend):
    """One call in ten, the third among them, is off by a little."""

    def _run(self, call: Call) -> Output:
        right = super()._run(call)
        return Output(right.out * 1.02, right.lse) if self.calls % 10 == 3 else right


def test_a_fault_that_calls_right_what_is_wrong_does_not_explain_it() -> None:
    """Numbers are compared with room: a fault that changes next to nothing agrees with every kernel nearly right."""
    right = first_cell_that_shows(find_fault("splits-by-batch"))
    context = CheckContext(right.scenario, right.layout, ScoresRounded(), right.path, right.device)
    failure = CHECKS["accuracy"].run(context)
    assert failure.verdict is Verdict.MISMATCH
    (said,) = diagnose(context, [failure])
    assert (said.fault, said.score) == (None, 0.0)
    assert "no fault of the catalogue" in said.sentence


def test_a_kernel_that_rounds_its_scores_and_does_not_say_so_is_told_of_the_trait() -> None:
    """The LSE is some 4, and 0.0006 of it far below the 4·2⁻⁹ of a score that two roundings to bf16 explain."""
    right = context_for(trials()[0], None, "cpu")
    assert right.scenario.attention.dtype == "bfloat16"
    kernel = ScoresRounded()
    context = CheckContext(right.scenario, right.layout, kernel, right.path, right.device)
    failure = CHECKS["accuracy"].run(context)
    assert failure.verdict is Verdict.MISMATCH
    (hint,) = diagnose(context, [failure])
    assert hint.fault is None
    assert hint.sentence == (
        "output is within the budget of a kernel that rounds its scores to bfloat16; "
        "if that is meant, declare score_rounding=True"
    )
    kernel.traits = replace(kernel.traits, score_rounding=True)
    declared = CheckContext(right.scenario, right.layout, kernel, right.path, right.device)
    assert CHECKS["accuracy"].run(declared).verdict is Verdict.PASS


def test_a_kernel_that_adds_up_rounded_weights_is_told_of_the_trait_that_widens_its_budget_least() -> None:
    context = plain_context(docs_decode(), RoundedSum())
    failure = CHECKS["accuracy"].run(context)
    assert failure.verdict is Verdict.MISMATCH
    assert diagnose(context, [failure])[0].sentence == (
        "output is within the budget of a kernel that divides by the sum of weights that were rounded to bfloat16; "
        "if that is meant, declare sum_of_rounded_weights=True"
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_an_lse_that_was_rounded_is_no_reason_to_declare_a_trait(dtype: torch.dtype) -> None:
    def tamper(call: Call, output: Output) -> None:
        assert output.lse is not None
        output.lse.copy_(output.lse.to(dtype))

    context = plain_context(docs_decode(), Plain(tamper))
    (said,) = diagnose(context, [CHECKS["accuracy"].run(context)])
    assert said.sentence.startswith(f"the LSE was rounded to {str(dtype).removeprefix('torch.')}")


def test_an_output_of_another_dtype_is_no_reason_to_declare_a_trait() -> None:
    class Wide(Plain):
        def decode(self, call: Call, plan: object) -> Output:
            output = super().decode(call, plan)
            return Output(output.out.float(), output.lse)

    context = plain_context(docs_decode(), Wide())
    failure = CHECKS["accuracy"].run(context)
    assert failure.message == "the output is float32, needed bfloat16"
    assert diagnose(context, [failure]) == []


@pytest.mark.parametrize("other", [Verdict.FOOTPRINT, Verdict.LEAK, Verdict.NOT_WRITTEN, Verdict.CORRUPTED])
def test_no_trait_is_held_out_to_a_kernel_that_is_wrong_in_another_way_too(other: Verdict) -> None:
    """A wider budget would only hide that it misses a key."""
    context = plain_context(docs_decode(), RoundedSum())
    failed = [CHECKS["accuracy"].run(context), CheckResult("other", other)]
    assert all("declare" not in said.sentence for said in diagnose(context, failed))


def test_another_number_of_splits_is_not_blamed_for_what_no_rounding_makes() -> None:
    context = plain_context(docs_decode(), Plain())
    failure = CheckResult(
        "invariance",
        Verdict.UNSTABLE,
        "batch in reverse order: sequence 1 differs",
        (Finding("batch in reverse order: sequence 1 differs"),),
        {"worst_ratio": 4000.0},
    )
    (said,) = diagnose(context, [failure])
    assert said.fault is None
    assert said.sentence == (
        "a sequence's output depends on its batch mates, by more than roundings: it takes a row, a length or keys of "
        "another sequence, keeps something of an earlier call, or is wrong at times"
    )


def test_the_trait_is_not_held_out_to_a_kernel_that_is_further_off() -> None:
    context = first_cell_that_shows(find_fault("last-key-missed"))
    found = diagnose(context, [CHECKS["accuracy"].run(context)])
    assert all("score_rounding" not in said.sentence for said in found)


@pytest.mark.parametrize("verdict", [Verdict.LEAK, Verdict.MISMATCH])
def test_noise_is_named_whichever_check_it_fell_on(verdict: Verdict) -> None:
    right = context_for(trials()[0], None, "cpu")
    context = CheckContext(right.scenario, right.layout, SometimesOff(), right.path, right.device)
    (said,) = diagnose(context, [CheckResult("some", verdict)])
    assert said.fault == "noise"


def test_rows_that_nobody_wrote_are_no_noise_though_memory_differs_from_call_to_call() -> None:
    """The first two rows of a batch and a stray one: no fault of the catalogue."""
    right = context_for(next(trial for trial in trials() if trial.scenario.name == "ragged"), None, "cpu")
    context = CheckContext(right.scenario, right.layout, Forgetful(), right.path, right.device)
    found = diagnose(context, [CheckResult("unwritten", Verdict.NOT_WRITTEN)])
    assert found
    assert "noise" not in [said.fault for said in found]


def test_when_time_is_up_what_explained_everything_so_far_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = find_fault("last-key-missed")
    context = first_cell_that_shows(fault)
    failure = first_failure(context)
    assert failure is not None
    able = len(diagnosis._able_to_show(context))
    asked = iter([0.0] * (able + 1))  # time for one question to each fault, and no more
    monkeypatch.setattr(diagnosis.time, "monotonic", lambda: next(asked, 1e9))
    named = diagnose(context, [failure], deadline=1.0)
    assert fault.name in [guess.fault for guess in named]
    assert all(guess.how == "agrees as far as there was time to ask" for guess in named)


def only_where(change: Change, there: Callable[[AttentionProgram], torch.Tensor]) -> Fault:
    """A fault in some rows of a kernel: what another kernel has in all of them."""

    def changed(program: AttentionProgram) -> AttentionProgram:
        faulty, rows = change(program), there(program)
        return program.replace(
            first=torch.where(rows, faulty.first, program.first), last=torch.where(rows, faulty.last, program.last)
        )

    return Fault("one-branch", "one branch is wrong", "W", changed)


@pytest.mark.parametrize(
    ("name", "there", "where"),
    [
        ("window-one-wide", lambda p: p.facts.row_index >= 16, "from query token 17 of a sequence on, "),
        ("window-one-narrow", lambda p: p.facts.row_index < 16, "before query token 7 of a sequence, "),
        (
            "causal-one-early",
            lambda p: p.facts.query_lens[p.facts.row_sequence] > 1,
            "in sequences of 7 or more query tokens, ",
        ),
        (
            "window-one-wide",
            lambda p: p.facts.query_lens[p.facts.row_sequence] < 7,
            "in sequences of fewer than 2 query tokens, ",
        ),
    ],
)
def test_a_fault_in_one_branch_or_tile_is_named_with_where_it_is(
    name: str, there: Callable[[AttentionProgram], torch.Tensor], where: str
) -> None:
    """A prompt of 20 tokens, a chunk of 7 after 19 keys and a decode, with a window of 17: keys are below it from the
    prompt's row 17 on, and for all others."""
    trial = next(trial for trial in trials() if trial.scenario.name == "ragged-append")
    fault = find_fault(name)
    context = context_for(trial, only_where(fault.change, there), "cpu")
    failure = first_failure(context)
    assert failure is not None
    (said,) = diagnose(context, [failure])
    assert said.fault == name
    assert said.sentence == f"{where}output matches the reference if {fault.sentence}; elsewhere it is right"
    assert said.score < 1


class Later(FaultyBackend):
    """Has its fault where a sequence has 73 keys or more: from the third step of the guide's batch on."""

    def _changed(self, right: AttentionProgram) -> AttentionProgram:
        return super()._changed(right) if int(right.facts.total.max()) >= 73 else right


class Remembering(FaultyBackend):
    """Right, until it has been asked for lengths before: it goes on from those, one too far."""

    longest = 0

    def _run(self, call: Call) -> Output:
        output, longest = super()._run(call), int(call.total_seqlens.max())
        again = 0 < self.longest < longest
        self.longest = longest
        return Output(output.out * 1.5, output.lse) if again else output


@pytest.mark.parametrize(
    ("backend", "fault", "words"),
    [
        (
            Later(find_fault("last-key-missed")),
            "last-key-missed",
            "in step 3, output matches the reference if the",
        ),
        (Remembering(), None, "in step 2, asked by itself, it is right: what an earlier step left"),
    ],
)
def test_what_shows_in_a_later_step_alone_is_explained_by_that_step(
    backend: FaultyBackend, fault: str | None, words: str
) -> None:
    wanted = scenario(steps=4)
    context = CheckContext(wanted, step_layouts(wanted)[0], backend, AttnPath.DECODE, "cpu")
    results = [judged(context, name) for name in ("accuracy", "steps")]
    assert [result.verdict for result in results] == [Verdict.PASS, Verdict.MISMATCH]
    found = diagnose(context, results)
    assert found[0].fault == fault
    assert found[0].sentence.startswith(words)
