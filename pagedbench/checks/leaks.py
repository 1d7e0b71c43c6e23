"""Leaks: whether anything that must not be read shows in the output.

All regions at once first, so that a right cell costs four calls; only when something shows is it searched for, region
by region and K and V apart, and the clean call repeated before anything is accused: a kernel that does not repeat its
bits differs whatever was filled. Finite fills must change no bit. NaN and Inf are a contract: what the adapter declares
may leak is tried alone and reported, anything else that leaks is a failure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from pagedbench.backends.base import EmptyRows, Output
from pagedbench.checks.answers import copied
from pagedbench.checks.base import CheckContext, CheckResult, Finding
from pagedbench.checks.comparison import compare
from pagedbench.checks.memory_patterns import memory_is_nan
from pagedbench.checks.poison import SIDES, Side, declared_leaks
from pagedbench.checks.rows import place_of
from pagedbench.layout.batch import BatchLayout
from pagedbench.layout.regions import Region
from pagedbench.tensors.bits import bits
from pagedbench.tensors.fill import Fill, FillValue, refill, slot_map
from pagedbench.tensors.prepare import Prepared, image_of
from pagedbench.tensors.transfer import to_device
from pagedbench.words import Verdict

FillName = Literal["large", "NaN", "Inf"]
CLEAN_REPEATS = 10
"""Clean calls made again before an accusation; a kernel that differs on one call in ten is told by the base call, if
that was the odd one, and by two in three of them else."""
FILLS: dict[FillName, FillValue] = {"large": "large", "NaN": float("nan"), "Inf": float("inf")}
_NAMES = {
    Region.TRASH: "the trash block",
    Region.NEW: "a new token's slot before the append",
    Region.HIDDEN: "keys that no row sees",
    Region.TAIL: "the rest of a partly used block",
    Region.UNNEEDED: "blocks named by padding only",
    Region.FREE: "blocks that nobody names",
}


@dataclass(frozen=True)
class Place:
    """One field of the matrix: a region, in K or in V."""

    region: Region
    side: Side

    def __str__(self) -> str:
        return f"{self.side} of {_NAMES[self.region]}"


_Row = tuple[int, int, int]
"""The first row (query token, head) that differs, and how many do."""


@dataclass(frozen=True)
class _Leak:
    """What shows, what it held, and the first row in which it shows (query token, head).

    One place, or several where none of them shows alone.
    """

    places: tuple[Place, ...]
    fill: FillName
    row: int
    head: int
    count: int


class Leaks:
    """The check."""

    name = "leaks"
    about = "Slots that must not be read, filled with decoys, huge numbers, NaN and Inf: nothing may show."

    def not_applicable(self, context: CheckContext) -> str | None:
        """Nothing to leak, or nothing to see it in."""
        if context.layout.total_q == 0:
            return "there is no query token"
        return None if _places(context) else "every slot of the pool is read"

    def run(self, context: CheckContext) -> CheckResult:
        """Fill by fill; K and V of all regions at once, apart where something shows."""
        trial = _Trial.of(context)
        places = _places(context)
        declared = [place for place in places if _may_leak(context, place)]
        leaks: list[_Leak] = []
        for fill in FILLS:
            tried = places if fill == "large" else [place for place in places if place not in declared]
            found = list(_search(trial, tried, fill))
            if found and not leaks and (changed := trial.unsteady()):
                return _unstable(context, changed)
            leaks += found
        permitted = [leak for place in declared for leak in _search(trial, [place], "NaN")]
        return _result(context, places, leaks, declared, permitted)


def _places(context: CheckContext) -> list[Place]:
    counts = slot_map(context.layout, context.device).counts
    return [Place(region, side) for region in _NAMES if counts[region] for side in SIDES]


def _may_leak(context: CheckContext, place: Place) -> bool:
    return (place.region, place.side) in declared_leaks(context.backend.traits_for(context.path))


@dataclass(frozen=True)
class _Trial:
    """Calls of one cell that differ in what must not be read. `clean`: the output with decoys everywhere; `decoys`: the
    memory of that call before it, None where it is large."""

    context: CheckContext
    clean: Output
    decoys: torch.Tensor | None

    @classmethod
    def of(cls, context: CheckContext) -> _Trial:
        """With the clean call made."""
        decoys = image_of(context.scenario, context.layout, context.inputs, _DECOYS, context.device)
        return cls(context, copied(_clean(context, decoys)), decoys)

    def unsteady(self) -> list[_Row]:
        """The first row of each repeat of the clean call that has other bits. Nothing where bits are not compared."""
        if not self.context.backend.traits_for(self.context.path).repeatable:
            return []
        repeats = (_shows(self.context, self.clean, _clean(self.context, self.decoys)) for _ in range(CLEAN_REPEATS))
        return [row for row in repeats if row is not None]

    def output(self, fill: Fill) -> Output:
        """With other values in some regions, and decoys in the others."""
        if self.decoys is None:
            return _run(self.context, self.context.prepare(fill=fill))
        prepared = self.context.prepare(fill=_DECOYS, image=self.decoys)
        refill(prepared.pool, fill, self.context.layout)
        return _run(self.context, prepared)


_DECOYS = Fill.regions()


def _clean(context: CheckContext, decoys: torch.Tensor | None) -> Output:
    return _run(context, context.prepare(fill=_DECOYS, image=decoys))


def _run(context: CheckContext, prepared: Prepared) -> Output:
    with memory_is_nan(context):  # rows that nobody wrote are the same each time, and no leak
        return context.execute(prepared).output


def _search(trial: _Trial, places: Iterable[Place], fill: FillName) -> Iterator[_Leak]:
    """The fields among `places` that show when they hold `fill`: all at once, then halves of what shows."""
    tried = list(places)
    if not tried:
        return
    seen = _shows(trial.context, trial.clean, trial.output(_filled(tried, fill)))
    if seen is None:
        return
    if len(tried) == 1:
        yield _Leak((tried[0],), fill, *seen)
        return
    middle = len(tried) // 2
    apart = [
        *_search(trial, tried[:middle], fill),
        *_search(trial, tried[middle:], fill),
    ]
    yield from apart or [_Leak(tuple(tried), fill, *seen)]


def _filled(places: Iterable[Place], fill: FillName) -> Fill:
    wanted = list(places)
    k, v = ({place.region: FILLS[fill] for place in wanted if place.side == side} for side in SIDES)
    return Fill.regions(k, v)


def _shows(context: CheckContext, clean: Output, filled: Output) -> _Row | None:
    """Where a call differs from the clean one; None if nowhere.

    Bitwise where the backend repeats itself, else by the row budget.
    """
    traits = context.backend.traits_for(context.path)
    if traits.repeatable:
        different = (bits(clean.out) != bits(filled.out)).any(-1)
        mine, theirs = clean.lse, filled.lse
        if mine is not None and theirs is not None:
            different |= bits(mine) != bits(theirs)
        rows = None
        judged = _judged(context.layout, different.device, traits.empty_rows)
        if judged is not None:
            different &= judged[:, None]
    else:
        reference = context.reference
        ratio = compare(filled, reference, context.layout, context.scenario.attention, traits).out.ratio
        rows, different = reference.rows, ratio > 1
    hits = different.nonzero()
    if not len(hits):
        return None
    row, head = hits[0].tolist()
    return row if rows is None else int(rows[row]), head, len(hits)


def _judged(layout: BatchLayout, device: torch.device, empty_rows: EmptyRows) -> torch.Tensor | None:
    """`(total_q,)` bool, None for all: not padding rows, nor empty rows of a backend that is declared to leave them."""
    judged = ~layout.dead[layout.row_sequence()]
    if empty_rows == "untouched":
        judged &= layout.visible_to > layout.visible_from
    return None if judged.all() else to_device(judged, device)


def _result(
    context: CheckContext, places: list[Place], leaks: list[_Leak], declared: list[Place], permitted: list[_Leak]
) -> CheckResult:
    warnings = _contract_words(declared, permitted)
    metrics = {"regions": float(len({place.region for place in places})), "leaks": float(len(leaks))}
    if not leaks:
        regions = ", ".join(sorted({place.region.name.lower() for place in places}))
        return CheckResult("leaks", Verdict.PASS, f"nothing shows of {regions}", metrics=metrics, warnings=warnings)
    findings = tuple(_finding(context, leak) for leak in leaks)
    # What shows with everything filled but with nothing alone is not what was filled: the backend does not repeat
    # itself.
    verdict = Verdict.LEAK if any(len(leak.places) == 1 for leak in leaks) else Verdict.UNSTABLE
    return CheckResult("leaks", verdict, findings[0].message, findings, metrics, warnings)


def _unstable(context: CheckContext, changed: list[_Row]) -> CheckResult:
    row, head, _ = changed[0]
    place = place_of(context.layout, row)
    message = (
        f"{place}, head {head}: the call does not repeat its bits with the same memory and the same fills "
        f"({len(changed)} of {CLEAN_REPEATS} repeats differ), so that no leak can be told"
    )
    finding = Finding(message, place.sequence, place.query_token, head)
    return CheckResult("leaks", Verdict.UNSTABLE, message, (finding,), {"repeats_changed": float(len(changed))})


def _contract_words(declared: list[Place], permitted: list[_Leak]) -> tuple[str, ...]:
    """What the adapter's contract permits, and whether it happened here."""
    happened = {place for leak in permitted for place in leak.places}
    return tuple(
        f"NaN in {place} leaks, as the backend declares"
        if place in happened
        else f"NaN in {place} does not leak here, though the backend declares that it may"
        for place in declared
    )


def _finding(context: CheckContext, leak: _Leak) -> Finding:
    place = place_of(context.layout, leak.row)
    held = {"large": "a huge number", "NaN": "NaN", "Inf": "Inf"}[leak.fill]
    fact = (
        f"{held} in {leak.places[0]} shows in the output"
        if len(leak.places) == 1
        else f"the output changes with {held} in all that must not be read, but with none of it alone"
    )
    return Finding(
        f"{place}, head {leak.head}: {fact} ({leak.count:,} rows)",
        place.sequence,
        place.query_token,
        leak.head,
        place.key if place.key >= 0 else None,
        place.logical_block,
        place.physical_block,
    )
