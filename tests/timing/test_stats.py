"""Medians, their intervals, and verdicts, on distributions whose answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pagedbench.timing.interleave import DEPENDENCE
from pagedbench.timing.stats import (
    compare_pairs,
    correlation_time,
    judge_change,
    least_samples,
    mad,
    median_interval,
    outlier_share,
    student_quantile,
)


def autocorrelated(rng: np.random.Generator, n: int, rho: float) -> np.ndarray:
    """An AR(1) series with median 0."""
    noise, series = rng.normal(size=n + 100), np.zeros(n + 100)
    for i in range(1, n + 100):
        series[i] = rho * series[i - 1] + noise[i]
    return series[100:]


def autocorrelated_rows(rng: np.random.Generator, rows: int, n: int, rho: float) -> np.ndarray:
    """AR(1) series with median 0, one a row, in their stationary state from the start."""
    noise = rng.normal(size=(rows, n))
    series = noise / math.sqrt(1 - rho**2)
    for i in range(1, n):
        series[:, i] = rho * series[:, i - 1] + noise[:, i]
    return series


class TestMedianInterval:
    # Ranks and confidence from the published table of order-statistic intervals: n = 10 is covered by the 2nd and 9th
    # value with 97.9 %, n = 6 by the extremes with 96.9 %, n = 17 by the 5th and 13th with 95.1 %.
    @pytest.mark.parametrize(
        ("n", "low", "high", "confidence"), [(10, 2, 9, 0.9785), (6, 1, 6, 0.9688), (17, 5, 13, 0.9510)]
    )
    def test_has_the_tabulated_ranks(self, n, low, high, confidence):
        interval = median_interval(np.random.default_rng(0).permutation(n) + 1)
        assert (interval.low, interval.high) == (low, high)
        assert interval.confidence == pytest.approx(confidence, abs=1e-4)

    def test_states_the_lower_confidence_of_few_samples(self):
        assert median_interval([3.0]).confidence == 0
        assert median_interval([1, 2, 3, 4, 5]).confidence == pytest.approx(1 - 2 / 32)

    def test_covers_the_median_of_a_skewed_distribution_as_often_as_it_says(self):
        rng = np.random.default_rng(1)
        intervals = [median_interval(rng.lognormal(0, 0.5, 40)) for _ in range(1000)]
        assert 0.94 <= np.mean([i.low <= 1 <= i.high for i in intervals]) <= 0.985

    def test_widens_when_samples_depend_on_their_neighbours(self):
        rng = np.random.default_rng(2)
        covered = [i.low <= 0 <= i.high for i in (median_interval(autocorrelated(rng, 200, 0.8)) for _ in range(300))]
        assert np.mean(covered) >= 0.88  # ranks taken as if independent cover about 0.6

    def test_outliers_are_not_its_ends_where_samples_drift_slowly(self):
        """A twentieth are far outliers, each on the side where the sample is, so that 0 stays the median."""
        rng, widths, covered = np.random.default_rng(4), [], []
        for _ in range(200):
            drifting = autocorrelated(rng, 1000, 0.98)
            far = np.where(rng.random(1000) < 0.05, 1000 * np.sign(drifting), 0)
            interval = median_interval(drifting + far)
            covered.append(interval.low <= 0 <= interval.high)
            widths.append(interval.high - interval.low)
        assert max(widths) < 50  # ten standard deviations; between outliers it would be 2,000
        assert np.mean(covered) >= 0.85

    def test_ignores_far_outliers(self):
        samples = [10.0] * 90 + [1e9] * 10
        interval = median_interval(np.random.default_rng(0).permutation(samples))
        assert (interval.value, interval.low, interval.high) == (10, 10, 10)
        assert interval.half_width == 0

    def test_refuses_no_samples(self):
        with pytest.raises(ValueError, match="at least one"):
            median_interval([])


def test_correlation_time_of_independent_samples_is_near_one_and_of_dependent_ones_is_not():
    rng = np.random.default_rng(3)
    assert np.median([correlation_time(rng.normal(size=200)) for _ in range(50)]) < 1.5
    assert np.median([correlation_time(autocorrelated(rng, 400, 0.9)) for _ in range(20)]) > 6


def test_mad_is_the_median_distance_from_the_median():
    assert mad([1, 1, 2, 2, 4, 6, 9]) == 1  # the textbook example


def test_outliers_are_counted_by_robust_score():
    samples = np.random.default_rng(4).normal(100, 1, 95).tolist() + [200.0] * 5
    assert outlier_share(samples) == pytest.approx(0.05)
    assert outlier_share([100.0] * 50) == 0


class TestComparePairs:
    def test_finds_a_difference_of_five_percent_and_its_size(self):
        rng = np.random.default_rng(5)
        found = compare_pairs(rng.normal(105, 1, 100), rng.normal(100, 1, 100))
        assert found.verdict == "slower"
        assert found.low < 1.05 < found.high
        assert found.ratio == pytest.approx(1.05, abs=0.01)

    def test_is_about_the_first_side(self):
        rng = np.random.default_rng(6)
        assert compare_pairs(rng.normal(33, 1, 60), rng.normal(100, 1, 60)).verdict == "faster"

    def test_calls_nothing_within_the_margin_however_sure_it_is(self):
        found = compare_pairs(np.full(500, 100.5), np.full(500, 100.0))
        assert (found.low, found.high) == (pytest.approx(1.005), pytest.approx(1.005))
        assert found.verdict == "no difference shown"

    def test_a_drift_that_both_sides_share_cancels(self):
        rng = np.random.default_rng(7)
        drift = np.linspace(1, 2, 100)
        found = compare_pairs(drift * rng.normal(103, 0.5, 100), drift * rng.normal(100, 0.5, 100))
        assert found.verdict == "slower"
        assert found.ratio == pytest.approx(1.03, abs=0.005)

    @pytest.mark.parametrize("kind", ["independent", "drifting", "heavy-tailed", "autocorrelated"])
    def test_identical_sides_are_almost_never_called_different(self, kind):
        rng = np.random.default_rng(8)

        def side(n: int) -> np.ndarray:
            noise = {
                "independent": lambda: rng.normal(0, 0.02, n),
                "drifting": lambda: rng.normal(0, 0.02, n) + np.linspace(0, 0.3, n),
                "heavy-tailed": lambda: 0.02 * rng.standard_t(1.5, n),
                "autocorrelated": lambda: 0.02 * autocorrelated(rng, n, 0.8),
            }[kind]()
            return 100 * np.exp(noise)

        verdicts = [compare_pairs(side(80), side(80), seed=s, resamples=1000).verdict for s in range(60)]
        assert sum(v != "no difference shown" for v in verdicts) <= 1

    @pytest.mark.parametrize(("pairs", "verdict"), [(1, "too few samples"), (10, "too few samples"), (11, "slower")])
    def test_a_handful_of_pairs_is_too_few_and_no_tie(self, pairs, verdict):
        assert compare_pairs([300.0] * pairs, [100.0] * pairs).verdict == verdict


def missed(series: np.ndarray) -> float:
    """How often the range of a row does not cover 0, the median that all rows were drawn around."""
    return float(np.mean((series.min(axis=1) > 0) | (series.max(axis=1) < 0)))


class TestLeastSamples:
    """The least number of pairs for an interval of 99.9 %: 11, of which 2 in 2,048 lie on one side of their median."""

    def test_is_where_the_range_covers_as_often_as_asked(self):
        assert [least_samples(c) for c in (0.5, 0.75, 0.95, 0.99, 0.999)] == [2, 3, 6, 8, 11]

    @pytest.mark.parametrize("kind", ["normal", "skewed", "heavy-tailed", "two modes"])
    def test_is_the_same_for_every_distribution(self, kind):
        rng = np.random.default_rng(20)

        def draw(n: int) -> np.ndarray:
            shape = (100_000, n)
            if kind == "two modes":
                return rng.choice([-1.0, 1.0], shape) * rng.uniform(0.5, 1.5, shape)
            if kind == "skewed":
                return rng.exponential(size=shape) - math.log(2)
            return rng.normal(size=shape) if kind == "normal" else rng.standard_cauchy(shape)

        assert missed(draw(10)) > 0.0015  # 2/1,024 is over the 0.001 that are allowed
        assert missed(draw(11)) < 0.0013  # 2/2,048, within three standard errors

    def test_a_bootstrap_alone_would_need_more(self):
        """Its percentiles miss the median ten times too often at 11 pairs; the range of the pairs does not."""
        rng = np.random.default_rng(21)
        series = rng.exponential(size=(4000, 11)) - math.log(2)
        draws = np.median(rng.choice(series, (300, 11), axis=1), axis=-1)
        low, high = np.quantile(draws, [0.0005, 0.9995], axis=1)
        assert np.mean((low > 0) | (high < 0)) > 0.004
        assert missed(series) < 0.003

    def test_neighbours_that_resemble_each_other_cost_four_more(self):
        """15 pairs with a correlation of 0.3 are as good as 11 independent ones, which is why so many are taken."""
        rng = np.random.default_rng(22)
        series = autocorrelated_rows(rng, 100_000, 15, 0.3)
        assert missed(series) < 0.0013
        assert missed(series[:, :11]) > 0.004
        assert least_samples(0.999) + DEPENDENCE == 15

    @pytest.mark.parametrize("pairs", [11, 15])
    def test_identical_sides_of_the_least_number_are_not_called_different(self, pairs):
        rng = np.random.default_rng(23)
        sides = rng.lognormal(0, 0.05, (1000, 2, pairs))
        verdicts = [compare_pairs(a, b, resamples=200).verdict for a, b in sides]
        assert sum(verdict != "no difference shown" for verdict in verdicts) <= 4  # one is what 99.9 % allow


class TestJudgeChange:
    """New against old, several processes a side. Processes differ by `between`, samples within one by 2 %."""

    @staticmethod
    def processes(rng: np.random.Generator, median: float, between: float, count: int = 3) -> list[np.ndarray]:
        return [median * np.exp(rng.normal(0, between)) * rng.lognormal(0, 0.02, 30) for _ in range(count)]

    def changes(self, factor: float, between: float, times: int = 200) -> list[str]:
        rng = np.random.default_rng(9)
        return [
            judge_change(self.processes(rng, 100e3 * factor, between), self.processes(rng, 100e3, between)).change
            for _ in range(times)
        ]

    @pytest.mark.parametrize("between", [0.002, 0.005, 0.02])
    def test_identical_code_raises_no_alarm(self, between):
        assert self.changes(1.0, between).count("slower") <= 2  # of 200: twenty runs in a row stay silent

    def test_a_machine_that_became_busy_raises_no_alarm(self):
        """Most calls are held up, by twice their time; those that are not take as long as ever."""
        rng = np.random.default_rng(11)
        old = [100e3 * rng.lognormal(0, 0.02, 300) for _ in range(3)]
        new = [100e3 * rng.lognormal(0, 0.02, 300) * np.where(rng.random(300) < 0.7, 3.0, 1.0) for _ in range(3)]
        found = judge_change(new, old)
        assert found.low > 2
        assert found.change == "ambiguous"
        assert "not shown by the fastest calls" in found.reason

    def test_finds_a_slow_down_of_five_percent_of_a_quick_kernel(self):
        assert self.changes(1.05, 0.003).count("slower") >= 190

    def test_an_improvement_is_found_too(self):
        assert self.changes(0.9, 0.005).count("faster") >= 190

    def test_is_ambiguous_where_processes_differ_too_much_to_tell(self):
        found = self.changes(1.05, 0.03)
        assert found.count("slower") < 60
        assert found.count("ambiguous") > 100

    def test_calls_nothing_unchanged_that_could_hide_five_percent(self):
        """Equal medians, but processes 10 % apart: the data do not say."""
        found = judge_change([[95.0], [100.0], [105.3]], [[105.3], [95.0], [100.0]])
        assert found.ratio == pytest.approx(1.0)
        assert found.change == "ambiguous"
        assert found.reason.endswith("a change of 5% would not show")

    def test_more_processes_resolve_what_three_leave_ambiguous(self):
        rng = np.random.default_rng(10)
        new, old = self.processes(rng, 105, 0.012, 20), self.processes(rng, 100, 0.004, 20)
        assert judge_change(new[:3], old[:3]).change in ("ambiguous", "slower")
        close = judge_change(new, old, margin=0.0)
        assert close.low > 1
        assert close.high - close.low < 0.03

    def test_needs_three_processes_a_side(self):
        found = judge_change([[200.0] * 30] * 2, [[100.0] * 30] * 3)
        assert found.change == "ambiguous"
        assert "2 and 3 processes" in found.reason

    def test_says_what_it_found_in_a_sentence(self):
        found = judge_change([[110.0], [110.1], [109.9]], [[100.0], [100.1], [99.9]])
        assert found.change == "slower"
        assert found.reason.startswith("new/old 1.100 [1.09")


def test_student_quantiles_match_the_published_table():
    for p, freedom, expected in [(0.975, 1, 12.706), (0.995, 4, 4.604), (0.995, 5, 4.032), (0.975, 10, 2.228)]:
        assert student_quantile(p, freedom) == pytest.approx(expected, abs=1e-3)
    assert student_quantile(0.975, 1000) == pytest.approx(1.962, abs=1e-3)
    assert math.isclose(student_quantile(0.5, 3), 0, abs_tol=1e-6)
