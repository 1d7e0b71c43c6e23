"""Footprint: which slots each row read, and how often, exactly, for K and for V, at any length.

Detection is `footprint_detect.py`, location `footprint_locate.py`, the sentences `footprint_words.py`. Scale, softcap
and
the numbers themselves are the accuracy check's: here all weights are equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from pagedbench.checks.base import CheckContext, CheckResult, Finding
from pagedbench.checks.footprint_calls import codes_do_not_fit, k_side_impossible
from pagedbench.checks.footprint_detect import HALF_CODE, Deviation, detect, k_attempts
from pagedbench.checks.footprint_locate import Reads, locate
from pagedbench.checks.footprint_tags import TagProbe
from pagedbench.checks.footprint_values import describe_values
from pagedbench.checks.footprint_words import describe_k, describe_row, heads_words
from pagedbench.words import Verdict

# Failing sequences that are looked into; the others are counted.
_MOST_SEQUENCES = 3
_FEWEST_CHANNELS = 8
_UNTOLD = "holds sums that are those of no set of slots: as far as tags tell, each key is read once"


@dataclass(frozen=True)
class Footprint:
    """The check."""

    name: str = "footprint"
    about: str = "which slots each row reads, and how often: exact at any length, for K and for V"
    located: bool = True
    """Whether what is wrong is looked for; without it, rows are only counted."""

    def not_applicable(self, context: CheckContext) -> str | None:
        """Value heads too narrow for codes, or nothing to read."""
        if context.scenario.attention.head_dim_v < _FEWEST_CHANNELS:
            return f"a value head dim below {_FEWEST_CHANNELS} has too few channels for codes"
        if context.scenario.override.values:
            return "the scenario overrides arrays: what a row should read is not defined"
        if context.layout.total_q == 0:
            return "there is no query token"
        return codes_do_not_fit(context.scenario, context.layout.max_seqlen_k)

    def run(self, context: CheckContext) -> CheckResult:
        """Detect; where something shows, locate it."""
        impossible = k_side_impossible(context.scenario, context.layout.max_seqlen_k)
        warnings = (f"footprint of K not checked: {impossible}",) if impossible else ()
        for deviation in _deviations(context, k_side=impossible is None):
            if deviation.found:
                return _report(context, deviation, warnings, self.located)
        rows = context.layout.total_q * context.scenario.attention.num_heads
        return CheckResult(self.name, Verdict.PASS, f"{rows:,} rows read exactly their keys", warnings=warnings)


def _deviations(context: CheckContext, *, k_side: bool) -> Iterator[Deviation]:
    yield detect(context, "V")
    if k_side:
        for attempt in range(k_attempts(context)):
            yield detect(context, "K", attempt)


def _report(context: CheckContext, deviation: Deviation, warnings: tuple[str, ...], located: bool) -> CheckResult:
    failing = int(deviation.sums.sum())
    if not failing:
        return _lse_report(context, deviation, warnings)
    findings = []
    sequences = _failing_sequences(context, deviation.sums)
    for sequence in sequences[: _MOST_SEQUENCES if located else 0]:
        findings += _explain(context, deviation, sequence)
    message = findings[0].message if findings else f"{failing:,} rows read a wrong set of slots"
    return CheckResult(
        "footprint",
        Verdict.FOOTPRINT,
        message,
        tuple(findings),
        {"rows_wrong": float(failing), "sequences_wrong": float(len(sequences))},
        warnings,
    )


def _lse_report(context: CheckContext, deviation: Deviation, warnings: tuple[str, ...]) -> CheckResult:
    row, head = (int(i) for i in deviation.lse.nonzero()[0])
    sequence = int(context.layout.row_sequence()[row])
    message = (
        f"sequence {sequence}, query token {row - int(context.layout.cu_seqlens_q[sequence])}, head {head}: "
        f"reads the right slots, but the LSE is not the logarithm of their number"
    )
    found = int(deviation.lse.sum())
    finding = Finding(message, sequence, row - int(context.layout.cu_seqlens_q[sequence]), head)
    return CheckResult("footprint", Verdict.MISMATCH, message, (finding,), {"rows_wrong": float(found)}, warnings)


def _failing_sequences(context: CheckContext, wrong: torch.Tensor) -> list[int]:
    """Sequences with wrong rows, the one with most of them first."""
    sequence = context.layout.row_sequence()
    per_row = wrong.sum(1).cpu().numpy()
    totals = np.bincount(sequence, weights=per_row, minlength=context.layout.batch)
    return [int(s) for s in np.argsort(-totals, kind="stable") if totals[s] > 0]


def _explain(context: CheckContext, deviation: Deviation, sequence: int) -> list[Finding]:
    """Sentences for one sequence: one for each group of heads that share a fate, on its last failing row."""
    wrong = deviation.sums.cpu().numpy()
    start = int(context.layout.cu_seqlens_q[sequence])
    of_sequence = np.flatnonzero((context.layout.row_sequence() == sequence) & wrong.any(1))
    row = int(of_sequence[-1])
    heads = [int(h) for h in np.flatnonzero(wrong[row])]
    known = _special_case(context, deviation, row, heads)
    if known is None:
        reads = read_slots_of(context, deviation, sequence, np.array([row]))
        known = _by_head(context, deviation, sequence, reads, heads)
    token = row - start
    return [
        Finding(f"sequence {sequence}, query token {token}, {heads_words(group)}: {text}", sequence, token, group[0])
        for text, group in known.items()
    ]


def _by_head(
    context: CheckContext, deviation: Deviation, sequence: int, reads: Reads, heads: list[int]
) -> dict[str, list[int]]:
    words = describe_k if deviation.side == "K" else describe_row
    grouped: dict[str, list[int]] = {}
    for head in heads:
        text = words(context.layout, sequence, reads, 0, head)
        grouped.setdefault(text or _UNTOLD, []).append(head)
    return grouped


def _special_case(
    context: CheckContext, deviation: Deviation, row: int, heads: list[int]
) -> dict[str, list[int]] | None:
    """What the sums alone give away: nothing written, all zero, those of another KV head or row, or of no slots."""
    decoded = deviation.decoded[row, heads]
    if not bool(decoded.isfinite().all()):
        blind = int(context.layout.visible_to[row] - context.layout.visible_from[row]) == 0
        zero_wanted = "it sees no key, yet its output is not zero"
        return {zero_wanted if blind else "its output is not finite, though all that it may read is": heads}
    if not bool(decoded.any()):
        return {"its output is all zeros": heads}
    return (
        _another_head(context, deviation, row, heads)
        or _another_row(context, deviation, row, heads)
        or _values_of_no_slots(deviation, row, heads)
    )


def _values_of_no_slots(deviation: Deviation, row: int, heads: list[int]) -> dict[str, list[int]] | None:
    """Every failing head has sums that no set of slots gives: scaled, or wrong in some channels only."""
    if deviation.side == "K":
        return None
    decoded, wanted = (t[row].double().cpu().numpy() for t in (deviation.decoded, deviation.wanted))
    grouped: dict[str, list[int]] = {}
    for head in heads:
        text = describe_values(decoded[head], wanted[head])
        if text is None:
            return None
        grouped.setdefault(text, []).append(head)
    return grouped


def _another_head(
    context: CheckContext, deviation: Deviation, row: int, heads: list[int]
) -> dict[str, list[int]] | None:
    """Every failing head has the sums of another KV head."""
    group = context.scenario.attention.group_size
    grouped: dict[str, list[int]] = {}
    for head in heads:
        same = _same_sums(deviation.wanted[row], deviation.decoded[row, head])
        if not same:
            return None
        grouped.setdefault(f"reads KV head {same[0] // group} instead of {head // group}", []).append(head)
    return grouped


def _another_row(
    context: CheckContext, deviation: Deviation, row: int, heads: list[int]
) -> dict[str, list[int]] | None:
    """The output is what a query token of another sequence should have. Not told of one that sees a single key: who
    reads that key is as likely to have a wrong slot."""
    head = heads[0]
    layout = context.layout
    others = (layout.row_sequence() != layout.row_sequence()[row]) & (layout.visible_to - layout.visible_from > 1)
    others = torch.from_numpy(others).to(deviation.decoded.device)
    as_other = deviation.decoded[row, head] * (deviation.mass[:, head] / deviation.mass[row, head])[:, None]
    same = _same_sums(deviation.wanted[:, head] * others[:, None], as_other)
    if not same:
        return None
    sequence = int(layout.row_sequence()[same[0]])
    token = same[0] - int(layout.cu_seqlens_q[sequence])
    return {f"holds what belongs to query token {token} of sequence {sequence}": heads}


def _same_sums(wanted: torch.Tensor, decoded: torch.Tensor) -> list[int]:
    """Entries of `wanted` that `decoded` is, zeros apart."""
    close = ((wanted - decoded).abs() < HALF_CODE).all(-1) & (wanted != 0).any(-1)
    return [int(i) for i in close.nonzero()[:, 0]]


def read_slots_of(context: CheckContext, deviation: Deviation, sequence: int, rows: np.ndarray) -> Reads:
    """What `rows` (query tokens) of a sequence read, measured with the K of the deviating call."""
    layout, device = context.layout, context.device
    first, last = int(layout.cu_seqlens_k[sequence]), int(layout.cu_seqlens_k[sequence + 1])
    slots = layout.read_slots[first:last]
    position = np.arange(last - first)
    visible = (position >= layout.visible_from[rows, None]) & (position < layout.visible_to[rows, None])
    group = context.scenario.attention.group_size
    included = deviation.included[first:last].repeat_interleave(group, 1).T.cpu().numpy()
    probe = TagProbe(context, deviation.included, deviation.coding, torch.from_numpy(rows).to(device))
    placed = slots >= 0
    wanted = (visible[:, None] & included)[..., placed]
    return locate(probe, slots[placed], layout.num_blocks * layout.block_size, wanted, layout.block_size)


def first_deviation(context: CheckContext) -> Deviation | None:
    """The first coded call that comes out wrong, or None: where a picture or a search begins."""
    k_side = k_side_impossible(context.scenario, context.layout.max_seqlen_k) is None
    return next((found for found in _deviations(context, k_side=k_side) if found.found), None)


def worst_sequence(context: CheckContext, deviation: Deviation) -> int | None:
    """The sequence with the most wrong rows; None where only the LSE is wrong."""
    sequences = _failing_sequences(context, deviation.sums)
    return sequences[0] if sequences else None
