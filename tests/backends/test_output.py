"""`Output`: a conversion of the LSE is ours, so it happens when somebody looks, not while a call is timed."""

from __future__ import annotations

import torch

from pagedbench.backends.base import Output


def test_a_conversion_runs_only_when_the_lse_is_looked_at():
    converted = []
    output = Output(torch.zeros(1, 1, 1), lambda: converted.append(1) or torch.ones(1, 1))
    assert converted == []
    assert output.lse.item() == 1
    assert converted == [1]


def test_a_replay_that_writes_the_librarys_tensor_again_is_seen():
    raw = torch.zeros(1, 1)
    output = Output(torch.zeros(1, 1, 1), lambda: raw + 1)
    assert output.lse.item() == 1
    raw.fill_(5)
    assert output.lse.item() == 6


def test_an_lse_in_the_right_form_or_none_is_as_it_was_given():
    lse = torch.zeros(1, 1)
    assert Output(torch.zeros(1, 1, 1), lse).lse is lse
    assert Output(torch.zeros(1, 1, 1)).lse is None
