"""The reward-trend detector against numbers worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marless.core.errors import SpecError
from marless.jobs.sharing.trend import Detector, TrendState, steepest

SIX = tuple(f"agent_{i}" for i in range(6))


def detector(agents=("a",), window=3, threshold=0.1, **options):
    return Detector(agents=tuple(agents), window=window, threshold=threshold, **options)


def after(watch, *returns):
    seen = TrendState()
    for each in returns:
        seen = watch.see(seen, each if isinstance(each, dict) else dict.fromkeys(watch.agents, each))
    return seen


@pytest.mark.parametrize(
    ("window", "slope"),
    [(2, 1.0), (3, 0.5), (4, 0.4), (5, 0.3), (10, 12.5 / 82.5)],  # e.g. W=4: (0.5 + 1.5) / (2 · 0.25 + 2 · 2.25)
)
def test_the_steepest_slope_is_that_of_a_step_in_mid_window(window, slope):
    assert steepest(window) == pytest.approx(slope)
    step = [float(2 * i >= window) for i in range(window)]
    assert detector(window=window).slope(after(detector(window=window), *step)) == pytest.approx(slope)


def test_returns_are_scaled_by_the_range_of_all_rounds_and_the_slope_is_that_of_least_squares():
    watch = detector()
    seen = after(watch, -10.0, 30.0, 0.0, 10.0, 15.0)
    assert (seen.lowest, seen.highest) == ((-10.0,), (30.0,))
    assert watch.trend(seen) == (0.25, 0.5, 0.625)
    assert watch.slope(seen) == pytest.approx((0.625 - 0.25) / 2)  # (−1 · 0.25 + 0 · 0.5 + 1 · 0.625) / (1 + 0 + 1)


def test_a_threshold_of_its_own_decides_while_agents_share():
    watch = detector(threshold=0.1, split_threshold=-0.1)
    flat, falling = after(watch, 0.0, 4.0, 2.0, 2.0, 2.0), after(watch, 0.0, 4.0, 3.0, 2.0, 1.0)
    assert watch.slope(falling) == pytest.approx(-0.25)  # (0.25 − 0.75) / 2
    assert (watch.fires(flat), watch.fires(flat, sharing=True)) == (True, False)
    assert watch.fires(falling, sharing=True)
    same = detector(threshold=0.1)
    assert same.fires(flat, sharing=True)
    with pytest.raises(SpecError, match=r"sharing\.split_threshold: got -0\.6, but with 1 agents"):
        detector(split_threshold=-0.6).check()


def test_the_range_can_be_the_windows_own():
    watch = detector(range="window")
    assert watch.trend(after(watch, -10.0, 30.0, 0.0, 10.0, 20.0)) == (0.0, 0.5, 1.0)


def test_returns_can_keep_the_scale_that_they_came_with():
    watch = detector(range="then")
    # The first is a range of a point; each rise is then the highest so far, so that a climb looks flat.
    assert watch.trend(after(watch, 0.0, 1.0, 2.0)) == (0.0, 1.0, 1.0)
    assert watch.trend(after(watch, 0.0, 1.0, 2.0, 3.0, 1.5)) == (1.0, 1.0, 0.5)
    steady = detector()
    assert steady.trend(after(steady, 0.0, 1.0, 2.0, 3.0, 4.0)) == (0.5, 0.75, 1.0)


def test_agents_are_scaled_one_by_one_and_then_summed_or_averaged():
    rounds = [{"a": 0.0, "b": 100.0}, {"a": 4.0, "b": 300.0}, {"a": 1.0, "b": 200.0}]
    total, mean = detector("ab"), detector("ab", aggregate="mean")
    assert total.trend(after(total, *rounds)) == (0.0, 2.0, 0.75)
    assert mean.trend(after(mean, *rounds)) == (0.0, 1.0, 0.375)
    assert total.slope(after(total, *rounds)) == pytest.approx(0.375)


def test_equal_returns_scale_to_nothing():
    watch = detector(SIX)
    assert watch.trend(after(watch, 7.0, 7.0, 7.0)) == (0.0, 0.0, 0.0)
    assert watch.slope(after(watch, 7.0, 7.0, 7.0)) == 0.0


def test_it_fires_below_the_threshold_and_not_at_it():
    returns = (0.0, 1.0, 0.5)  # slope 0.25
    assert not detector(threshold=0.25).fires(after(detector(), *returns))
    assert detector(threshold=0.2500001).fires(after(detector(), *returns))
    assert not detector(threshold=0.2500001).fires(after(detector(), *returns[:2])), "the window is not full"


def test_clearing_keeps_the_range():
    seen = after(detector(), 0.0, 4.0, 2.0).cleared()
    assert seen == TrendState((), (0.0,), (4.0,))
    assert detector().trend(detector().see(seen, {"a": 3.0})) == (0.75,)


@pytest.mark.parametrize(
    ("agents", "threshold", "options"),
    [
        (6, -1.0, {}),
        (6, 0.91, {}),
        (8, -1.0, {"aggregate": "mean"}),
        (1, 0.152, {}),
        (8, -1.0, {"window": 20}),
    ],
)
def test_a_threshold_out_of_reach_is_refused(agents, threshold, options):
    with pytest.raises(
        SpecError, match=r"^sharing\.threshold: got .* lies between -.* and .*; give a number in between$"
    ):
        detector(range(agents), **{"window": 10, "threshold": threshold} | options).check()


def test_the_sentence_says_what_can_be_reached_and_what_would_happen():
    with pytest.raises(
        SpecError, match=r"6 agents \(sum\) and a window of 10 .* -0\.9091 and 0\.9091, so no window ever"
    ):
        detector(SIX, window=10, threshold=-1).check()
    with pytest.raises(SpecError, match=r"so every full window would be below it"):
        detector(SIX, window=10, threshold=1).check()


@pytest.mark.parametrize(("agents", "threshold"), [(8, -1.0), (6, 0.1), (6, -0.9), (6, 0.0), (1, 0.15)])
def test_a_threshold_within_reach_is_not(agents, threshold):
    detector(range(agents), window=10, threshold=threshold).check()


RETURNS = st.floats(-1e6, 1e6)


@given(
    st.integers(2, 12).flatmap(lambda window: st.tuples(st.just(window), st.lists(RETURNS, min_size=1, max_size=30))),
    st.sampled_from(["history", "window", "then"]),
)
def test_no_slope_is_steeper_than_the_steepest(drawn, kind):
    window, returns = drawn
    watch = detector("ab", window=window, range=kind)
    seen = after(watch, *({"a": r, "b": -r} for r in returns))
    assert len(seen.window) == min(window, len(returns))
    assert all(0 <= value <= 2 for value in watch.trend(seen))
    slope = watch.slope(seen)
    assert (slope is None) == (len(returns) < window)
    assert slope is None or abs(slope) <= 2 * steepest(window) + 1e-9
