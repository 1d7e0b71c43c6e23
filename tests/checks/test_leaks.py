"""Leaks: nothing that must not be read may show, and what the adapter declares is held against what happens."""

from __future__ import annotations

import pytest

from pagedbench.backends.base import Output, Traits
from pagedbench.checks.base import CheckResult
from pagedbench.checks.leaks import Leaks
from pagedbench.faults.catalogue import find_fault
from pagedbench.faults.kernel import FaultyBackend
from pagedbench.scenario.model import Scenario
from pagedbench.tensors.call import Call
from pagedbench.words import AttnPath, Verdict
from tests.checks.kernels import Plain, context
from tests.tensors.cells import docs_decode, scenario

WINDOWED = scenario(attention={"window_size": (16, 0)})


def backend(fault: str | None = None, **traits: object) -> FaultyBackend:
    made = FaultyBackend(find_fault(fault) if fault else None)
    made.traits = Traits(out=True, **traits)  # type: ignore[arg-type]
    return made


def judged(wanted: Scenario, kernel: FaultyBackend) -> CheckResult:
    return Leaks().run(context(wanted, kernel))


@pytest.mark.parametrize("wanted", [docs_decode(), WINDOWED, scenario((1,), (31,))], ids=["decode", "window", "full"])
def test_a_right_kernel_shows_nothing_in_four_calls(wanted: Scenario) -> None:
    kernel = backend()
    assert judged(wanted, kernel).verdict is Verdict.PASS
    assert kernel.calls == 4


def test_another_right_kernel_passes_too() -> None:
    assert Leaks().run(context(docs_decode(), Plain())).verdict is Verdict.PASS


def test_nan_in_the_tail_is_found_in_v_alone() -> None:
    result = judged(docs_decode(), backend("tail-leaks"))
    assert result.verdict is Verdict.LEAK
    assert {finding.message.split(": ")[1].split(" shows")[0] for finding in result.findings} == {
        "NaN in V of the rest of a partly used block",
        "Inf in V of the rest of a partly used block",
    }


@pytest.mark.parametrize(
    ("fault", "wanted", "place"),
    [
        ("one-key-too-many", docs_decode(), "K of the rest of a partly used block"),
        ("window-ignored", WINDOWED, "K of keys that no row sees"),
        ("append-skipped", docs_decode(), "K of a new token's slot before the append"),
        ("v-append-skipped", docs_decode(), "V of a new token's slot before the append"),
    ],
)
def test_huge_numbers_betray_what_is_read(fault: str, wanted: Scenario, place: str) -> None:
    result = judged(wanted, backend(fault))
    assert result.verdict is Verdict.LEAK
    assert f"a huge number in {place} shows in the output" in result.message


@pytest.mark.parametrize("name", ["hidden", "hidden.v"])
def test_a_declared_leak_is_reported_and_passes(name: str) -> None:
    result = judged(WINDOWED, backend("below-window-leaks", nan_regions={name: "may-leak"}))
    assert result.verdict is Verdict.PASS
    assert "NaN in V of keys that no row sees leaks, as the backend declares" in result.warnings


def test_a_leak_beside_the_declared_one_is_a_failure() -> None:
    result = judged(WINDOWED, backend("below-window-leaks", nan_regions={"tail": "may-leak", "hidden.k": "may-leak"}))
    assert result.verdict is Verdict.LEAK


def test_a_declared_leak_that_does_not_happen_is_reported() -> None:
    result = judged(WINDOWED, backend(nan_regions={"hidden.v": "may-leak"}))
    assert result.verdict is Verdict.PASS
    assert result.warnings == (
        "NaN in V of keys that no row sees does not leak here, though the backend declares that it may",
    )


def test_a_kernel_that_does_not_repeat_itself_is_called_unstable_and_not_a_leak() -> None:
    kernel = backend("noise")
    kernel.calls = 2  # the noisy call is one in which everything is filled
    assert judged(docs_decode(), kernel).verdict is Verdict.UNSTABLE


class OddCalls(FaultyBackend):
    """Leaks nothing, but its calls of these numbers are off by a bit or two."""

    def __init__(self, odd: set[int]) -> None:
        super().__init__()
        self.odd = odd

    def _run(self, call: Call) -> Output:
        right = super()._run(call)
        return Output(right.out * 1.02, right.lse) if self.calls in self.odd else right


def test_where_the_clean_call_was_the_noisy_one_nothing_is_accused_and_it_is_said_how_often_it_differs() -> None:
    """One call in ten, the first: each comparison with it differs, whatever was filled."""
    result = judged(docs_decode(), OddCalls({1}))
    assert result.verdict is Verdict.UNSTABLE
    assert "does not repeat its bits" in result.message
    assert "10 of 10 repeats differ" in result.message
    assert len(result.findings) == 1


def test_a_leak_of_a_kernel_that_repeats_itself_stays_one() -> None:
    assert judged(docs_decode(), backend("tail-leaks")).verdict is Verdict.LEAK


def test_without_bitwise_repeats_the_row_budget_decides() -> None:
    assert judged(docs_decode(), backend(repeatable=False)).verdict is Verdict.PASS
    assert judged(docs_decode(), backend("one-key-too-many", repeatable=False)).verdict is Verdict.LEAK


def test_where_every_slot_is_read_it_does_not_apply() -> None:
    full = scenario((1,), (32,), append=False, cache={"block_size": 32, "num_blocks": 1})
    assert Leaks().not_applicable(context(full, backend())) == "every slot of the pool is read"


def test_ragged_queries_through_the_table_are_judged_too() -> None:
    ragged = scenario((5, 3), (0, 20))
    assert Leaks().run(context(ragged, backend(), AttnPath.PAGED_VARLEN)).verdict is Verdict.PASS
