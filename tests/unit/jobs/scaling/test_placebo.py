"""Decisions by random numbers in place of what was measured."""

import math
import statistics

import pytest

from marless.core.errors import SpecError
from marless.jobs.job import decide, prepare
from marless.jobs.scaling.base import SCALING_POLICIES, PlaceboConfig
from marless.jobs.scaling.placebo import made_scaling, placebo_value
from tests.unit.cost.comparison.synthetic import spec
from tests.unit.jobs.scaling.rounds import actors, context, groups, measured

PLACEBO = PlaceboConfig(median=2.0, deviation=0.5)


def made(name: str = "marless", seed: int = 3, **settings):
    kind = SCALING_POLICIES.find(name)
    config = kind.config_type.model_validate({"name": name, "placebo": PLACEBO} | settings)
    return made_scaling(kind, config, context("a", "b", seed=seed))


def test_the_numbers_are_log_normal_with_this_median_and_deviation():
    logs = [math.log(placebo_value(PLACEBO, 0, "a", number)) for number in range(20_000)]
    # standard errors: 0.5/√20,000 = 0.0035 of the mean, and 0.0025 of the deviation
    assert statistics.fmean(logs) == pytest.approx(math.log(2), abs=0.015)
    assert statistics.stdev(logs) == pytest.approx(0.5, abs=0.01)
    assert statistics.quantiles(logs, n=4)[0] == pytest.approx(math.log(2) - 0.6745 * 0.5, abs=0.02)


def test_they_are_independent_of_those_before_and_of_other_policies_and_seeds():
    first = [math.log(placebo_value(PLACEBO, 0, "a", number)) for number in range(5000)]
    for other in (
        first[1:],
        [math.log(placebo_value(PLACEBO, 0, "b", number)) for number in range(5000)],
        [math.log(placebo_value(PLACEBO, 1, "a", number)) for number in range(5000)],
    ):
        assert abs(statistics.correlation(first[: len(other)], other)) < 0.05


def test_they_are_the_same_wherever_and_whenever_they_are_drawn():
    # The first 52 bits of blake2b("7 4 agent_0"), 0x7b727bd1b9dec, are 0.4822156 of their range, whose normal quantile
    # is −0.0445936 by SciPy: 2 exp(−0.5 · 0.0445936)
    assert placebo_value(PLACEBO, 7, "agent_0", 4) == pytest.approx(1.9558998977246458, rel=1e-12)
    assert placebo_value(PlaceboConfig(median=2.0, deviation=0.0), 7, "agent_0", 4) == pytest.approx(2.0)


@pytest.mark.parametrize(("name", "metric"), [("marless", "curvature"), ("nitro", "curvature"), ("gns", "noise_scale")])
def test_what_was_measured_has_no_influence(name, metric):
    policy = made(name)
    rounds = [
        measured(metric, {"a": values, "b": values[::-1]})
        for values in ([1.0, 2.0, 9.0, 0.1, 4.0, 7.0], [5.0, 0.2, 3.0, 8.0, 1.0, 6.0])
    ]
    assert actors(policy, rounds[0], groups("a", "b")) == actors(policy, rounds[1], groups("a", "b"))
    found = [policy.decide(each, groups("a", "b")) for each in rounds]
    assert found[0] == found[1]
    assert found[0].reason.startswith(f"with random numbers for {metric.replace('_', ' ')}: ")


def test_the_window_holds_the_drawn_numbers():
    found = made().decide(measured("curvature", {"a": [1.0, 1.0], "b": [1.0, 1.0]}), groups("a", "b"))
    assert found.inputs["window"] == {
        name: [placebo_value(PLACEBO, 3, name, number) for number in (0, 1)] for name in ("a", "b")
    }


def test_what_was_not_measured_stays_unknown():
    found = made().decide(
        measured("curvature", {"a": [1.0, None, math.nan, math.inf, 1e200], "b": [1.0] * 5}), groups("a", "b")
    )
    assert list(map(len, found.inputs["window"].values())) == [1, 5]


@pytest.mark.parametrize("name", ["fixed", "max", "given", "adapt"])
def test_a_policy_that_reads_no_signal_has_no_placebo(name):
    own = {"adapt": {"goal": 1.0}, "given": {"actors": (1,)}}.get(name, {})
    with pytest.raises(SpecError, match=rf"scaling\.placebo: scaling '{name}' reads no measured signal"):
        made(name, **own)


def test_a_job_decides_by_its_own_seed():
    jobs = [
        prepare(spec(seed=seed, scaling={"name": "marless", "placebo": {"median": 1.0, "deviation": 0.4}}))
        for seed in (0, 0, 1)
    ]
    history = measured("curvature", {"agent_0": [1.0] * 4, "agent_1": [1.0] * 4})
    windows = [decide(job, history).decisions[0].inputs["window"] for job in jobs]
    assert windows[0] == windows[1] != windows[2]
    assert all(job.curvature for job in jobs)  # it is measured all the same
