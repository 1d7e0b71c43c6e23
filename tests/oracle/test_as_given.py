"""An override taken at its word: the oracle and the expected memory follow the wrong arrays."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pagedbench.checks.accuracy import Accuracy
from pagedbench.checks.cache_update import CacheUpdate
from pagedbench.layout.build import build_layout
from pagedbench.layout.given import layout_as_given
from pagedbench.oracle.reference import NoReference
from pagedbench.scenario.model import Override, Scenario
from pagedbench.words import AttnPath, Verdict
from tests.checks.kernels import Plain, context
from tests.tensors.cells import docs_decode, scenario


def overridden(wanted: Scenario, oracle: str, **values: object) -> Scenario:
    return replace(wanted, override=Override(values, oracle))  # type: ignore[arg-type]


def verdict(wanted: Scenario, path: AttnPath) -> Verdict:
    return Accuracy().run(context(wanted, Plain(), path)).verdict


# Sequence 2 takes one key from sequence 1: 31, 32 and 72 keys.
SHIFTED = (0, 31, 63, 135)


def test_gathered_keys_are_cut_as_the_given_lengths_say() -> None:
    assert verdict(overridden(docs_decode(), "as-given", cu_seqlens_k=SHIFTED), AttnPath.VARLEN) is Verdict.PASS
    assert verdict(overridden(docs_decode(), "intended", cu_seqlens_k=SHIFTED), AttnPath.VARLEN).is_wrong


SWAPPED = ((2, -1, -1, -1), (0, 1, -1, -1), (5, 3, 6, -1))


def test_keys_are_read_where_the_given_table_points() -> None:
    """A kernel that is handed another sequence order of blocks is right in its own terms."""
    wanted = overridden(docs_decode(), "as-given", block_table=SWAPPED)
    layout = layout_as_given(wanted, build_layout(wanted), paged=True)
    assert layout.read_slots[64:66].tolist() == [5 * 32, 5 * 32 + 1]
    assert verdict(wanted, AttnPath.DECODE) is Verdict.PASS


def test_new_tokens_belong_where_the_given_slots_put_them() -> None:
    wrong = (95, 32, 198)  # one slot late for sequence 0
    kept = overridden(docs_decode(), "as-given", write_slots=wrong)
    judged = CacheUpdate().run(context(kept, Plain(), AttnPath.VARLEN))
    assert judged.verdict is Verdict.PASS
    meant = overridden(docs_decode(), "intended", write_slots=wrong)
    judged = CacheUpdate().run(context(meant, Plain(), AttnPath.VARLEN))
    assert judged.verdict is Verdict.CORRUPTED
    assert "sequence 0, new token 0: K missed" in judged.message


def test_given_query_lengths_move_rows_between_sequences() -> None:
    wanted = overridden(scenario((10, 3, 1), (0, 1, 7)), "as-given", cu_seqlens_q=(0, 9, 13, 14))
    layout = layout_as_given(wanted, build_layout(wanted), paged=False)
    assert layout.query_lens.tolist() == [9, 4, 1]
    # Sequence 0 has ten keys and nine query tokens: the first one stands at key 1 and sees two.
    assert layout.visible_to[:9].tolist() == list(range(2, 11))
    assert verdict(wanted, AttnPath.VARLEN) is Verdict.PASS


@pytest.mark.parametrize(
    "values", [{"cu_seqlens_q": (0, 1, 2, 9)}, {"cu_seqlens_q": (0, 2, 1, 3)}, {"cu_seqlens_k": (0, 31, 64, 999)}]
)
def test_arrays_that_describe_no_batch_have_no_answer(values: dict[str, object]) -> None:
    wanted = overridden(docs_decode(), "as-given", **values)
    with pytest.raises(NoReference):
        _ = context(wanted, Plain(), AttnPath.VARLEN).reference


def test_lengths_beyond_the_given_table_have_no_answer() -> None:
    wanted = overridden(docs_decode(), "as-given", cache_seqlens=(600, 32, 70))
    with pytest.raises(NoReference, match="more blocks than the table has columns"):
        _ = context(wanted, Plain(), AttnPath.DECODE).reference
