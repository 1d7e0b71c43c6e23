"""What of an `override` no call can be made of: arrays of another shape, and slots that the tool itself cannot use.

Wrong values are what an override is for and stay, except where the tool would be the one to fail on them: its own write
and gather take slots of the pool, and an oracle that takes the arrays at their word needs lengths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from pagedbench.errors import Problem, ScenarioError
from pagedbench.layout.arithmetic import NO_SLOT, blocks_for
from pagedbench.layout.batch import BatchLayout
from pagedbench.scenario.model import Override, Scenario

_LENGTHS = ("cache_seqlens", "total_seqlens")
_CUMULATIVE = ("cu_seqlens_q", "cu_seqlens_k")
_MOST_SHOWN = 8


def refuse_bad_override(scenario: Scenario, layout: BatchLayout) -> None:
    """Raise ScenarioError at every array of the override that does not fit a call of this layout."""
    problems = [problem for name in scenario.override.values for problem in _problems(scenario, layout, name)]
    if problems:
        raise ScenarioError(problems)


def _problems(scenario: Scenario, layout: BatchLayout, name: str) -> Iterator[Problem]:
    value = scenario.override.values[name]
    if not isinstance(value, tuple):  # a maximum
        return
    if name == "block_table":
        yield from _table(scenario, layout, value)
        return
    needed, counts = _counts(scenario.override, layout, name)
    if len(value) not in counts:
        yield scenario.problem(f"override.{name}", f"{len(value):,} numbers", needed)
    elif name in ("write_slots", "read_slots"):
        yield from _slots(scenario, layout, name, value)
    elif scenario.override.oracle == "as-given":
        yield from _no_lengths(scenario, name, value)


def _counts(override: Override, layout: BatchLayout, name: str) -> tuple[str, set[int]]:
    """What an array holds, in words, and how many numbers that is."""
    if name in _CUMULATIVE:
        return f"{layout.batch + 1:,}: 0, and one more for each of {layout.batch:,} sequences", {layout.batch + 1}
    if name in _LENGTHS:
        return f"{layout.batch:,}, one a sequence", {layout.batch}
    if name == "write_slots":
        new = len(layout.write_slots)
        return f"{new:,}, one a new token" + ("" if layout.append else ", and nothing is appended"), {new}
    # Other lengths may come with slots of their own: then there are as many keys as those say.
    given = override.values.get("cu_seqlens_k")
    keys = {layout.total_k} | ({given[-1]} if isinstance(given, tuple) and given else set())
    return f"{' or '.join(f'{count:,}' for count in sorted(keys))}, one a key", keys


def _table(scenario: Scenario, layout: BatchLayout, rows: Sequence[tuple[int, ...]]) -> Iterator[Problem]:
    """One row a sequence, and columns for all its keys: a kernel would read past the end of a narrower table."""
    field = "override.block_table"
    if len(rows) != layout.batch:
        yield scenario.problem(field, f"{len(rows):,} rows", f"{layout.batch:,}, one a sequence")
        return
    need = blocks_for(layout.total_seqlens.astype(np.int64), layout.block_size)
    columns = max(1, int(need.max(initial=0)))
    if rows and len(rows[0]) < columns:
        longest = int(np.argmax(need))
        keys = f"sequence {longest} has {int(layout.total_seqlens[longest]):,} keys in blocks of {layout.block_size}"
        yield scenario.problem(field, f"{len(rows[0])} columns", f"at least {columns}: {keys}")


def _slots(scenario: Scenario, layout: BatchLayout, name: str, slots: Sequence[int]) -> Iterator[Problem]:
    """The tool writes and gathers by these itself; a new token with the slot −1 is not written, as in an engine."""
    pool = layout.num_blocks * layout.block_size
    lowest = NO_SLOT if name == "write_slots" else 0
    bad = [i for i, slot in enumerate(slots) if not lowest <= slot < pool]
    unwritten = ", or −1 for a token that is not written" if name == "write_slots" else ""
    needed = (f"a slot from 0 to {pool - 1:,}" if pool else "a slot, but the pool has none") + unwritten
    for i in bad[:_MOST_SHOWN]:
        yield scenario.problem(f"override.{name}[{i}]", slots[i], needed)


def _no_lengths(scenario: Scenario, name: str, numbers: Sequence[int]) -> Iterator[Problem]:
    """Numbers that an oracle cannot take at their word. With `intended` no one but the kernel looks at them."""
    hint = "oracle: as-given takes it at its word; with oracle: intended it may be anything"
    wrong = _out_of_order if name in _CUMULATIVE else _negative
    found = ((i, needed) for i in range(len(numbers)) if (needed := wrong(numbers, i)))
    for i, needed in list(found)[:_MOST_SHOWN]:
        yield scenario.problem(f"override.{name}[{i}]", numbers[i], needed, hint)


def _negative(numbers: Sequence[int], i: int) -> str | None:
    return None if numbers[i] >= 0 else "a length from 0 up"


def _out_of_order(numbers: Sequence[int], i: int) -> str | None:
    """What a cumulative length needs to be that is none."""
    if i == 0:
        return None if numbers[0] == 0 else "0, where the first sequence begins"
    return None if numbers[i] >= numbers[i - 1] else f"at least {numbers[i - 1]:,}, the one before it"
