"""Gradients instead of updates: what a learner gives for a version, and the step that another takes along it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from marless.core.errors import CorruptError, NotFoundError
from marless.core.group import Group
from marless.core.settings import CurvatureSpec, Measure
from marless.learning.envs.base import EnvSpaces
from marless.learning.nets.model import ModelSpec
from marless.learning.similarity.measures import PolicyDistanceConfig
from tests.unit.learning.algos import rounds

PAIRS = (Group("x", ("a", "c")), Group("y", ("b",)), Group("z", ("d",)))
ONE_STEP = {"epochs": 1, "minibatches": 1, "lr": {"start": 1e-2, "end": 0.0, "env_steps": 5000}}
ALGORITHMS = pytest.mark.parametrize(
    ("name", "settings"), [("ippo", {}), ("mappo", {}), ("mappo", {"critic": "per_agent"})]
)
MODELS = pytest.mark.parametrize("recurrent", ["none", "gru"])


def _model(recurrent: str) -> ModelSpec:
    return ModelSpec.model_validate({"hidden": (16, 8), "recurrent": recurrent})


@ALGORITHMS
@MODELS
@pytest.mark.parametrize("spaces", [rounds.DISCRETE, rounds.CONTINUOUS], ids=["discrete", "continuous"])
@pytest.mark.parametrize("pooling", ["pooled", "drawn"])
def test_an_update_of_one_step_is_gradients_applied(
    name: str, settings: dict[str, object], recurrent: str, spaces: EnvSpaces, pooling: str
) -> None:
    updated, gave, applied = (
        rounds.learner(name, spaces, PAIRS, model=_model(recurrent), **ONE_STEP, **settings) for _ in range(3)
    )
    for number in range(3):
        given = rounds.inputs(PAIRS, [rounds.trajectory(spaces, 7 + number)], number)
        given = replace(given, pooling=pooling)
        output = updated.update(given)
        for state in updated.names(PAIRS):
            gave.load(state, applied.state(state))
        found = gave.gradients(given)
        assert found.gradients.keys() == set(updated.names(PAIRS))
        for state in updated.names(PAIRS):
            assert rounds.flat(gave.state(state)) == rounds.flat(applied.state(state))
            applied.apply(state, found.gradients[state], given.env_steps)
            assert rounds.flat(applied.state(state)) == rounds.flat(updated.state(state)), (number, state)
        assert found.metrics == output.metrics
        assert [(run.function, run.name) for run in found.runs] == [(run.function, run.name) for run in output.runs]


def test_gradients_of_a_group_are_those_of_the_policy_that_it_starts_from() -> None:
    learner = rounds.learner("ippo", rounds.DISCRETE, rounds.INDEPENDENT, **ONE_STEP)
    trajectories = [rounds.trajectory(rounds.DISCRETE, 7)]
    merged = (Group("a", ("a", "b"), "b"), Group("c", ("c",)), Group("d", ("d",)))
    before = {agent: rounds.flat(learner.state(agent)) for agent in rounds.AGENTS}
    from_b = learner.gradients(rounds.inputs(merged, trajectories)).gradients["a"]
    assert {agent: rounds.flat(learner.state(agent)) for agent in rounds.AGENTS} == before
    learner.load("a", learner.state("b"))
    from_a = learner.gradients(rounds.inputs((Group("a", ("a", "b")), *merged[1:]), trajectories)).gradients["a"]
    assert {key: array.tobytes() for key, array in from_b.items()} == {k: v.tobytes() for k, v in from_a.items()}


def test_what_gradients_measure_is_what_an_update_measures_that_changes_nothing() -> None:
    asked = Measure(
        curvature=CurvatureSpec(samples=32, steps=4, probes=1),
        noise=True,
        similarity=PolicyDistanceConfig.model_validate({"samples": 8}),
    )
    still = {"epochs": 1, "minibatches": 1, "lr": 0.0}
    updated, gave = (rounds.learner("ippo", rounds.DISCRETE, rounds.INDEPENDENT, **still) for _ in range(2))
    given = rounds.inputs(rounds.INDEPENDENT, [rounds.trajectory(rounds.DISCRETE, 7)])
    plain, given = gave.gradients(given), replace(given, measure=asked)
    found, output = gave.gradients(given), updated.update(given)
    assert found.metrics == output.metrics
    assert {"curvature", "lambda_max", "noise_scale"} <= found.metrics["a"].keys()
    assert found.distances.keys() == output.distances.keys() != set()
    for name, matrix_NN in found.distances.items():
        np.testing.assert_array_equal(matrix_NN, output.distances[name])
    for name, arrays in plain.gradients.items():  # to measure changes no gradient
        assert {key: array.tobytes() for key, array in arrays.items()} == {
            key: array.tobytes() for key, array in found.gradients[name].items()
        }


def test_gradients_of_two_batches_may_be_averaged() -> None:
    learner = rounds.learner("mappo", rounds.DISCRETE, rounds.INDEPENDENT, **ONE_STEP)
    given = [
        learner.gradients(rounds.inputs(rounds.INDEPENDENT, [rounds.trajectory(rounds.DISCRETE, seed)])).gradients
        for seed in (1, 2)
    ]
    for name in learner.names(rounds.INDEPENDENT):
        first, second = (each[name] for each in given)
        mean = {key: (0.5 * (first[key] + second[key])).astype(first[key].dtype) for key in first}
        before = rounds.flat(learner.state(name))
        learner.apply(name, mean, 0)
        assert rounds.flat(learner.state(name)) != before
        assert all(np.isfinite(array).all() for array in learner.state(name).learning.values())


def test_gradients_that_do_not_fit_are_refused() -> None:
    learner = rounds.learner("ippo", rounds.DISCRETE, rounds.INDEPENDENT)
    good = learner.gradients(rounds.inputs(rounds.INDEPENDENT, [rounds.trajectory(rounds.DISCRETE, 1)])).gradients["a"]
    before = rounds.flat(learner.state("a"))
    for damaged in (
        {},
        {"policy": good["policy"]},
        {**good, "critic": good["critic"][1:]},
        {**good, "policy": good["policy"].astype(np.float64)},
        {**good, "mixer": good["policy"]},
    ):
        with pytest.raises(CorruptError, match="gradients of 'a'"):
            learner.apply("a", damaged, 0)
    assert rounds.flat(learner.state("a")) == before
    with pytest.raises(NotFoundError, match="'nobody'"):
        learner.apply("nobody", good, 0)
