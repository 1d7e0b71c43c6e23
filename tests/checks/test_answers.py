"""Answers held against a base of 3 query tokens and 2 heads."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pagedbench.backends.base import Output
from pagedbench.checks.answers import Answer, differing, kept, placed

BASE = Output(torch.arange(24, dtype=torch.float32).view(3, 2, 4), torch.arange(6, dtype=torch.float32).view(3, 2))


def same(tokens: list[int] | None = None, *, lse: bool = True) -> Answer:
    rows = slice(None) if tokens is None else tokens
    assert BASE.lse is not None
    output = Output(BASE.out[rows].clone(), BASE.lse[rows].clone() if lse else None)
    return Answer(output, None if tokens is None else np.array(tokens))


def changed(answer: Answer, row: int, head: int) -> Answer:
    answer.output.out[row, head, 3] += 1
    return answer


def test_equal_bits_differ_nowhere_whatever_the_order_of_their_rows() -> None:
    assert differing(BASE, [same(), same([2, 0]), same([1]), same(lse=False)]) == [None] * 4
    assert differing(BASE, [same()]) == [None]


def test_a_changed_row_is_marked_in_its_own_answer() -> None:
    marks = differing(BASE, [same(), changed(same([2, 0]), 1, 1), same([1])])
    assert marks[0] is None
    assert marks[1] is not None
    assert marks[1].tolist() == [[False, False], [False, True]]
    assert marks[2] is None


def test_a_changed_lse_is_a_changed_row() -> None:
    answer = same([1, 2])
    assert answer.output.lse is not None
    answer.output.lse[0, 1] += 1
    marks = differing(BASE, [same(), answer])
    assert marks[1] is not None
    assert marks[1].tolist() == [[False, True], [False, False]]


def test_minus_zero_is_another_answer_and_nan_of_the_same_bits_is_not() -> None:
    base = Output(torch.tensor([[[0.0, torch.nan]]]))
    assert differing(base, [Answer(Output(base.out.clone()))]) == [None]
    assert differing(base, [Answer(Output(torch.tensor([[[-0.0, torch.nan]]])))])[0] is not None


def test_rows_go_back_to_where_the_base_has_them() -> None:
    answer = changed(same([2, 0]), 0, 1)
    mark = differing(BASE, [answer])[0]
    assert mark is not None
    whole, rows = placed(BASE, answer, mark)
    assert rows.tolist() == [[False, False], [False, False], [False, True]]
    expected = BASE.out.clone()
    expected[2, 1, 3] += 1
    assert whole.out.equal(expected)
    assert whole.lse is not None
    assert BASE.lse is not None
    assert whole.lse.equal(BASE.lse)


def test_kept_answers_do_not_follow_the_memory_they_came_in() -> None:
    answer = same()
    own = kept(answer, BASE)
    answer.output.out.zero_()
    assert own.output.out.equal(BASE.out)


@pytest.mark.parametrize(
    "output",
    [
        Output(torch.zeros(2, 2, 4)),
        Output(torch.zeros(3, 2, 4, dtype=torch.float64)),
        Output(torch.zeros(3, 2, 4), torch.zeros(3, 1)),
    ],
)
def test_another_form_is_refused(output: Output) -> None:
    with pytest.raises(ValueError, match="that of the base"):
        kept(Answer(output), BASE)
