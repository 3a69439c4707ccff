"""The program that trains asynchronously on modelled slots: its work learns, and its times are those of versions."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench.asynchronous import SYSTEMS, Runs, best_rate, last, measured, row
from bench.asynchronous_work import DIVERGED, GAMES, Result, Setting, System, UpdateSeconds, trained
from marless.cost.simulation.asynchronous import SlotSeconds, SpeedSpread

DURATIONS = SlotSeconds(sample_s=[0.5], learn_s=[0.25], publish_s=0.01)


def setting(rollouts: int = 100, machines: SpeedSpread = SpeedSpread()) -> Setting:  # noqa: B008  # frozen
    return Setting(
        game=GAMES["spread"],
        actors=2,
        learners=2,
        machines=machines,
        durations=DURATIONS,
        update_s=UpdateSeconds(whole=[2.0], part=[1.25], lagging=[2.5]),
        rollouts=rollouts,
    )


def run(name: str, rollouts: int = 100) -> Result:
    return trained(SYSTEMS[name], setting(rollouts), seed=0, lr=1e-3)


def test_equal_runs_come_to_equal_returns_and_other_rules_to_others():
    first, again, other = run("async"), run("async"), run("softsync of 4")
    assert first == again
    assert first.scores != other.scores
    assert len(first.scores) == 2  # one for each 50 rollouts


def test_a_round_lasts_as_long_as_its_slowest_actor_and_the_update():
    found = run("synchronous")
    assert found.at_s == pytest.approx((25 * 2.5, 50 * 2.5))
    assert found.worked_s == pytest.approx((25 * 3.0, 50 * 3.0))
    assert (found.versions, found.staleness) == (50, 0.0)
    assert found.actors_busy == pytest.approx(0.2)


def test_learners_that_share_an_update_take_as_much_less_time_for_the_same_weights():
    whole, parts = run("synchronous"), run("synchronous in parts")
    assert parts.scores == whole.scores
    assert parts.at_s == pytest.approx((25 * 1.75, 50 * 1.75))  # 1.25 s for each of two learners
    assert parts.worked_s == pytest.approx((25 * 3.5, 50 * 3.5))
    assert parts.learners_busy == pytest.approx(1.25 / 1.75)


def test_a_pipelined_round_hides_its_actors_behind_the_update_before():
    assert run("pipelined").at_s == pytest.approx((0.5 + 25 * 2.5, 0.5 + 50 * 2.5))


def test_sides_that_compete_are_scored_by_the_weaker_one():
    found = trained(SYSTEMS["async"], adversary(), seed=0, lr=4e-3)
    assert found.scores[-1] > 1.0  # a side that does not learn gains nothing


def adversary() -> Setting:
    return replace(setting(100), game=GAMES["adversary"])


def test_a_run_that_diverges_counts_as_one_that_does_not_get_there():
    there = replace(run("async"), scores=(-20.0, -19.0, -18.0, -18.0), at_s=(1.0, 2.0, 3.0, 4.0), worked_s=(2.0,) * 4)
    diverged = trained(SYSTEMS["async"], setting(20), seed=0, lr=1e30)
    assert diverged == DIVERGED
    assert last(diverged) < last(there)
    made = row("async", "0.001", [there, diverged], [there, there], -19.0, "return")
    assert made["seeds there"] == "1 of 2"
    assert made["last return"]["median"] == pytest.approx(-18.3)
    assert made["versions"] == there.versions
    never = row("async", "0.001", [diverged], [there], -19.0, "return")
    assert (never["seconds to -19"], never["last return"], never["versions"]) == ("never", "diverged", 0)


def test_slow_slots_hold_up_a_round():
    slow = trained(SYSTEMS["synchronous"], setting(50, SpeedSpread(slow=0.5)), seed=0, lr=1e-3)
    assert slow.at_s == pytest.approx((25 * 3.0,))


def test_a_return_is_reached_by_three_evaluations_in_a_row():
    done = run("async", 200)
    assert done.reached(-1000.0) == 2
    assert done.reached(0.0) is None


def test_a_line_counts_the_seeds_that_got_there():
    runs = [run("sync", 150)]
    line = row("sync", "0.001", runs, runs, -1000.0, "return")
    assert line["seeds there"] == "1 of 1"
    assert line["sooner"]["median"] == 1.0
    assert line["function seconds"]["median"] == pytest.approx(runs[0].worked_s[2], abs=0.1)
    assert row("sync", "0.001", runs, runs, 0.0, "return")["seconds to 0"] == "never"


def test_durations_are_measured_for_each_kind_of_function():
    found, update_s = measured(GAMES["spread"], 2, 2)
    assert min(found.sample_s) > 0 and min(found.learn_s) > 0 and found.publish_s > 0
    assert min(update_s.part) > 0 and min(update_s.lagging) > 0
    assert (
        min(update_s.whole) > min(found.learn_s) / 2
    )  # several epochs; the smallest, because other load raises the others


def test_the_best_rate_is_the_one_with_which_runs_get_there(tmp_path: Path):
    runs = Runs(setting(150), tmp_path / "runs.jsonl")
    reached = {rate: last(runs.get("sync", 1000, rate)) for rate in (1e-5, 2e-3)}
    assert reached[2e-3] > reached[1e-5]
    assert best_rate(runs, "sync", list(reached), 1, 0.0) == 2e-3  # none gets there: the better return
    again = Runs(setting(150), tmp_path / "runs.jsonl")
    assert again.get("sync", 1000, 2e-3) == runs.get("sync", 1000, 2e-3)
    assert len((tmp_path / "runs.jsonl").read_text().splitlines()) == 2  # not made again


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_learns_from_as_many_rollouts(name):
    system: System = SYSTEMS[name]
    found = trained(system, setting(50), seed=1, lr=1e-3)
    assert len(found.scores) == 1
    assert 0 < found.actors_busy <= 1 and 0 < found.learners_busy <= 1
