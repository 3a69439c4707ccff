"""The program that trains asynchronously on modelled slots: its work learns, and its times are those of versions."""

import pytest

from bench.asynchronous import RULES, Run, measured, row, run
from marless.simulation.asynchronous import Durations

DURATIONS = Durations(sample_s=[0.5], learn_s=[0.25], publish_s=0.01)


def trained(name: str, gradients: int = 100) -> Run:
    return run(name, 0, actors=2, learners=2, machines="even", durations=DURATIONS, gradients=gradients, lr=1e-3)


def test_equal_runs_come_to_equal_returns_and_other_rules_to_others():
    first, again, other = trained("async"), trained("async"), trained("softsync of 4")
    assert first.work.returns == again.work.returns != other.work.returns
    assert len(first.work.returns) == 2  # one for each 50 gradients
    assert first.work.env_steps == 100 * 500


def test_a_return_is_reached_when_the_version_was_published():
    done = trained("async", 150)
    at = done.work.evaluated_at[2]
    assert done.reached_s(-1000.0) == done.course.published_s[at - 1]
    assert done.reached_s(0.0) is None


def test_a_line_counts_the_seeds_that_got_there():
    runs = [trained("sync", 150)]
    line = row("sync", runs, runs, -1000.0)
    assert line["seeds there"] == "1 of 1"
    assert line["sooner than sync"]["median"] == 1.0
    assert row("sync", runs, runs, 0.0)["seconds to 0"] == "never"


def test_durations_are_measured_for_each_kind_of_function():
    found = measured(1e-3)
    assert min(found.sample_s) > 0 and min(found.learn_s) > 0 and found.publish_s > 0


@pytest.mark.parametrize("name", RULES)
def test_every_rule_learns_from_something(name):
    assert trained(name, 20).course.progress.queue.counts.applied >= 20
