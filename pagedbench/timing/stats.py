"""Statistics of timings: how sure a median is, whether two sides differ, whether a new version is slower beyond doubt.

Timings are skewed, have outliers on one side, drift with the clocks of the chip and depend on their neighbours in time.
So: medians with order-statistic intervals, pairs that were measured side by side, and processes as the unit when
two versions that cannot be interleaved are compared. Nothing here knows what was timed or reads a clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Verdict = Literal["faster", "slower", "no difference shown", "too few samples"]
Change = Literal["faster", "slower", "unchanged", "ambiguous"]
PARTS = 8
"""Parts of a series for each independent sample that it is worth: with fewer the interval covers less often."""
MIN_PROCESSES = 3
MUST_SHOW = 0.05
"""A change that a comparison of processes must be able to show before it may call something unchanged."""
FASTEST = 0.05
"""The quantile of a process's samples that stands for its undisturbed calls."""


@dataclass(frozen=True)
class Interval:
    """An interval of a statistic. `confidence` is what it reaches, which with very few samples is less than asked."""

    value: float
    low: float
    high: float
    confidence: float

    @property
    def half_width(self) -> float:
        """The larger distance to an end, as a fraction of the value; 0 for a value of 0 with no spread."""
        spread = max(self.high - self.value, self.value - self.low)
        if spread == 0:
            return 0.0
        return spread / abs(self.value) if self.value else math.inf


def median_interval(samples: ArrayLike, confidence: float = 0.95) -> Interval:
    """The median of `samples` with an order-statistic interval that assumes no distribution.

    The number of samples under the true median is binomial(n, 1/2), so the ranks that cover it are known exactly (David
    and Nagaraja, Order Statistics, 7.1). Samples that resemble their neighbours count for less: n is first
    divided by the correlation time of the signs around the median, taken in the order of measurement. Where that
    leaves few, medians of neighbours stand for them: single outliers would be the ends of an interval that must reach
    nearly to the ends of the range.
    """
    values = np.asarray(samples, dtype=np.float64)
    if values.size == 0:
        raise ValueError("a median needs at least one sample")
    effective = max(1, int(values.size / correlation_time(values)))
    ordered = np.sort(_medians_of_neighbours(values, effective * PARTS))
    n = ordered.size
    margin, reached = _rank_margin(effective, confidence)
    margin *= n / effective
    low = max(0, math.floor(n / 2 - margin))
    high = min(n - 1, math.ceil(n / 2 + margin) - 1)
    value = float(np.median(values))
    return Interval(value, min(value, float(ordered[low])), max(value, float(ordered[high])), reached)


def _medians_of_neighbours(values: Floats, parts: int) -> Floats:
    """The median of each of so many parts of a series; the series itself where it is no longer."""
    if parts >= values.size:
        return values
    return np.array([np.median(part) for part in np.array_split(values, parts)])


def _rank_margin(n: int, confidence: float) -> tuple[float, float]:
    """How many ranks either side of n/2 cover the median, and with what confidence they do."""
    if n > 1000:  # the normal approximation is within a rank here, and the exact sum is slow
        z = math.sqrt(2) * _erfinv(confidence)
        return z * math.sqrt(n) / 2 + 0.5, confidence
    total = 2.0**-n
    tail, below = 0.0, 0
    for k in range(n // 2):
        weight = math.comb(n, k) * total
        if tail + weight > (1 - confidence) / 2:
            break
        tail += weight
        below = k + 1
    # `below` ranks may be cut off at each end; with too few samples none may, and the range of all covers less.
    lost = 2 * tail if below else 2 * total
    return n / 2 - max(below - 1, 0), 1 - lost


def _erfinv(p: float) -> float:
    low, high = 0.0, 6.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if math.erf(middle) < p else (low, middle)
    return (low + high) / 2


def least_samples(confidence: float) -> int:
    """How many independent samples an interval of their median needs: 11 at 99.9 %.

    All n lie on one side of the true median with probability 2^(1 - n), whatever their distribution: below this number
    not even the range of all of them covers it as often as asked, and a bootstrap cannot know more than the samples.
    """
    return 1 + math.ceil(-math.log2(1 - confidence))


def correlation_time(samples: ArrayLike) -> float:
    """How many neighbouring samples say as much as one independent sample; at least 1.

    The sum of the autocorrelations of sign(x - median), which no outlier can dominate, over pairs of lags until a pair
    is not positive any more (Geyer 1992, the initial positive sequence). Under 20 samples nothing can be
    said and 1 is returned.
    """
    values = np.asarray(samples, dtype=np.float64)
    n = values.size
    signs = np.sign(values - np.median(values))
    power = float(signs @ signs)
    if n < 20 or power == 0:
        return 1.0
    spectrum = np.fft.rfft(signs, 2 * n)
    correlations = np.fft.irfft(spectrum * np.conj(spectrum))[: n // 2] / power
    time = 1.0
    for lag in range(1, len(correlations) - 1, 2):
        pair = correlations[lag] + correlations[lag + 1]
        if pair <= 2 / math.sqrt(n):  # what two lags of pure noise reach by chance
            break
        time += 2 * pair
    return float(min(time, n / 6))


def mad(samples: ArrayLike) -> float:
    """The median absolute deviation from the median, unscaled."""
    values = np.asarray(samples, dtype=np.float64)
    return float(np.median(np.abs(values - np.median(values))))


def outlier_share(samples: ArrayLike) -> float:
    """The share of samples with a modified z-score over 14.8, that is over 10 robust standard deviations (hyperfine's
    rule is the same; the score is from Iglewicz and Hoaglin 1993)."""
    values = np.asarray(samples, dtype=np.float64)
    spread = 1.4826 * mad(values)
    floor = 1e-3 * abs(float(np.median(values)))  # quantised timers have a spread of 0
    return float(np.mean(np.abs(values - np.median(values)) > 10 * max(spread, floor)))


@dataclass(frozen=True)
class Comparison:
    """Side A against side B: `ratio` is A's time over B's, with its interval; `verdict` is about A."""

    ratio: float
    low: float
    high: float
    confidence: float
    margin: float
    pairs: int
    verdict: Verdict


def compare_pairs(
    a: ArrayLike, b: ArrayLike, *, confidence: float = 0.999, margin: float = 0.01, resamples: int = 4000, seed: int = 0
) -> Comparison:
    """Compare times that were measured in pairs, side by side, in the order of measurement.

    The ratio is the median of the pairs' ratios, so that drift which both sides share cancels. Its interval is a
    percentile bootstrap over blocks of neighbouring pairs, as long as the correlation time asks, widened to the
    order-statistic interval where that is wider: with few independent blocks a bootstrap underrates its tails. `faster`
    needs the whole interval under 1 - margin, `slower` over 1 + margin. Fewer pairs than an interval of that confidence
    needs are `too few samples`, which says nothing about the sides: 6 pairs that are all 3 times as fast are no tie.
    """
    ratios = np.log(np.asarray(a, dtype=np.float64)) - np.log(np.asarray(b, dtype=np.float64))
    if ratios.size == 0:
        raise ValueError("a comparison needs at least one pair")
    draws = _block_bootstrap_medians(ratios, resamples, np.random.default_rng(seed))
    tail = (1 - confidence) / 2
    ranks = median_interval(ratios, confidence)
    low = math.exp(min(float(np.quantile(draws, tail)), ranks.low))
    high = math.exp(max(float(np.quantile(draws, 1 - tail)), ranks.high))
    decided: Verdict = "too few samples" if ratios.size < least_samples(confidence) else _verdict(low, high, margin)
    return Comparison(float(math.exp(np.median(ratios))), low, high, confidence, margin, int(ratios.size), decided)


def _verdict(low: float, high: float, margin: float) -> Verdict:
    if high < 1 - margin:
        return "faster"
    if low > 1 + margin:
        return "slower"
    return "no difference shown"


def _block_bootstrap_medians(values: Floats, resamples: int, rng: np.random.Generator) -> Floats:
    """Medians of `resamples` series made of circular blocks of `values` (Politis and Romano 1992)."""
    n = values.size
    length = min(n, max(1, math.ceil(2 * correlation_time(values))))
    blocks = math.ceil(n / length)
    medians = np.empty(resamples)
    step = max(1, 2_000_000 // n)  # keeps the index array small
    for start in range(0, resamples, step):
        count = min(step, resamples - start)
        heads = rng.integers(0, n, size=(count, blocks, 1))
        picks = ((heads + np.arange(length)) % n).reshape(count, -1)[:, :n]
        medians[start : start + count] = np.median(values[picks], axis=1)
    return medians


@dataclass(frozen=True)
class Regression:
    """A new version against an old one: `ratio` is new time over old, with its interval; `reason` is one sentence."""

    change: Change
    ratio: float
    low: float
    high: float
    reason: str


def judge_change(
    new: Sequence[ArrayLike], old: Sequence[ArrayLike], *, margin: float = 0.01, confidence: float = 0.99
) -> Regression:
    """Whether `new` is slower or faster than `old` beyond doubt, from the raw samples of several processes a side.

    Samples of one process share its memory placement, clocks and luck, so the process is the unit: a side is the
    medians of its processes. A change is called only if both agree: the Student interval of the difference of mean log
    medians (pooled variance) lies outside the margin, and no process of one side crosses one of the other. And the
    fastest calls (their first twentieth) must show half of it at least: a machine that became busy slows some calls and
    so moves the median, a slower kernel is slower each time.
    A difference over the margin that these do not confirm is `ambiguous`: more processes are needed. So is one within
    it whose interval holds a change of `MUST_SHOW`.
    """
    if min(len(new), len(old)) < MIN_PROCESSES:
        reason = f"{len(new)} and {len(old)} processes were measured; a change is judged from {MIN_PROCESSES} a side on"
        return Regression("ambiguous", _ratio_of_medians(new, old), 0.0, math.inf, reason)
    median, fastest = (_shift(new, old, quantile, confidence) for quantile in (0.5, FASTEST))
    ratio, low, high = median.ratio, median.low, median.high
    said = f"new/old {ratio:.3f} [{low:.3f}, {high:.3f}] over {len(new)} and {len(old)} processes"
    changed = median.beyond(margin)
    if changed is not None and fastest.shows(median):
        return Regression(changed, ratio, low, high, f"{said}: {changed} beyond the margin of {margin:.0%}")
    if changed is not None:
        return Regression("ambiguous", ratio, low, high, f"{said}: not shown by the fastest calls; a busy machine?")
    if abs(ratio - 1) > margin:
        return Regression("ambiguous", ratio, low, high, f"{said}: over the margin, but not beyond doubt")
    if low < 1 - MUST_SHOW or high > 1 + MUST_SHOW:
        return Regression("ambiguous", ratio, low, high, f"{said}: a change of {MUST_SHOW:.0%} would not show")
    return Regression("unchanged", ratio, low, high, f"{said}: within the margin of {margin:.0%}")


@dataclass(frozen=True)
class _Shift:
    """How far a quantile of the new side lies from the old one's, as a ratio with its interval.

    `apart` is whether no process of one side crosses one of the other.
    """

    ratio: float
    low: float
    high: float
    apart: bool

    def beyond(self, margin: float) -> Literal["slower", "faster"] | None:
        """The change, where the whole interval is outside the margin and the processes are apart."""
        if self.apart and self.low > 1 + margin:
            return "slower"
        return "faster" if self.apart and self.high < 1 - margin else None

    def shows(self, other: _Shift) -> bool:
        """Whether this, too, is a change beyond doubt, and one at least half as large (on the scale of logarithms)."""
        return self.beyond(0.0) == other.beyond(0.0) and abs(math.log(self.ratio)) > abs(math.log(other.ratio)) / 2


def _shift(new: Sequence[ArrayLike], old: Sequence[ArrayLike], quantile: float, confidence: float) -> _Shift:
    x, y = (np.log([float(np.quantile(np.asarray(p, np.float64), quantile)) for p in side]) for side in (new, old))
    difference = float(x.mean() - y.mean())
    width = _pooled_half_width(x, y, confidence)
    ratio, low, high = (math.exp(d) for d in (difference, difference - width, difference + width))
    return _Shift(ratio, low, high, apart=bool(x.min() > y.max() or x.max() < y.min()))


def _ratio_of_medians(new: Sequence[ArrayLike], old: Sequence[ArrayLike]) -> float:
    if not new or not old:
        return math.nan
    pooled = [np.median(np.concatenate([np.asarray(p, dtype=np.float64) for p in side])) for side in (new, old)]
    return float(pooled[0] / pooled[1])


def _pooled_half_width(x: Floats, y: Floats, confidence: float) -> float:
    freedom = len(x) + len(y) - 2
    squares = ((x - x.mean()) ** 2).sum() + ((y - y.mean()) ** 2).sum()
    error = math.sqrt(squares / freedom * (1 / len(x) + 1 / len(y)))
    return student_quantile(1 - (1 - confidence) / 2, freedom) * error


def student_quantile(p: float, freedom: int) -> float:
    """The p-quantile (p >= 1/2) of Student's t with a whole number of degrees of freedom, by bisection.

    The distribution function is the finite trigonometric sum for whole degrees (Abramowitz and Stegun 26.7.3, 26.7.4).
    """
    low, high = 0.0, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_cdf(middle, freedom) < p else (low, middle)
    return (low + high) / 2


def _student_cdf(t: float, freedom: int) -> float:
    theta = math.atan(t / math.sqrt(freedom))
    cosine = math.cos(theta)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(3 if odd else 2, freedom - 1, 2):
        term *= cosine**2 * (k - 1) / k
        total += term
    inner = (theta + math.sin(theta) * total) * 2 / math.pi if odd else math.sin(theta) * total
    return 0.5 + inner / 2
