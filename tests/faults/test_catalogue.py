from __future__ import annotations

import re
from pathlib import Path

import pytest

from pagedbench.errors import UsageError
from pagedbench.faults.catalogue import FAULTS, find_fault

# The faults that a catalogue of this kind must have, by what they are called here.
DEMANDED = """
last-key-missed one-key-too-many first-key-missed key-twice block-skipped block-doubled block-wrong
block-of-another-sequence block-id-16-bits block-id-offset block-tail-dropped tile-past-the-table middle-dropped
split-lost split-twice combine-to-row-0 causal-top-left causal-one-late window-one-wide window-one-narrow
window-one-right window-ignored window-wrong-in-first-tile softcap-ignored softcap-before-scale softcap-overflow
scale-1-percent scale-sqrt-2 scale-missing scale-twice sink-ignored sink-doubled sink-scaled sink-per-split
kv-head-modulo kv-head-off-by-one append-skipped append-one-slot-late append-into-block-0 append-k-v-swapped
append-into-another-sequence append-past-the-pool stale-new-token longest-length empty-rows-divide-by-zero lse-base-2
lse-finite-for-empty-rows lse-of-one-split tail-leaks rows-unwritten noise int32-overflow k-with-strides-of-v all-zeros
mean-of-v softcap-after-mask v-from-the-k-pool v-channel-wrong k-scale-ignored v-scale-ignored v-scale-of-k
sink-of-kv-head append-reversed append-runs-on table-row-without-empty-queries causal-by-longest-query
later-tiles-unwritten stops-at-empty-keys stops-at-empty-query table-row-stride cu-seqlens-q-misread
total-seqlens-misread cache-seqlens-misread block-id-15-bits slot-16-bits block-id-minus-one window-to-block-start
mask-finite mask-minus-10000 empty-rows-mean-of-v v-scale-inverse v-scale-on-k sink-base-2 lse-of-last-split
lse-infinite-for-empty-rows lse-nan-for-empty-rows combine-equal-weights combine-by-head-0 append-at-one-offset
append-into-one-block empty-rows-skipped lse-unwritten-for-empty-rows
""".split()  # noqa: SIM905  # noqa: SIM905


@pytest.mark.parametrize("name", DEMANDED)
def test_every_demanded_fault_is_there(name: str) -> None:
    assert find_fault(name).name == name


def test_there_are_more_than_forty_and_no_name_is_used_twice() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(names) == len(set(names)) >= 40


def test_sentences_complete_a_diagnosis() -> None:
    for fault in FAULTS:
        assert not fault.sentence.endswith(".")
        assert fault.sentence.split()[0] != "if"


def test_reports_are_named_as_repository_and_number() -> None:
    for fault in FAULTS:
        assert fault.report is None or re.fullmatch(r"[\w.-]+/[\w.-]+ #\d+", fault.report), fault.name


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError) as refused:
        find_fault("last-key-mised")
    assert "last-key-missed" in str(refused.value.hint)


def test_the_selftests_scenarios_are_shipped_beside_the_code() -> None:
    import pagedbench.faults

    assert (Path(pagedbench.faults.__file__).parent / "selftest.yaml").is_file()


def test_the_readme_says_how_many_there_are() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    assert f"every fault of a catalogue of {len(FAULTS)} into a kernel" in " ".join(readme.split())
