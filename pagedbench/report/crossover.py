"""What a grid of comparisons says: who wins where, from where on, where a cell falls off a cliff, what a library's own
choice of splits costs. Pure functions on records; drawing is `comparison.py`'s and `plots.py`'s.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pagedbench.results.comparison import ComparisonRecord, SideRecord
from pagedbench.timing.measurement import Measurement

CLIFF = 3.0
"""A neighbour whose time differs by this factor more than its work does is called a cliff."""
SPLITS = "num_splits"
_ORDER = ("batch", "query_len", "block_size", "placement", SPLITS, "keys")
MARKS = {"tie": "=", "few": "?", "none": "–"}
"""What stands in a map for an outcome that has no side."""
_NOTABLE_STAGE = 0.3
LOPSIDED = 0.2
"""An interval wider than this share of its value is seldom the same on both sides: its ends are told instead of ±."""


@dataclass(frozen=True)
class Outcome:
    """Who wins a comparison. `factor` is how many times as fast as the next best, with its interval.

    `wins` names a side that is faster than every other one beyond doubt, `tie` that none is shown to be, `few` that
    there are too few samples to tell, `alone` the only side with a time, `none` that there is no time at all.
    In a tie `side` is the one with the least time, `tied` it and all that it is not shown to be faster than; it is
    faster than the other timed ones, `beaten`.
    """

    kind: Literal["wins", "tie", "few", "alone", "none"]
    side: int | None = None
    factor: float = 1.0
    low: float = 1.0
    high: float = 1.0
    tied: tuple[int, ...] = ()
    beaten: tuple[int, ...] = ()


def outcome(record: ComparisonRecord) -> Outcome:
    """The outcome of one comparison."""
    timed = [index for index, side in enumerate(record.sides) if side.kernel_us is not None]
    if not timed:
        return Outcome("none")
    if len(timed) == 1:
        return Outcome("alone", timed[0])
    best, second = sorted(timed, key=lambda index: record.sides[index].kernel_us or 0.0)[:2]
    undecided = [other for other in timed if other != best and not _beats(record, best, other)]
    if any(_too_few(record, best, other) for other in undecided):
        return Outcome("few")
    if undecided:
        tied = tuple(sorted((best, *undecided)))
        return Outcome("tie", best, tied=tied, beaten=tuple(index for index in timed if index not in tied))
    factor, low, high = _speedup(record, best, second)
    return Outcome("wins", best, factor, low, high)


def marks_told(records: Sequence[ComparisonRecord]) -> list[str]:
    """What the marks in a map of these records mean, those that occur."""
    outcomes = [outcome(record) for record in records]
    kinds = {found.kind for found in outcomes}
    among = " between the fastest" if any(found.beaten for found in outcomes) else ""
    known = {
        "tie": f"{MARKS['tie']} no difference shown{among}",
        "few": f"{MARKS['few']} too few samples to tell",
        "alone": "a letter in brackets: only this side has a time",
        "none": f"{MARKS['none']} no time",
    }
    return [words for kind, words in known.items() if kind in kinds]


def _beats(record: ComparisonRecord, side: int, other: int) -> bool:
    pair = record.pair(min(side, other), max(side, other))
    return pair is not None and pair.verdict == ("faster" if side < other else "slower")


def _too_few(record: ComparisonRecord, side: int, other: int) -> bool:
    pair = record.pair(min(side, other), max(side, other))
    return pair is not None and pair.too_few


def _speedup(record: ComparisonRecord, side: int, other: int) -> tuple[float, float, float]:
    """How many times as fast `side` is as `other`, with the interval."""
    pair = record.pair(min(side, other), max(side, other))
    if pair is None or min(pair.low, pair.ratio) <= 0:
        return 1.0, 1.0, 1.0
    if side > other:
        return pair.ratio, pair.low, pair.high
    return 1 / pair.ratio, 1 / pair.high, 1 / pair.low


def grids_of(records: Sequence[ComparisonRecord]) -> list[list[ComparisonRecord]]:
    """Records that are variants of one scenario with the same sides: only those make a grid."""
    grids: dict[tuple[str, ...], list[ComparisonRecord]] = {}
    for record in records:
        name = record.scenario.partition("[")[0]
        grids.setdefault((name, *(side.target for side in record.sides)), []).append(record)
    return list(grids.values())


def axes_of(records: Sequence[ComparisonRecord]) -> list[str]:
    """The facts that vary among the records, keys last: they make the columns of a map."""
    names = dict.fromkeys(name for record in records for name in record.facts)
    varying = [n for n in names if len({_hashable(record.facts.get(n)) for record in records}) > 1]
    known = [name for name in _ORDER if name in varying]
    return sorted(varying, key=lambda n: (known.index(n) if n in known and n != "keys" else 50 + (n == "keys"), n))


def values_on(records: Sequence[ComparisonRecord], axis: str) -> list[Any]:
    """The values of an axis: numbers in order of size, words in order of appearance after them."""
    values = list({_hashable(r.facts.get(axis)): r.facts.get(axis) for r in records}.values())
    numbers = sorted(v for v in values if isinstance(v, (int, float)))
    return [*numbers, *(v for v in values if not isinstance(v, (int, float)))]


def _hashable(value: Any) -> Hashable:
    return value if isinstance(value, Hashable) else str(value)


def short_names(record: ComparisonRecord) -> list[str]:
    """The sides' names without what they have in common: paths of one backend, or backends of one path."""
    backends, paths = {s.backend for s in record.sides}, {s.path for s in record.sides}
    if len(backends) == 1 and len(paths) == len(record.sides):
        return [side.path for side in record.sides]
    if len(paths) == 1 and len(backends) == len(record.sides):
        return [side.backend for side in record.sides]
    return [side.target for side in record.sides]


def conclusion(records: Sequence[ComparisonRecord]) -> str:
    """One sentence: who wins, from where on, by how much at most, and what the loser spends its time on."""
    outcomes = [(record, outcome(record)) for record in records]
    decided = [(record, found) for record, found in outcomes if found.kind in ("wins", "tie")]
    few = sum(found.kind == "few" for _, found in outcomes)
    if not decided:
        return _undecided(records, few)
    return f"{_decision(decided, few)}{f'; {few} with too few samples to tell' if few else ''}."


def _undecided(records: Sequence[ComparisonRecord], few: int) -> str:
    """The sentence where no comparison came to an end: nothing is said of the sides."""
    if not few:
        return "Nothing could be compared: no two sides have a time."
    where = f"on {records[0].scenario}" if len(records) == 1 else f"in any of {few} cells"
    return f"Too few samples to tell {where}; allow more time (--max-seconds)."


def _decision(decided: Sequence[tuple[ComparisonRecord, Outcome]], few: int) -> str:
    """What is to be said of comparisons that were won or tied, at least one, beside `few` that say nothing; without the
    full stop."""
    names = short_names(decided[0][0])
    wins = Counter(found.side for _, found in decided if found.kind == "wins")
    ties = sum(found.kind == "tie" for _, found in decided)
    if not wins:
        return _all_tied(decided, names)
    best = max((pair for pair in decided if pair[1].kind == "wins"), key=lambda pair: pair[1].factor)
    if len(decided) + few == 1:
        return f"{_name(names, best[1])} is {_times(best[1])} as fast on {best[0].scenario}{_loser_stage(*best)}"
    tied = f", {ties} tied" if ties else ""
    thresholds = _thresholds(decided, names, few)
    counts = ", ".join(f"{names[side or 0]} wins {count}" for side, count in wins.most_common())
    head = thresholds or f"{counts} of {len(decided) + few} cells{tied}"
    place = _place(best[0], axes_of([record for record, _ in decided]))
    return f"{head}; {_name(names, best[1])} by {_times(best[1])} at {place}{_loser_stage(*best)}"


def _all_tied(decided: Sequence[tuple[ComparisonRecord, Outcome]], names: Sequence[str]) -> str:
    """What is to be said where no side wins anywhere: a side that is beaten beyond doubt is not among the tied."""
    tied = " and ".join(names[index] for index in sorted({i for _, found in decided for i in found.tied}))
    if len(decided) == 1:
        (record, found), slower = decided[0], " and ".join(names[index] for index in decided[0][1].beaten)
        ahead = f"; {_name(names, found)} is faster than {slower}" if slower else ""
        return f"No difference shown on {record.scenario} between {tied}{ahead}"
    if any(found.beaten for _, found in decided):
        return f"No difference shown between the fastest sides in any of {len(decided)} cells"
    return f"No difference shown in any of {len(decided)} cells between {tied}"


def _name(names: Sequence[str], found: Outcome) -> str:
    return names[found.side or 0]


def _times(found: Outcome) -> str:
    spread = max(found.high - found.factor, found.factor - found.low)
    if spread > LOPSIDED * found.factor:
        return f"{found.factor:.1f}× [{found.low:.1f}, {found.high:.1f}]"
    digits = 1 if spread >= 0.05 or found.factor >= 10 else 2
    return f"{found.factor:.{digits}f}× ± {max(spread, 10**-digits / 2):.{digits}f}"


def _place(record: ComparisonRecord, axes: Sequence[str]) -> str:
    if set(axes) <= {"batch", "keys"} and axes:
        return f"{record.facts['batch']} × {record.facts['keys']:,} keys"
    told = {axis: record.facts.get(axis) for axis in axes}
    words = [f"{axis.replace('_', ' ')} {f'{v:,}' if isinstance(v, int) else v}" for axis, v in told.items()]
    return ", ".join(words) or record.scenario


def _thresholds(decided: Sequence[tuple[ComparisonRecord, Outcome]], names: Sequence[str], few: int) -> str:
    """«decode wins all», or «decode wins from 96 keys on, varlen below», where one axis separates the winners."""
    won = [(record, found) for record, found in decided if found.kind == "wins"]
    ties = len(decided) - len(won)
    sides = {found.side for _, found in won}
    tied = f" ({ties} tied)" if ties else ""
    if len(sides) == 1:
        side = names[sides.pop() or 0]
        every = len(decided) + few
        return f"{side} wins {f'{len(won)} of {every}' if ties or few else f'all {every}'} cells{tied}"
    if len(sides) != 2:
        return ""
    for axis in reversed(axes_of([record for record, _ in decided])):
        found = _separating(won, axis)
        if found:
            upper, value, lower = found
            return f"{names[upper]} wins from {_axis_value(axis, value)} on, {names[lower]} below{tied}"
    corner = _corner(decided)
    if corner is None:
        return ""
    other = next(side for side in sides if side != corner.side)
    rest = sum(found.side == other for _, found in won)
    return f"{names[corner.side]} wins {corner.words()}, {names[other or 0]} {rest} of the other cells{tied}"


def _separating(won: Sequence[tuple[ComparisonRecord, Outcome]], axis: str) -> tuple[int, Any, int] | None:
    """The side that wins at and above a value of the axis, the value, and the side that wins below it."""
    if not all(isinstance(record.facts.get(axis), (int, float)) for record, _ in won):
        return None
    by_side: dict[int, list[float]] = {}
    for record, found in won:
        by_side.setdefault(found.side or 0, []).append(record.facts[axis])
    for upper, lower in itertools.permutations(by_side, 2):
        if min(by_side[upper]) > max(by_side[lower]):
            return upper, min(by_side[upper]), lower
    return None


def _axis_value(axis: str, value: Any) -> str:
    return f"{value:,} keys" if axis == "keys" else f"{axis.replace('_', ' ')} {value:,}"


@dataclass(frozen=True)
class _Corner:
    """The part of a grid at and above a value on each of two axes, where only `side` wins, `cells` times."""

    side: int
    bounds: tuple[tuple[str, Any], ...]
    cells: int

    def words(self) -> str:
        """«from 96 keys on at batch ≥ 2»."""
        (axis, value), *more = self.bounds
        beside = "".join(f" at {name.replace('_', ' ')} ≥ {least:,}" for name, least in more)
        return f"from {_axis_value(axis, value)} on{beside}"


def _corner(decided: Sequence[tuple[ComparisonRecord, Outcome]]) -> _Corner | None:
    """The largest corner of the grid, over any two numeric axes, that one side has to itself; ties are not its own."""
    records = [record for record, _ in decided]
    axes = [a for a in reversed(axes_of(records)) if all(isinstance(r.facts.get(a), (int, float)) for r in records)]
    best: _Corner | None = None
    for first, second in itertools.combinations(axes, 2):
        for low, least in itertools.product(values_on(records, first), values_on(records, second)):
            inside = [f for r, f in decided if r.facts[first] >= low and r.facts[second] >= least]
            sides = {found.side for found in inside}
            if len(sides) != 1 or None in sides or (best and len(inside) <= best.cells):
                continue
            whole = least == values_on(records, second)[0]
            bounds = ((first, low),) if whole else ((first, low), (second, least))
            best = _Corner(inside[0].side or 0, bounds, len(inside))
    return best


def _loser_stage(record: ComparisonRecord, found: Outcome) -> str:
    """«, two thirds of varlen's time is the gather»: the largest stage besides attention of a side that lost."""
    for index, side in enumerate(record.sides):
        measurement = side.measurement
        if index == found.side or measurement is None:
            continue
        largest = max((s for s in measurement.stages if s.name != "attention"), key=lambda s: s.share, default=None)
        if largest and largest.share >= _NOTABLE_STAGE:
            return f", {largest.share:.0%} of {short_names(record)[index]}'s time is the {largest.name}"
    return ""


@dataclass(frozen=True)
class Cliff:
    """A cell far from its neighbour on an axis: `factor` more time than its work explains."""

    record: ComparisonRecord
    neighbour: ComparisonRecord
    side: int
    axis: str
    factor: float

    def sentence(self) -> str:
        """For a person."""
        side = self.record.sides[self.side]
        return (
            f"cliff: {side.target} at {self.axis.replace('_', ' ')} {self.record.facts[self.axis]} takes "
            f"{self.factor:.1f}× as long as its neighbour at {self.neighbour.facts[self.axis]} would explain "
            f"({_us(side):,.1f} against {_us(self.neighbour.sides[self.side]):,.1f} us; {self.record.scenario})"
        )


def cliffs(records: Sequence[ComparisonRecord]) -> list[Cliff]:
    """Cells that take far longer than a neighbour, more than the difference of their work and what is unsure of both
    times explain."""
    axes = axes_of(records)
    found: list[Cliff] = []
    for axis in axes:
        others = [name for name in axes if name != axis]
        lines = _lines(records, axis, others)
        if axis == "query_len" and "keys" in others:
            # New tokens that are appended are keys, too: steps of more tokens on one context have more keys.
            lines += _lines(records, axis, others, cached=True)
        found.extend(c for line in lines for a, b in itertools.pairwise(line) for c in _cliffs_between(a, b, axis))
    return found


def _lines(
    records: Sequence[ComparisonRecord], axis: str, others: Sequence[str], *, cached: bool = False
) -> list[list[ComparisonRecord]]:
    """Records that differ only on `axis`, in its order; with `cached`, in whose keys new tokens do not count."""
    order = [_hashable(v) for v in values_on(records, axis)]
    lines: dict[Hashable, list[ComparisonRecord]] = {}
    for record in records:
        facts = {**record.facts}
        if cached:
            facts["keys"] -= facts["query_len"]
        sides = tuple(side.target for side in record.sides)
        lines.setdefault((sides, *(_hashable(facts.get(name)) for name in others)), []).append(record)
    return [sorted(line, key=lambda r: order.index(_hashable(r.facts.get(axis)))) for line in lines.values()]


def _cliffs_between(a: ComparisonRecord, b: ComparisonRecord, axis: str) -> list[Cliff]:
    found = []
    for side in range(min(len(a.sides), len(b.sides))):
        for slow, quick in ((a, b), (b, a)):
            slow_us, quick_us = _us(slow.sides[side]), _us(quick.sides[side])
            if not slow_us or not quick_us:
                continue
            work = max(1.0, _work_ratio(slow, quick, side))
            factor = slow_us / quick_us / work
            if _surely(slow.sides[side], quick.sides[side]) / work > CLIFF:
                found.append(Cliff(slow, quick, side, axis, factor))
    return found


def _work_ratio(a: ComparisonRecord, b: ComparisonRecord, side: int) -> float:
    """How many times b's work a has to do, in what binds either of them: a step of more query tokens has more FLOPs,
    which cost a kernel nothing that waits for its keys."""
    if not (a.work and b.work):
        return 1.0
    names = {name for record in (a, b) for name in _binding(record.sides[side])}
    return max(a.work[name] / max(b.work[name], 1) for name in names)


def _binding(side: SideRecord) -> tuple[str, ...]:
    roofline = side.measurement.roofline if side.measurement else None
    if roofline is None:
        return ("bytes", "flops")
    return ("bytes",) if roofline.bound == "memory" else ("flops",)


def _surely(slow: SideRecord, quick: SideRecord) -> float:
    """How many times as long the slow side takes at least, by the intervals of both."""
    ends = [side.measurement.kernel if side.measurement else None for side in (slow, quick)]
    return ends[0].low / ends[1].high if ends[0] and ends[1] and ends[1].high else 0.0


def _us(side: SideRecord) -> float:
    return side.kernel_us or 0.0


APART = 1.05
"""Points of a grid are timed one after the other, not by turns: what drifts meanwhile is not a cost of splits."""


def splits_cost(records: Sequence[ComparisonRecord]) -> list[str]:
    """What the library's own number of splits costs against the best explicit one, a sentence a line of the grid."""
    axes = axes_of(records)
    if SPLITS not in axes:
        return []
    others = [name for name in axes if name != SPLITS]
    idle = dict.fromkeys(side.target for record in records for side in record.sides if side.ignores_splits)
    sentences = [f"{target} ignores the number of splits" for target in idle]
    for line in _lines(records, SPLITS, others):
        auto = next((r for r in line if r.facts[SPLITS] == "auto"), None)
        for side in range(len(line[0].sides)) if auto else ():
            timed = [(r, m) for r in line if r is not auto and (m := r.sides[side].measurement)]
            own = auto.sides[side].measurement if auto else None
            if timed and own and auto and not auto.sides[side].ignores_splits:
                sentences.append(_splits_sentence(auto, side, own, timed, others))
    return sentences


def _splits_sentence(
    auto: ComparisonRecord,
    side: int,
    own: Measurement,
    timed: Sequence[tuple[ComparisonRecord, Measurement]],
    others: Sequence[str],
) -> str:
    best, measurement = min(timed, key=lambda pair: pair[1].kernel.median if pair[1].kernel else float("inf"))
    mine, theirs = own.kernel, measurement.kernel
    assert mine is not None, "a side with a time has a kernel time"
    assert theirs is not None, "a side with a time has a kernel time"
    place = f" at {_place(auto, others)}" if others else ""
    target = auto.sides[side].target
    if mine.low <= theirs.high * APART:
        return f"{target}{place}: the library's own number of splits is as good as the best ({best.facts[SPLITS]})"
    return (
        f"{target}{place}: the library's own number of splits takes {mine.median / theirs.median:.2f}× "
        f"[{mine.low / theirs.high:.2f}, {mine.high / theirs.low:.2f}] the time of {best.facts[SPLITS]}"
    )
