"""The batch section: two lists or one word of grammar to lengths, and the lengths that no batch can have."""

from __future__ import annotations

from pagedbench.scenario.document import BatchSection
from pagedbench.scenario.grammar import GrammarError, Group, parse_spec, sequences
from pagedbench.scenario.model import Batch
from pagedbench.scenario.refusals import Refusals

# Above these the index arrays alone take gigabytes, and no card holds the keys.
MAX_SEQUENCES = 2**20
MAX_QUERY_TOKENS = 2**26
MAX_KEYS = 2**27


def resolve_batch(section: BatchSection, refusals: Refusals) -> Batch | None:
    """The lengths, padding rows appended; None where they are refused."""
    lengths = _from_lists(section, refusals) if section.spec is None else _from_spec(section, refusals)
    if lengths is None:
        return None
    query_lens, cached_lens = lengths
    padding = section.padding_rows
    if len(query_lens) + padding > MAX_SEQUENCES:
        field = "batch.padding_rows" if padding else "batch.query_lens"
        refusals.add(field, f"{len(query_lens) + padding:,} sequences", f"at most {MAX_SEQUENCES:,}")
        return None
    total_q = sum(query_lens) + padding
    total_k = sum(cached_lens) + (total_q if section.append else 0)
    if _too_many(total_q, total_k, refusals):
        return None
    return Batch(query_lens + (1,) * padding, cached_lens + (0,) * padding, section.append, padding)


def _from_lists(section: BatchSection, refusals: Refusals) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    query_lens, cached_lens = section.query_lens, section.cached_lens
    if query_lens is None and cached_lens is None:
        refusals.add("batch", "no lengths", "query_lens and cached_lens, or spec")
        return None
    if query_lens is None or cached_lens is None:
        missing = "query_lens" if query_lens is None else "cached_lens"
        refusals.add(f"batch.{missing}", "nothing", "as many lengths as the other list has")
        return None
    if len(query_lens) != len(cached_lens):
        needed = f"{len(query_lens):,}, as many as query_lens has"
        refusals.add("batch.cached_lens", f"{len(cached_lens):,} lengths", needed)
        return None
    return tuple(query_lens), tuple(cached_lens)


def _from_spec(section: BatchSection, refusals: Refusals) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    if section.query_lens is not None or section.cached_lens is not None:
        refusals.add("batch.spec", "spec beside lists of lengths", "one of the two forms")
        return None
    try:
        groups = parse_spec(section.spec or "")
    except GrammarError as error:
        refusals.add("batch.spec", str(error), "groups such as 2q2k_32q1s4k", "count, q query length, s keys, k ×1,024")
        return None
    if not _groups_fit(groups, section, refusals):
        return None
    query_lens = tuple(group.query_len for group in groups for _ in range(group.count))
    cached_lens = tuple(_cached(group, section.append) for group in groups for _ in range(group.count))
    return query_lens, cached_lens


def _groups_fit(groups: tuple[Group, ...], section: BatchSection, refusals: Refusals) -> bool:
    if sequences(groups) > MAX_SEQUENCES:
        refusals.add("batch.spec", f"{sequences(groups):,} sequences", f"at most {MAX_SEQUENCES:,}")
        return False
    short = next((g for g in groups if section.append and g.keys < g.query_len), None)
    if short:
        hint = "s counts the keys after the step, new ones included; with append: false it counts the cached ones"
        refusals.add("batch.spec", f"q{short.query_len}s{short.keys}", f"at least s{short.query_len}", hint)
        return False
    total_q = sum(g.count * g.query_len for g in groups)
    return not _too_many(total_q, sum(g.count * g.keys for g in groups), refusals)


def _cached(group: Group, append: bool) -> int:
    return group.keys - group.query_len if append else group.keys


def _too_many(total_q: int, total_k: int, refusals: Refusals) -> bool:
    for what, total, most in (("query tokens", total_q, MAX_QUERY_TOKENS), ("keys", total_k, MAX_KEYS)):
        if total > most:
            refusals.add("batch", f"{total:,} {what} in all", f"at most {most:,}")
            return True
    return False
