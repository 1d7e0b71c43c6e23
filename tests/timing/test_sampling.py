"""When sampling stops, what it drops, and what it says."""

from __future__ import annotations

from collections.abc import Iterator

from pagedbench.timing.sampling import LARGEST_BATCH, Limits, collect
from pagedbench.timing.throttle import ChipState, NoGovernor


class Host:
    """A host time that passes by `cost` ns a draw."""

    def __init__(self) -> None:
        self.time = 0.0
        self.rests = 0

    def now(self) -> int:
        return int(self.time)

    def rest(self, ns: float) -> None:
        self.rests += 1
        self.time += ns


class Governor:
    """Tells the given states, then the last one for ever."""

    def __init__(self, *states: ChipState) -> None:
        self.states = list(states)

    def state(self) -> ChipState:
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]


def drawing(host: Host, cost: float = 1e3, values: Iterator[float] | None = None):
    sizes: list[int] = []

    def draw(n: int) -> list[float]:
        host.time += n * cost
        sizes.append(n)
        return [next(values) if values else 1.0 for _ in range(n)]

    return draw, sizes


HOT = ChipState(("thermal (hardware)",), 900)
FINE = ChipState((), 1980)


def test_stops_as_soon_as_it_is_enough_and_says_so():
    host = Host()
    draw, _ = drawing(host)
    found = collect(draw, lambda d: len(d) >= 40, Limits(10, 1000, 1e9), host=host, governor=NoGovernor())
    assert found.stop == "precise enough"
    assert 40 <= len(found.draws) < 40 + LARGEST_BATCH + 16


def test_never_stops_below_the_least_number():
    host = Host()
    draw, _ = drawing(host)
    assert len(collect(draw, lambda d: True, Limits(90, 1000, 1e9), host=host, governor=NoGovernor()).draws) >= 90


def test_stops_at_the_sample_limit():
    host = Host()
    draw, _ = drawing(host)
    found = collect(draw, lambda d: False, Limits(10, 100, 1e9), host=host, governor=NoGovernor())
    assert (found.stop, len(found.draws)) == ("sample limit", 100)


def test_stops_at_the_time_limit_and_does_not_overshoot_it_by_a_batch():
    host = Host()
    draw, sizes = drawing(host, cost=1e8)
    limits = Limits(10, 1000, 1e9, expected_ns=1e8)
    found = collect(draw, lambda d: False, limits, host=host, governor=NoGovernor())
    assert found.stop == "time limit"
    assert host.time <= 1.2e9
    assert sizes[0] == 1


def test_a_call_slower_than_the_limit_is_measured_once():
    host = Host()
    draw, sizes = drawing(host, cost=5e9)
    found = collect(draw, lambda d: False, Limits(10, 9, 1e9, expected_ns=5e9), host=host, governor=NoGovernor())
    assert (sizes, len(found.draws)) == ([1], 1)


def test_throttled_samples_are_dropped_and_counted_and_the_chip_is_given_a_rest():
    host = Host()
    draw, _ = drawing(host)
    governor = Governor(FINE, HOT, FINE)
    found = collect(draw, lambda d: len(d) >= 30, Limits(10, 100, 1e9), host=host, governor=governor)
    assert dict(found.dropped) == {"throttled (thermal (hardware))": 16}
    assert (host.rests, len(found.draws) >= 30) == (1, True)
    assert found.notes == []


def test_when_every_sample_is_throttled_they_are_shown_and_it_is_said():
    host = Host()
    draw, _ = drawing(host)
    found = collect(draw, lambda d: True, Limits(10, 1000, 1e6), host=host, governor=Governor(HOT))
    assert len(found.draws) >= 10
    assert found.notes == ["every sample was throttled (thermal (hardware)); shown for want of better ones"]
    assert not found.dropped  # what is shown was not dropped


class TestTooFewToSayAnything:
    """11 draws are needed; the time is over after 2 or 3 of them, which alone would say nothing."""

    def limits(self, cost: float, hard_ns: float) -> Limits:
        return Limits(60, 1000, 2.5 * cost, expected_ns=cost, needed=11, hard_ns=hard_ns)

    def test_goes_on_beyond_the_time_until_there_are_enough(self):
        host = Host()
        draw, _ = drawing(host, cost=1e7)
        found = collect(draw, lambda d: False, self.limits(1e7, 5e9), host=host, governor=NoGovernor())
        assert (found.stop, len(found.draws)) == ("time limit", 11)

    def test_does_not_try_what_the_hard_limit_cannot_hold(self):
        """11 draws of 1 s do not fit 5 s: the time limit holds, and not 5 s are spent on too few all the same."""
        host = Host()
        draw, _ = drawing(host, cost=1e9)
        found = collect(draw, lambda d: False, self.limits(1e9, 5e9), host=host, governor=NoGovernor())
        assert len(found.draws) <= 3
        assert host.time <= 3e9

    def test_ends_at_the_hard_limit_where_draws_take_longer_than_expected(self):
        host = Host()
        draw, _ = drawing(host, cost=1e9)
        limits = Limits(60, 1000, 1e8, expected_ns=1e7, needed=11, hard_ns=5e9)
        found = collect(draw, lambda d: False, limits, host=host, governor=NoGovernor())
        assert host.time <= 5e9 + 1e9
        assert len(found.draws) < 11

    def test_throttled_draws_serve_where_the_others_are_too_few(self):
        host = Host()
        draw, _ = drawing(host, cost=1e7)
        states = Governor(FINE, FINE, HOT)
        found = collect(draw, lambda d: False, self.limits(1e7, 5e9), host=host, governor=states)
        assert len(found.draws) == 11
        assert not found.dropped
        assert found.notes == ["10 of 11 samples were throttled (thermal (hardware)); shown for want of better ones"]

    def test_draws_with_launch_gaps_do_not_serve_beside_better_ones(self):
        """A gap falls into one of the calls that are compared, and so looks like a difference."""
        host = Host()
        draw, _ = drawing(host, cost=1e7, values=iter([-1.0, 1.0] * 5000))
        limits = self.limits(1e7, 5e9)
        found = collect(draw, lambda d: False, limits, host=host, governor=NoGovernor(), queued=lambda v: v > 0)
        assert set(found.draws) == {1.0}
        assert len(found.draws) >= 11


def test_samples_with_launch_gaps_are_dropped_and_counted():
    host = Host()
    draw, _ = drawing(host, values=iter([-1.0, 1.0] * 5000))
    found = collect(
        draw,
        lambda d: len(d) >= 50,
        Limits(10, 1000, 1e9),
        host=host,
        governor=NoGovernor(),
        queued=lambda value: value > 0,
    )
    assert set(found.draws) == {1.0}
    assert found.dropped["interrupted by launch gaps"] >= 50
