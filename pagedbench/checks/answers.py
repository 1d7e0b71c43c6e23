"""Answers of other ways held against the base's, bit for bit, many at once: small ones cost launches and waits alone.

Which rows differ is all that is said here; what a difference means is judged in `invariance.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pagedbench.backends.base import Output
from pagedbench.layout.batch import IntArray
from pagedbench.tensors.bits import bits
from pagedbench.tensors.transfer import to_device


@dataclass(frozen=True)
class Answer:
    """An output, and for each of its rows the query token of the base that it answers; None for row by row."""

    output: Output
    tokens: IntArray | None = None


def copied(output: Output) -> Output:
    """An output that later calls do not change."""
    lse = output.lse
    return Output(output.out.clone(), None if lse is None else lse.clone())


def kept(answer: Answer, base: Output) -> Answer:
    """The answer in memory of its own. Raises ValueError where it has not the form of the base's rows."""
    own = copied(answer.output)
    rows = len(base.out) if answer.tokens is None else len(answer.tokens)
    for name, found, right in (("output", own.out, base.out), ("LSE", own.lse, base.lse)):
        if found is None or right is None:
            continue
        if found.shape != (rows, *right.shape[1:]) or found.dtype != right.dtype:
            needed = f"{(rows, *right.shape[1:])} {right.dtype}"
            raise ValueError(f"the {name} is {tuple(found.shape)} {found.dtype}, that of the base {needed}")
    return Answer(own, answer.tokens)


def differing(base: Output, answers: Sequence[Answer]) -> list[torch.Tensor | None]:
    """For each answer None, or where it has other bits than the base: `(rows, num_heads)` bool. One wait for all.

    `answers` as `kept` gives them. An LSE that only one of the two has is not compared.
    """
    tokens = _tokens(base, answers)
    counts = [len(answer.output.out) for answer in answers]
    rows = (bits(base.out)[tokens] != bits(torch.cat([answer.output.out for answer in answers]))).any(-1)
    if base.lse is not None:
        right = base.lse[tokens]
        parts = zip(answers, torch.split_with_sizes(right, counts), strict=True)
        found = torch.cat([part if answer.output.lse is None else answer.output.lse for answer, part in parts])
        rows |= bits(right) != bits(found)
    unlike = np.logical_or.reduceat(rows.any(1).cpu().numpy(), np.cumsum([0, *counts[:-1]]))
    return [
        part if differs else None for part, differs in zip(torch.split_with_sizes(rows, counts), unlike, strict=True)
    ]


def _tokens(base: Output, answers: Sequence[Answer]) -> torch.Tensor | slice:
    """The base's row for each row of all answers; all rows as they stand where there is one answer in their order."""
    if len(answers) == 1 and answers[0].tokens is None:
        return slice(None)
    all_tokens = np.arange(len(base.out), dtype=np.int64)
    named = [all_tokens if answer.tokens is None else answer.tokens for answer in answers]
    return to_device(np.concatenate(named), base.out.device)


def placed(base: Output, answer: Answer, unlike: torch.Tensor) -> tuple[Output, torch.Tensor]:
    """The answer and its differing rows where the base has them; of query tokens that it does not answer, the base."""
    if answer.tokens is None:
        return answer.output, unlike
    tokens, whole, lse = to_device(answer.tokens, base.out.device), copied(base), answer.output.lse
    whole.out[tokens] = answer.output.out
    if whole.lse is not None and lse is not None:
        whole.lse[tokens] = lse
    rows = unlike.new_zeros(base.out.shape[:2])
    rows[tokens] = unlike
    return whole, rows
