"""The batch grammar of vLLM's attention benchmarks: a whole batch in one word.

`2q2k_32q1s4k` is two prefills of 2,048 tokens and 32 decodes of one token with 4,096 keys after the step. Groups are
joined by `_`; a group is `[count]q<query length>[k][s<keys>[k]]`, `k` multiplies by 1,024, the count is 1 and the keys
are the query length unless given. What the keys count (with the new tokens, or only the cached ones) is up to the
caller. Sizes are limited by the caller too: `sequences` costs nothing to look at.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pagedbench.scenario.source import shown

_GROUP = re.compile(r"(?P<count>[0-9]*)q(?P<query>[0-9]+)(?P<qk>k?)(?:s(?P<keys>[0-9]+)(?P<sk>k?))?")
_MAX_CHARACTERS = 10_000
_MAX_DIGITS = 10


@dataclass(frozen=True)
class Group:
    """`count` sequences of `query_len` new tokens and `keys` keys."""

    count: int
    query_len: int
    keys: int


class GrammarError(ValueError):
    """The text is not in the grammar; the message says which part."""


def parse_spec(text: str) -> tuple[Group, ...]:
    """The groups of a batch spec. Raises GrammarError that names the first part that does not fit."""
    if len(text) > _MAX_CHARACTERS:
        raise GrammarError(f"a spec of {len(text):,} characters")
    return tuple(_parse_group(part, text) for part in text.split("_"))


def format_spec(groups: tuple[Group, ...]) -> str:
    """The spec of groups, in full and without `k`: what `parse_spec` reads back to the same groups."""
    return "_".join(f"{g.count}q{g.query_len}s{g.keys}" for g in groups)


def sequences(groups: tuple[Group, ...]) -> int:
    """How many sequences the groups make, without making them."""
    return sum(group.count for group in groups)


def _parse_group(part: str, whole: str) -> Group:
    match = _GROUP.fullmatch(part)
    if match is None:
        raise GrammarError(f"'{shown(part)}' in '{shown(whole)}'" if part != whole else f"'{shown(part)}'")
    if any(len(digits or "") > _MAX_DIGITS for digits in match.group("count", "query", "keys")):
        raise GrammarError(f"a number of more than {_MAX_DIGITS} digits")
    query_len = _number(match["query"], match["qk"])
    return Group(
        count=int(match["count"]) if match["count"] else 1,
        query_len=query_len,
        keys=_number(match["keys"], match["sk"]) if match["keys"] else query_len,
    )


def _number(digits: str, k: str) -> int:
    return int(digits) * (1024 if k else 1)
