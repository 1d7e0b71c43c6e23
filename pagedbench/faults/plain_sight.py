"""What is plain to see of a wrong output without any hypothesis: rows that are zero, NaN, or all the same.

Said where no fault of the catalogue explains everything: it is true whatever the cause, which a fault that explains
some of the rows need not be.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from pagedbench.checks.base import CheckContext
from pagedbench.checks.comparison import Comparison
from pagedbench.checks.memory_patterns import FINITE_PATTERN, FilledAsAllocated, finite_pattern
from pagedbench.tensors.bits import bits
from pagedbench.tensors.fill import Fill


@dataclass(frozen=True)
class _Rows:
    """The query tokens of a batch: `wrong` `(total_q, num_heads)` bool; `sequence` of each, and whether it `sees` any
    key `(total_q,)`. Padding rows are in none of them."""

    wrong: torch.Tensor
    sequence: torch.Tensor
    sees: torch.Tensor


def plain_sight(context: CheckContext, values: torch.Tensor, distances: Comparison) -> str | None:
    """What an output's wrong rows have in common, and where they are, as a sentence; None where it is not so plain.

    `distances` are those of the output `values` `(total_q, num_heads, head_dim_v)` from the oracle.
    """
    reference = context.reference
    if reference.sampled:  # what the others are, nobody knows
        return None
    rows = _rows(context, distances)
    if not bool(rows.wrong.any()):
        return None
    if _all_the_same(values) and not _all_the_same(reference.out):
        return "all rows of the output are the same: it does not depend on the row"
    wrong = values[rows.wrong.to(values.device)]
    stops = _where_it_stops(context, rows)
    if bool((wrong == 0).all()):
        return _sentence(rows, "zero", stops)
    if bool(wrong.isnan().all()):
        what = _without_nan(context, rows)
        return None if what is None else _sentence(rows, what, stops)
    return None


def _rows(context: CheckContext, distances: Comparison) -> _Rows:
    live = torch.from_numpy(~context.layout.dead)
    sequence = torch.from_numpy(context.layout.row_sequence()).long()
    sees = context.reference.visible.cpu() > 0
    return _Rows(distances.out.ratio.cpu() > 1, sequence, sees & live[sequence])


def _all_the_same(values: torch.Tensor) -> bool:
    flat = values.flatten(0, 1)
    return len(flat) > 1 and bool(flat[0].any()) and bool((flat == flat[0]).all())


def _without_nan(context: CheckContext, rows: _Rows) -> str | None:
    """What the rows that are NaN are in a call whose memory, the output's included, holds none; None where they are
    numbers: NaN that a fault read is for the hypotheses to explain."""
    with FilledAsAllocated():  # type: ignore[no-untyped-call]
        out = context.execute(fill=replace(Fill.poison("none"), out=FINITE_PATTERN)).output.out
    again = out[rows.wrong.to(out.device)]
    if bool(again.isnan().all()):
        return "NaN, whatever memory holds,"
    return "not written" if bool((bits(again) == finite_pattern(again.element_size())).all()) else None


def _where_it_stops(context: CheckContext, rows: _Rows) -> str:
    """The first sequence without keys, or without query tokens, if all behind it is wrong and nothing before it is."""
    layout = context.layout
    found: dict[int, list[str]] = {}
    for what, lengths in (("keys", layout.total_seqlens), ("query tokens", layout.query_lens)):
        empty = (lengths == 0).nonzero()[0]
        if not len(empty):
            continue
        behind = (rows.sequence > int(empty[0])) & rows.sees
        before = rows.sequence < int(empty[0])
        if bool(behind.any()) and bool(rows.wrong[behind].all()) and not bool(rows.wrong[before].any()):
            found.setdefault(int(empty[0]), []).append(what)
    first = min(found, default=None)
    if first is None:
        return ""
    return f"; it seems to stop at sequence {first}, the first without {' or '.join(found[first])}"


def _sentence(rows: _Rows, what: str, stops: str) -> str:
    return f"the output is {what} in {_place(rows)}{stops}"


def _place(rows: _Rows) -> str:
    """Which rows are wrong, and what is said of the others."""
    there = rows.wrong.any(1)
    if bool(rows.sees.any()) and bool(rows.wrong[rows.sees].all()):
        return "all rows"
    sequences = _listed("sequence", rows.sequence[there])
    of_sequences = torch.isin(rows.sequence, rows.sequence[there]) & rows.sees
    heads = rows.wrong.any(0)
    if not bool((there & rows.sees).any()):
        place = f"rows that see no key, of {sequences}"
    elif bool(rows.wrong[of_sequences].all()):
        place = f"the rows of {sequences}"
    elif bool(rows.wrong[rows.sees][:, heads].all()):
        place = f"the rows of {_listed('head', heads.nonzero()[:, 0])}"
    else:
        place = f"{int(rows.wrong.sum())} of {rows.wrong.numel()} rows"
    return f"{place}, and right in all others"


def _listed(what: str, numbers: torch.Tensor) -> str:
    """`sequence 2`, `heads 0, 1, 2, 3 and 4 more`."""
    found: list[int] = sorted(set(numbers.tolist()))
    shown = ", ".join(str(number) for number in found[:8])
    more = f" and {len(found) - 8} more" if len(found) > 8 else ""
    return f"{what}{'s' if len(found) > 1 else ''} {shown}{more}"
