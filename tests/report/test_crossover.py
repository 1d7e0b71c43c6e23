"""What a grid of comparisons says, on grids small enough to judge by eye."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pagedbench.report.crossover import axes_of, cliffs, conclusion, marks_told, outcome, splits_cost, values_on
from pagedbench.results.comparison import ComparisonRecord
from tests.report.comparisons import comparison, measured, side


def beside_a_third(record: ComparisonRecord, us: float | None) -> ComparisonRecord:
    """The comparison with paged-varlen as a third side, paired with both others where it has a time."""
    record.sides.append(side("flash-attn-3", "paged-varlen", us))
    for index, other in enumerate(record.sides[:2]) if us else ():
        pair = comparison(other.kernel_us, us).pairs[0]
        record.pairs.append(replace(pair, a=index, b=2))
    return record


class TestOutcome:
    def test_names_the_winner_and_how_many_times_as_fast_it_is(self):
        found = outcome(comparison(300, 100))
        assert (found.kind, found.side, found.factor) == ("wins", 1, pytest.approx(3))
        found = outcome(comparison(100, 300))
        assert (found.kind, found.side, found.factor) == ("wins", 0, pytest.approx(3))
        assert found.low < 3 < found.high

    def test_a_tie_has_no_winner(self):
        assert outcome(comparison(100, 100.5)).kind == "tie"

    def test_too_few_samples_are_no_tie(self):
        assert outcome(comparison(300, 100, pairs=6)).kind == "few"
        assert outcome(comparison(100, 100, pairs=6)).kind == "few"
        earlier = comparison(300, 100, pairs=6)
        earlier.pairs = [replace(earlier.pairs[0], verdict="no difference shown")]
        assert outcome(earlier).kind == "few"

    def test_the_only_side_with_a_time_does_not_win(self):
        assert outcome(comparison(None, 100)).kind == "alone"
        assert outcome(comparison(None, None)).kind == "none"


def test_axes_are_the_facts_that_vary_keys_last_and_numbers_in_order():
    grid = [comparison(1, 2, keys=k, block_size=b, batch=4) for k in (8192, 128) for b in (256, 16)]
    assert axes_of(grid) == ["block_size", "keys"]
    assert values_on(grid, "keys") == [128, 8192]
    assert values_on([comparison(1, 2, num_splits=s) for s in ("auto", 4, 2)], "num_splits") == [2, 4, "auto"]


class TestConclusion:
    def test_of_one_scenario_says_who_by_how_much_and_what_the_loser_spends_its_time_on(self):
        record = comparison(1630, 545, name="64x8192", stages={"write": 5, "gather": 1085, "attention": 540})
        assert conclusion([record]) == "decode is 3.0× ± 0.1 as fast on 64x8192, 67% of varlen's time is the gather."

    def test_of_a_row_says_from_where_on(self):
        times = {32: (9, 10), 96: (11, 10), 1024: (20, 10), 8192: (30, 10)}
        grid = [comparison(v, d, batch=4, keys=k) for k, (v, d) in times.items()]
        assert conclusion(grid).startswith("decode wins from 96 keys on, varlen below; decode by 3.0×")

    def test_of_a_grid_names_the_corner_that_one_side_has_to_itself(self):
        grid = [
            comparison(9 if batch == 1 or keys == 32 else 20, 10, batch=batch, keys=keys)
            for batch in (1, 2, 16)
            for keys in (32, 96, 1024)
        ]
        assert conclusion(grid).startswith("decode wins from 96 keys on at batch ≥ 2, varlen 5 of the other cells;")

    def test_where_one_side_wins_everything(self):
        grid = [comparison(30, 10, batch=1, keys=k) for k in (128, 1024)]
        assert conclusion(grid).startswith("decode wins all 2 cells; decode by 3.0× ± 0.1 at 1 × 128 keys")

    def test_where_nobody_wins(self):
        assert conclusion([comparison(10, 10)]) == "No difference shown on batch between varlen and decode."
        assert conclusion([comparison(10, None)]).startswith("Nothing could be compared")

    def test_a_side_that_two_others_beat_is_not_called_equal_to_them(self):
        three = beside_a_third(comparison(30, 10), 10)
        assert conclusion([three]) == (
            "No difference shown on batch between decode and paged-varlen; decode is faster than varlen."
        )
        assert conclusion([three, three]) == "No difference shown between the fastest sides in any of 2 cells."
        assert marks_told([three]) == ["= no difference shown between the fastest"]

    def test_a_side_without_a_time_is_not_called_equal(self):
        third = beside_a_third(comparison(10, 10), None)
        assert conclusion([third]) == "No difference shown on batch between varlen and decode."

    def test_of_too_few_samples_says_that_nothing_is_known(self):
        few = comparison(30, 10, name="big", pairs=6)
        assert conclusion([few]) == "Too few samples to tell on big; allow more time (--max-seconds)."
        tied = [comparison(10, 10, batch=1, keys=k, pairs=n) for k, n in [(128, 100), (1024, 6)]]
        assert conclusion(tied).endswith("; 1 with too few samples to tell.")


class TestCliffs:
    def test_a_step_of_two_query_tokens_that_walks_the_keys_serially_is_flagged(self):
        """Fault H14: 22.8 times slower from one query token to two, though the bytes are the same."""
        grid = [comparison(50, us, query_len=q, name=f"q{q}") for q, us in {1: 10, 2: 228, 4: 231, 8: 240}.items()]
        (cliff,) = cliffs(grid)
        assert (cliff.record.facts["query_len"], cliff.neighbour.facts["query_len"]) == (2, 1)
        assert cliff.factor == pytest.approx(22.8)
        assert "flash-attn-3:decode at query len 2 takes 22.8× as long" in cliff.sentence()

    def test_it_is_flagged_where_the_new_tokens_are_keys_too(self):
        steps = {1: 10, 2: 228, 4: 231}
        grid = [comparison(50, us, query_len=q, keys=2000 + q, name=f"q{q}") for q, us in steps.items()]
        assert [cliff.record.facts["query_len"] for cliff in cliffs(grid)] == [2]

    def test_more_time_for_more_work_is_no_cliff(self):
        grid = [comparison(k / 10, k / 20, keys=k, work=k * 1000) for k in (128, 1024, 8192)]
        assert cliffs(grid) == []

    def test_a_cell_slower_than_one_with_more_work_is_flagged(self):
        grid = [comparison(10, us, keys=k, work=k * 1000) for k, us in {128: 500, 1024: 20}.items()]
        assert [cliff.record.facts["keys"] for cliff in cliffs(grid)] == [128]

    def test_times_that_nobody_knows_well_are_no_cliff(self):
        """500 us, give or take 90 %, may be 50: no cliff beside 20."""
        grid = [comparison(10, us, keys=k) for k, us in {128: 500, 1024: 20}.items()]
        grid[0].sides[1].timing = measured(500, spread=0.9).to_dict()
        grid[0].sides[1].timing["quantities"]["kernel"]["low"] = 50e3
        assert cliffs(grid) == []

    def test_neighbours_differ_on_one_axis_only(self):
        grid = [comparison(10, 10, keys=128, batch=1), comparison(10, 400, keys=1024, batch=2)]
        assert cliffs(grid) == []


class TestSplits:
    @staticmethod
    def grid(auto: float, **explicit: float) -> list[ComparisonRecord]:
        chosen = {"auto": auto, **{name.strip("s"): us for name, us in explicit.items()}}
        return [
            ComparisonRecord(
                "long", "cuda", {"num_splits": int(s) if s.isdigit() else s}, [side("flash-attn-3", "varlen", us)]
            )
            for s, us in chosen.items()
        ]

    def test_what_the_librarys_own_choice_costs(self):
        (sentence,) = splits_cost(self.grid(1472, s1=1480, s4=300, s16=151))
        assert sentence.startswith("flash-attn-3:varlen: the library's own number of splits takes 9.75× [")
        assert sentence.endswith("the time of 16")

    def test_a_choice_as_good_as_the_best_is_praised(self):
        (sentence,) = splits_cost(self.grid(151, s1=1480, s16=151.2))
        assert sentence.endswith("is as good as the best (16)")

    def test_nothing_is_said_without_a_sweep(self):
        assert splits_cost(self.grid(151)) == []

    def test_what_drifts_between_points_is_no_cost(self) -> None:
        (sentence,) = splits_cost(self.grid(104, s1=100))
        assert "as good as the best (1)" in sentence
        (sentence,) = splits_cost(self.grid(115, s1=100))
        assert "takes 1.15×" in sentence

    def test_a_backend_that_ignores_splits_has_no_choice_to_judge(self) -> None:
        """What differs between the points of its grid is drift."""
        grid = self.grid(115, s1=100)
        for record in grid:
            record.sides[0].ignores_splits = True
        assert splits_cost(grid) == ["flash-attn-3:varlen ignores the number of splits"]


def test_measured_records_are_what_they_claim():
    assert measured(250).kernel.median == 250e3
