"""Courses of runs and their common lines, against numbers of a pocket calculator."""

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marless.core.errors import SpecError
from marless.cost.comparison import courses
from marless.cost.comparison.choices import Band, Center, Over, Quantity, Returns
from marless.cost.comparison.courses import MOST_PLACES, Course, RunGroup, grid, line, read_off, smoothed
from marless.cost.comparison.runs import curves
from marless.jobs.record import Evaluation
from tests.unit.cost.comparison.synthetic import ROUND_S, record, returns, spec


def made(places, values, run: str = "a", seed: int = 0) -> Course:
    return Course(
        run=run, seed=seed, returns=Returns.greedy, places=tuple(places), env_steps=tuple(map(int, places)),
        values=tuple(values),
    )  # fmt: skip


def course(records, axis=Over.env_steps, which=Returns.greedy, quantity=Quantity.returns) -> Course:
    return courses.course("a", spec(), records, axis=axis, quantity=quantity, returns=which, accounting="billed")


EVALUATED = [
    record(0, mean=-9.0),
    dataclasses.replace(
        record(1, mean=-8.0), earlier_evaluation=Evaluation(rounds=1, env_steps=100, returns=returns(-5.0))
    ),
    record(2, mean=-7.0, greedy=-3.0),
]
"""Round 1's policies are evaluated beside round 2, and round 3's by itself."""


@pytest.mark.parametrize(
    ("axis", "places"),
    [(Over.env_steps, (100, 300)), (Over.rounds, (1, 3)), (Over.seconds, (ROUND_S, 3 * ROUND_S))],
)
def test_an_evaluation_is_where_its_policies_were_published(axis, places):
    found = course(EVALUATED, axis)
    assert (found.places, found.values, found.env_steps) == (places, (-5.0, -3.0), (100, 300))


def test_an_evaluation_that_ended_late_is_drawn_in_its_place():
    late = Evaluation(rounds=1, env_steps=100, returns=returns(-5.0))
    found = course([record(0), record(1, greedy=-4.0), dataclasses.replace(record(2), earlier_evaluation=late)])
    assert (found.places, found.values) == ((100, 200), (-5.0, -4.0))


def test_costs_are_those_of_the_accounting():
    costs = curves(EVALUATED, spec()).cost_usd
    found = course(EVALUATED, Over.usd)
    assert found.places == (costs["billed"][0], costs["billed"][2]) != (costs["paper"][0], costs["paper"][2])


def test_returns_while_exploring_stand_in_for_evaluations_that_are_no_curve():
    assert course(EVALUATED, which=Returns.exploring).values == (-9.0, -8.0, -7.0)
    once = [record(0, mean=-9.0), record(1, mean=-8.0, greedy=-3.0)]
    assert (course(once).returns, course(once).values) == (Returns.exploring, (-9.0, -8.0))
    silent = [dataclasses.replace(each, returns=None) for each in once]
    assert (course(silent).returns, course(silent).values) == (Returns.greedy, (-3.0,))


def test_a_run_without_an_episode_or_without_wins_is_refused():
    with pytest.raises(SpecError, match="a: no episode has ended yet"):
        course([dataclasses.replace(record(0), returns=None)])
    with pytest.raises(SpecError, match="mpe/simple_spread does not report wins; omit --y win-rate"):
        course(EVALUATED, quantity=Quantity.win_rate)
    early = Evaluation(rounds=0, env_steps=0, returns=returns(-5.0))  # of no recorded round
    with pytest.raises(SpecError, match="a: no episode has ended yet"):
        course([dataclasses.replace(record(0), returns=None, earlier_evaluation=early)])
    won = [dataclasses.replace(record(n), evaluation=dataclasses.replace(returns(1.0), wins=n)) for n in (1, 3)]
    assert course(won, quantity=Quantity.win_rate).values == (0.25, 0.75)


def test_smoothing_is_the_mean_of_the_last_points():
    found = smoothed(made([1, 2, 3, 4], [0.0, 6.0, 3.0, 9.0]), 3)
    assert found.values == (0.0, 3.0, 3.0, 6.0)  # 0; (0+6)/2; (0+6+3)/3; (6+3+9)/3
    assert found.places == (1, 2, 3, 4)
    assert smoothed(found, 1) == found


def test_runs_are_read_off_between_their_points_and_never_beyond():
    long, short = made([0, 10, 30], [0.0, 10.0, 50.0]), made([5, 20], [1.0, 4.0])
    assert grid([long, short]) == grid([short, long]) == (5, 10, 20)
    assert read_off(long, (5, 10, 20)).tolist() == [5.0, 10.0, 30.0]
    assert read_off(short, (5, 10, 20)).tolist() == [1.0, 2.0, 4.0]


def test_runs_that_never_meet_are_named():
    with pytest.raises(SpecError, match="old ends before young begins"):
        grid([made([1, 2], [0, 0], "old"), made([3, 4], [0, 0], "young")])


def test_many_places_become_fewer_evenly_spaced_ones():
    found = grid([made(range(0, 1001), [0.0] * 1001), made([0.5, 999.5], [0.0, 0.0])])
    assert (len(found), found[0], found[-1]) == (MOST_PLACES, 0.5, 999.5)
    assert {round(after - before, 6) for before, after in itertools.pairwise(found)} == {round(999 / 199, 6)}


FOUR = [made([0, 1], [value, 0.0], seed=seed) for seed, value in enumerate((100.0, 1.0, 3.0, -50.0))]


@pytest.mark.parametrize(
    ("center", "band", "point"),
    [
        (Center.iqm, Band.range, (2.0, -50.0, 100.0)),  # of 1 and 3
        (Center.median, Band.range, (2.0, -50.0, 100.0)),
        (Center.mean, Band.range, (13.5, -50.0, 100.0)),
        # Deviations 86.5, −12.5, −10.5, −63.5: squares 11781, over 3: 62.6658
        (Center.mean, Band.std, (13.5, 13.5 - 62.6658, 13.5 + 62.6658)),
        # t(0.975; 3) = 3.18245: ± 3.18245 · 62.6658 / 2
        (Center.mean, Band.ci, (13.5, 13.5 - 99.715, 13.5 + 99.715)),
        # The middle two of four draws: both −50 with a chance of 0.05, both 100 likewise
        (Center.iqm, Band.ci, (2.0, -50.0, 100.0)),
    ],
)
def test_the_line_and_band_of_four_runs(center, band, point):
    found = line(FOUR, center, band)
    assert found.places == (0, 1)
    assert (found.center[0], found.low[0], found.high[0]) == pytest.approx(point, abs=1e-3)
    assert (found.center[1], found.low[1], found.high[1]) == (0.0, 0.0, 0.0)


def test_two_runs_have_students_interval_and_one_run_no_band():
    found = line([made([0], [0.0]), made([0], [2.0])], Center.iqm, Band.ci)
    assert (found.center[0], found.low[0]) == pytest.approx((1.0, 1 - 12.7062), abs=1e-3)
    assert line(FOUR, Center.iqm, Band.none).low == line(FOUR[:1], Center.iqm, Band.ci).low == ()
    assert line(FOUR[:1], Center.iqm, Band.ci).center == (100.0, 0.0)


POINTS = st.lists(st.tuples(st.floats(0.01, 5), st.floats(-100, 100)), min_size=1, max_size=6)


@st.composite
def several(draw) -> list[Course]:
    """Runs that all begin before 10 and end after it."""
    found = []
    for seed in range(draw(st.integers(2, 5))):
        before, after = draw(POINTS), draw(POINTS)
        points = {10 - place: value for place, value in before} | {10 + place: value for place, value in after}
        found.append(made(*zip(*sorted(points.items()), strict=True), seed=seed))
    return found


@given(several(), st.randoms(use_true_random=False), st.sampled_from([Band.range, Band.std, Band.ci]))
def test_a_line_stays_where_its_runs_are_and_does_not_depend_on_their_order(runs, random, band):
    found = line(runs, Center.iqm, band)
    assert all(each.places[0] <= found.places[0] and found.places[-1] <= each.places[-1] for each in runs)
    assert list(found.places) == sorted(set(found.places))
    lowest, highest = (end(value for each in runs for value in each.values) for end in (min, max))
    assert all(lowest - 1e-9 <= value <= highest + 1e-9 for value in found.center)
    assert all(
        low - 1e-9 <= value <= high + 1e-9 for low, value, high in zip(found.low, found.center, found.high, strict=True)
    )
    other = list(runs)
    random.shuffle(other)
    assert line(other, Center.iqm, band) == found


def test_a_table_has_every_point_and_every_place_of_the_line():
    runs = (made([0, 2], [1.0, 3.0], "a", 4), made([1, 2], [5.0, 5.0], "b", 5))
    group = RunGroup(label="both", courses=runs, line=line(runs, Center.mean, Band.range))
    alone = RunGroup(label="one", courses=runs[:1], line=line(runs[:1], Center.mean, Band.range))
    assert list(courses.table([group], Over.env_steps)) == [
        ("both", "a", 4, 0, 0, 1.0, "", "", ""),
        ("both", "a", 4, 2, 2, 3.0, "", "", ""),
        ("both", "b", 5, 1, 1, 5.0, "", "", ""),
        ("both", "b", 5, 2, 2, 5.0, "", "", ""),
        ("both", "", "", 1, 1, "", 3.5, 2.0, 5.0),
        ("both", "", "", 2, 2, "", 4.0, 3.0, 5.0),
    ]
    assert list(courses.table([alone], Over.rounds))[-1] == ("one", "", "", 2, "", "", 3.0, "", "")


def test_chance_is_a_mean_for_each_environment():
    other = spec(env={"name": "mpe/simple_tag"})
    jobs = [(spec(), returns(-30.0)), (spec(seed=1), returns(-20.0)), (spec(), None), (other, returns(-5.0))]
    assert courses.chance(jobs, Quantity.returns) == [
        ("random policy, mpe/simple_spread", -25.0), ("random policy, mpe/simple_tag", -5.0),
    ]  # fmt: skip
    assert courses.chance(jobs[:3], Quantity.returns) == [("random policy", -25.0)]
    assert courses.chance(jobs, Quantity.win_rate) == []
