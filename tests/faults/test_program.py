from __future__ import annotations

import dataclasses

import pytest
import torch

from pagedbench.checks.accuracy import Accuracy
from pagedbench.faults.catalogue import find_fault
from pagedbench.faults.kernel import FaultyBackend
from pagedbench.faults.program import NO_SLOT, AttentionProgram, program_for, visible_range
from pagedbench.layout.build import build_layout
from pagedbench.scenario.model import Scenario
from pagedbench.tensors.inputs import random_inputs
from pagedbench.tensors.prepare import prepare
from pagedbench.words import AttnPath, Verdict
from tests.checks.kernels import context
from tests.tensors.cells import docs_decode, scenario


def program(wanted: Scenario, path: AttnPath = AttnPath.DECODE) -> AttentionProgram:
    layout = build_layout(wanted)
    return program_for(prepare(wanted, layout, random_inputs(wanted, layout, "cpu"), path, "cpu").call)


def test_the_guides_batch_reads_and_writes_the_slots_of_its_table() -> None:
    found = program(docs_decode())
    assert found.k_slots[0, :31].tolist() == list(range(64, 95))
    assert found.k_slots[1, [0, 31, 32]].tolist() == [0, 31, 32]
    assert found.k_slots[2, [0, 32, 64, 70]].tolist() == [96, 160, 192, 198]
    assert found.writes is not None
    assert found.writes.k_slots.tolist() == [94, 32, 198]
    assert found.last.tolist() == [31, 33, 71]


def test_what_lies_beyond_the_table_is_no_slot() -> None:
    found = program(docs_decode())
    assert set(found.k_slots[0, 32:].tolist()) == {NO_SLOT}
    assert found.k_slots[2, 71:96].tolist() == list(range(199, 224))


# Hand counts for 3 query tokens of a sequence with 5 keys: own positions 2, 3, 4.
@pytest.mark.parametrize(
    ("causal", "window", "first", "last"),
    [
        (True, (-1, -1), [0, 0, 0], [3, 4, 5]),
        (False, (-1, -1), [0, 0, 0], [5, 5, 5]),
        (True, (1, 0), [1, 2, 3], [3, 4, 5]),
        (False, (1, 1), [1, 2, 3], [4, 5, 5]),
        (True, (0, 0), [2, 3, 4], [3, 4, 5]),
    ],
)
def test_rows_see_what_masks_leave_them(
    causal: bool, window: tuple[int, int], first: list[int], last: list[int]
) -> None:
    facts = program(scenario((3,), (5,), append=False), AttnPath.PAGED_VARLEN).facts
    starts, ends = visible_range(facts, causal, window)
    assert (starts.tolist(), ends.tolist()) == (first, last)


def test_rows_before_the_first_key_see_nothing() -> None:
    facts = program(scenario((4,), (2,), append=False), AttnPath.PAGED_VARLEN).facts
    starts, ends = visible_range(facts, True, (-1, -1))
    assert (ends - starts).tolist() == [0, 0, 1, 2]


@pytest.mark.parametrize("path", list(AttnPath))
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(
    "attention",
    [
        {},
        {"softcap": 1.5},
        {"window_size": (19, 0)},
        {"sinks": (0.5, -1.0, 2.0, 0.0)},
        {"causal": False, "window_size": (4, 2)},
        {"alibi_slopes": (0.5, 0.25, 0.125, 0.0625)},
    ],
    ids=lambda a: "-".join(a) or "plain",
)
def test_the_right_program_is_what_the_oracle_says(path: AttnPath, dtype: str, attention: dict[str, object]) -> None:
    wanted = scenario(dtype=dtype, attention=attention)
    assert Accuracy().run(context(wanted, FaultyBackend(), path)).verdict is Verdict.PASS


def test_a_program_is_a_value() -> None:
    before = program(docs_decode())
    after = before.replace(weight=torch.zeros_like(before.weight))
    assert bool(before.weight.all())
    assert dataclasses.fields(before) == dataclasses.fields(after)


@pytest.mark.parametrize(("name", "share"), [("combine-equal-weights", 0.5), ("combine-by-head-0", None)])
def test_splits_are_put_together_with_the_weights_of_the_fault(name: str, share: float | None) -> None:
    """40 keys in two splits of 32 and 8: each split's own softmax, and their mean by weights that are not its own."""
    wanted = scenario((1,), (40,), append=False, dtype="float32", heads=(2, 2), attention={"num_splits": 2})
    cell = context(wanted, FaultyBackend(find_fault(name)))
    inputs = cell.inputs
    scores = torch.einsum("hd,khd->hk", inputs.q[0].double(), inputs.k.double()) * wanted.attention.softmax_scale
    halves = [
        torch.einsum("hk,khd->hd", scores[:, part].softmax(-1), inputs.v[part].double())
        for part in (slice(0, 32), slice(32, 40))
    ]
    of_head_0 = torch.sigmoid(scores[0, :32].logsumexp(0) - scores[0, 32:].logsumexp(0))
    first = torch.tensor(share) if share is not None else of_head_0
    expected = first * halves[0] + (1 - first) * halves[1]
    output = cell.base.output
    assert output.lse is not None
    torch.testing.assert_close(output.out[0].double(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(output.lse[0].double(), scores.logsumexp(-1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "lse"),
    [("mask-finite", -1e30), ("mask-minus-10000", -10000 + 1.0986), ("empty-rows-mean-of-v", -torch.inf)],
)
def test_a_row_that_sees_none_of_three_keys_gets_their_mean_from_a_finite_mask(name: str, lse: float) -> None:
    """Five query tokens on three keys: the first two see none. The logarithm of 3 is 1.0986."""
    wanted = scenario((5,), (3,), append=False, dtype="float32", heads=(2, 2))
    cell = context(wanted, FaultyBackend(find_fault(name)), AttnPath.PAGED_VARLEN)
    output = cell.base.output
    assert output.lse is not None
    torch.testing.assert_close(output.out[:2], cell.inputs.v.mean(0).expand(2, -1, -1), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(output.lse[:2], torch.full((2, 2), lse), rtol=1e-6, atol=1e-3)
    torch.testing.assert_close(output.out[2:].double(), cell.reference.out[2:], rtol=1e-4, atol=1e-5)
