"""What a diagnosis says of an output that is plainly wrong, where no fault of the catalogue explains it."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from pagedbench.backends.base import Output
from pagedbench.checks.base import CheckResult
from pagedbench.checks.registry import CHECKS
from pagedbench.faults.catalogue import find_fault
from pagedbench.faults.diagnosis import Diagnosis, diagnose
from pagedbench.faults.kernel import FaultyBackend
from pagedbench.scenario.model import Override, Scenario
from pagedbench.tensors.call import Call
from pagedbench.words import AttnPath, Verdict
from tests.checks.kernels import Plain, Tamper
from tests.checks.kernels import context as plain_context
from tests.tensors.cells import docs_decode, scenario

EMPTY_KEYS = scenario((1, 1, 1, 1), (37, 5, 0, 70), append=False)
EMPTY_QUERIES = scenario((2, 1, 0, 3), (37, 5, 12, 70), append=False)


def said_of(wanted: Scenario, tamper: Tamper, path: AttnPath = AttnPath.DECODE) -> list[Diagnosis]:
    context = plain_context(wanted, Plain(tamper), path)
    failed = CHECKS["accuracy"].run(context)
    assert failed.verdict.is_wrong
    return diagnose(context, [failed], deadline=math.inf)


def rows_set_to(value: float, *rows: int) -> Tamper:
    """The output's rows alone: the LSE stays right, as of no fault that reads too little."""

    def tamper(call: Call, output: Output) -> None:
        output.out[list(rows)] = value

    return tamper


@pytest.mark.parametrize(
    ("wanted", "rows", "words"),
    [
        (docs_decode(), (1,), "zero in the rows of sequence 1, and right in all others"),
        (EMPTY_KEYS, (0, 1), "zero in the rows of sequences 0, 1, and right in all others"),
        (EMPTY_QUERIES, (4,), "zero in 4 of 24 rows, and right in all others"),
        (
            EMPTY_KEYS,
            (3,),
            "zero in the rows of sequence 3, and right in all others; "
            "it seems to stop at sequence 2, the first without keys",
        ),
        (
            EMPTY_QUERIES,
            (3, 4, 5),
            "zero in the rows of sequence 3, and right in all others; "
            "it seems to stop at sequence 2, the first without query tokens",
        ),
    ],
)
def test_rows_that_are_zero_are_said_to_be_and_where_a_kernel_stops(
    wanted: Scenario, rows: tuple[int, ...], words: str
) -> None:
    path = AttnPath.PAGED_VARLEN if wanted is EMPTY_QUERIES else AttnPath.DECODE
    (said,) = said_of(wanted, rows_set_to(0.0, *rows), path)
    assert (said.fault, said.sentence) == (None, f"the output is {words}")


def test_heads_that_are_zero_are_told_by_their_numbers() -> None:
    def tamper(call: Call, output: Output) -> None:
        output.out[:, [1, 3]] = 0.0

    (said,) = said_of(docs_decode(), tamper)
    assert said.sentence == "the output is zero in the rows of heads 1, 3, and right in all others"


def test_one_sequence_without_keys_that_makes_all_rows_nan_is_no_other_fault() -> None:
    (said,) = said_of(EMPTY_KEYS, rows_set_to(math.nan, 0, 1, 2, 3))
    assert said.sentence == "the output is NaN, whatever memory holds, in all rows"


def test_nan_in_rows_that_see_no_key_is_said_of_them() -> None:
    def tamper(call: Call, output: Output) -> None:
        output.out[2, 0] = math.nan

    (said,) = said_of(EMPTY_KEYS, tamper)
    assert said.sentence == (
        "the output is NaN, whatever memory holds, in rows that see no key, of sequence 2, and right in all others"
    )


class Unwritten(Plain):
    """Leaves the output's second row as memory was."""

    def _finish(self, call: Call, keys: list[tuple[torch.Tensor, torch.Tensor]]) -> Output:
        assert call.out is not None
        before = call.out[1].clone()
        output = super()._finish(call, keys)
        output.out[1] = before
        return output


def test_rows_that_nobody_wrote_are_said_to_be_so() -> None:
    context = plain_context(docs_decode(), Unwritten())
    (said,) = diagnose(context, [CHECKS["accuracy"].run(context), CHECKS["unwritten"].run(context)])
    assert said.sentence == "the output is not written in the rows of sequence 1, and right in all others"


class Skipping(Plain):
    """Returns memory of its own, in which it leaves rows that see no key as they were; their LSE is 0."""

    def _finish(self, call: Call, keys: list[tuple[torch.Tensor, torch.Tensor]]) -> Output:
        output = super()._finish(call, keys)
        assert output.lse is not None
        blank = output.lse.isneginf()
        mine = torch.where(blank[..., None], torch.empty_like(output.out), output.out)
        return Output(mine, output.lse.masked_fill(blank, 0.0))


def test_rows_of_a_kernels_own_memory_that_it_did_not_write_are_said_to_be_so_whatever_it_held() -> None:
    context = plain_context(EMPTY_KEYS, Skipping())
    (said,) = diagnose(context, [CheckResult("unwritten", Verdict.NOT_WRITTEN)])
    assert said.sentence == (
        "the output is not written in rows that see no key, of sequence 2, and right in all others"
    )


def test_nan_that_was_read_is_left_to_the_hypotheses() -> None:
    """Memory that must not be read holds NaN; without it the rows are numbers."""
    fault = find_fault("table-row-of-another-sequence")
    context = plain_context(docs_decode(), FaultyBackend(fault))
    said = diagnose(context, [CHECKS["accuracy"].run(context)], deadline=math.inf)
    assert said[0].fault == fault.name


@pytest.mark.parametrize(
    "constant",
    [lambda out: torch.full_like(out, 0.75), lambda out: out[:1, :1].expand_as(out).clone()],
    ids=["one number", "the first row"],
)
def test_an_output_that_is_the_same_in_all_rows_depends_on_nothing(
    constant: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    def tamper(call: Call, output: Output) -> None:
        output.out.copy_(constant(output.out))

    (said,) = said_of(docs_decode(), tamper)
    assert said.sentence == "all rows of the output are the same: it does not depend on the row"


def test_what_a_fault_explains_in_full_is_named_and_not_only_described() -> None:
    context = plain_context(docs_decode(), FaultyBackend(find_fault("all-zeros")))
    assert diagnose(context, [CHECKS["accuracy"].run(context)])[0].fault == "all-zeros"


def test_overridden_arrays_are_diagnosed_with_nothing() -> None:
    """A key of sequence 2 whose table entry is −1: no kernel is right, and no fault is the reason."""
    table = ((2, -1, -1, -1), (0, 1, -1, -1), (3, -1, 6, -1))
    context = plain_context(scenario(override=Override({"block_table": table})), Plain())
    assert diagnose(context, [CheckResult("accuracy", Verdict.NON_FINITE)]) == []
