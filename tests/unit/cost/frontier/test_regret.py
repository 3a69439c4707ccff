"""Frontiers and regrets against numbers from a pocket calculator."""

import math
from dataclasses import replace

import pytest

from marless.cost.comparison.statistics import resampled_ratio
from marless.cost.frontier.regret import CostPoint, frontier, function_point, machine_points, regret, regrets
from tests.unit.cost.frontier.synthetic import preset, seed_run, static


def point(name: str, usd: float, seconds: float) -> CostPoint:
    return CostPoint(contender=name, usd=(usd,), seconds=(seconds,))


def test_the_frontier_has_what_nothing_beats():
    cheap, quick, beaten, equal = point("a", 1, 9), point("b", 5, 2), point("c", 2, 10), point("d", 1, 9.5)
    also, dearer = point("e", 3, 4), point("f", 4, 4)
    found = frontier([quick, beaten, cheap, equal, dearer, also])
    assert [each.contender for each in found] == ["a", "e", "b"]
    assert frontier([]) == ()


def test_a_ratio_over_seeds_is_geometric_and_paired():
    # 2, 4 and 8 times as much: 4 in the mean, whatever a seed costs
    found = resampled_ratio([2.0, 40.0, 8.0], [1.0, 10.0, 1.0])
    assert found.mean == pytest.approx(4.0)
    # percentiles of the means of three draws of log 2, log 4 and log 8: 1 in 27 is all twos
    assert (found.low, found.high) == (pytest.approx(2.0), pytest.approx(8.0))
    assert resampled_ratio([3.0], [2.0]).low is None
    with pytest.raises(ValueError, match=r"math domain|expected a positive"):
        resampled_ratio([0.0], [1.0])


def test_regret_is_against_the_cheapest_that_is_as_fast():
    ours = CostPoint(contender="marless", usd=(6.0, 6.0), seconds=(4.0, 6.0))
    slow = CostPoint(contender="slow", usd=(1.0, 1.0), seconds=(5.0, 5.1))
    just = CostPoint(contender="just", usd=(4.0, 4.0), seconds=(10.0, 0.0))  # 5 s in the mean, as ours
    dear = CostPoint(contender="dear", usd=(5.0, 5.0), seconds=(1.0, 1.0))
    best, ratio = regret(ours, [slow, dear, just])
    assert best is just and ratio is not None
    assert ratio.mean == pytest.approx(1.5)
    assert regret(ours, [slow]) == (None, None)


def test_a_point_is_what_was_spent_when_the_goal_was_reached():
    both = static(4, seed_run([-30.0, -20.0], paper=2.0, s=3.0), seed_run([-20.0, -10.0], seed=1, paper=9.0))
    found = function_point(both, -20.0, "paper")
    assert found is not None
    assert (found.usd, found.seconds) == ((4.0, 9.0), (6.0, 1.0))
    assert (found.mean_usd, found.mean_s) == (pytest.approx(6.0), 3.5)
    assert function_point(both, -5.0, "paper") is None


def test_machines_are_points_of_their_own_the_cheapest_first():
    machines = {"big": (1.0, 7.0), "small": (5.0, 3.0)}
    one = static(4, seed_run([-30.0, -20.0], machines=machines))
    found = machine_points(one, -20.0, "paper")
    assert [(each.words, each.usd, each.seconds) for each in found] == [
        ("4 shared synchronous on small", (6.0,), (10.0,)),
        ("4 shared synchronous on big", (14.0,), (2.0,)),
    ]
    partly = static(4, seed_run([-20.0], machines=machines), seed_run([-20.0], seed=1, machines={"big": (1.0, 1.0)}))
    assert [each.machine for each in machine_points(partly, -20.0, "paper")] == ["big"]


def test_beside_billed_functions_a_machine_pays_for_services_too():
    one = static(4, seed_run([-30.0, -20.0], machines={"small": (5.0, 3.0)}))
    run = replace(one.runs[0], progress=replace(one.runs[0].progress, services_usd_s=0.5))
    (found,) = machine_points(replace(one, runs=(run,)), -20.0, "billed")
    assert (found.usd, found.seconds) == ((6.0 + 10.0 * 0.5,), (10.0,))


def test_each_preset_has_a_regret_by_each_accounting_without_and_with_machines():
    """A preset of 10 s, 3 $ by paper and 12 $ billed, a setting that is as fast, and a machine."""
    machines = {"own": (9.0, 4.0), "slow": (11.0, 0.5)}
    contenders = [
        static(4, seed_run([-20.0], s=8.0, paper=2.0, billed=16.0, machines=machines)),
        static(1, seed_run([-20.0], s=12.0, paper=0.1, billed=0.1)),
        static(9, seed_run([-25.0], s=1.0, paper=0.1, billed=0.1)),
        preset("marless", seed_run([-20.0], s=10.0, paper=3.0, billed=12.0)),
        preset("late", seed_run([-25.0])),
        preset("first", seed_run([-20.0], s=0.5)),
    ]
    found = {
        (each.preset, each.accounting, each.own_machines): each
        for each in regrets(contenders, -20.0, ("paper", "billed"))
    }
    assert len(found) == 12
    assert {
        key[1:]: (each.best.words, each.value) for key, each in found.items() if key[0] == "marless" and each.best
    } == {
        ("paper", False): ("4 shared synchronous", pytest.approx(0.5)),
        ("paper", True): ("4 shared synchronous", pytest.approx(0.5)),
        ("billed", False): ("4 shared synchronous", pytest.approx(-0.25)),
        ("billed", True): ("4 shared synchronous on own", pytest.approx(2.0)),
    }
    late, first = found["late", "paper", False], found["first", "billed", True]
    assert (late.reached, late.best, late.value) == (False, None, None)
    assert (first.reached, first.best, first.value) == (True, None, None)
    assert math.isfinite(sum(each.value for each in found.values() if each.value is not None))
