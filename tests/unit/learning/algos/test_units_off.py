"""Value methods and actor-critics count units that no sample turns on; for PPO, see `ppo.test_learner`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from marless.learning.algos.learner import Learner
from marless.learning.envs.base import EnvSpaces
from marless.learning.nets.model import ModelSpec
from tests.unit.learning.algos import rounds

TEAM = replace(rounds.DISCRETE, classes=rounds.DISCRETE.classes[1:], rewards="cooperative")
DRAWN = {"warmup": 8, "updates": 2, "batch": 6, "replay": {"capacity": 200}}
Q = [("iql", DRAWN), ("vdn", DRAWN), ("qmix", DRAWN), ("pqn", {"minibatches": 2}), ("pqn_vdn", {"minibatches": 2})]
ACTOR_CRITICS = [("iddpg", DRAWN), ("maddpg", DRAWN), ("td3", DRAWN), ("sac", DRAWN | {"random_steps": 0})]


def trained(name: str, spaces: EnvSpaces, activation: str, settings: dict[str, object]) -> dict[str, dict[str, float]]:
    """Metrics of an update in which six of the eight units in the first layer of b's net are off."""
    model = ModelSpec(hidden=(8,), activation=activation)
    learner = rounds.learner(name, spaces, rounds.INDEPENDENT, model=model, **settings)
    for policy in rounds.AGENTS:
        state = learner.initial(policy, 0)
        bias = np.full(8, 100.0, np.float32)
        bias[: 6 if policy == "b" else 0] = -100.0
        acting = {key: bias if key.endswith(".0.bias") else array for key, array in state.acting.items()}
        learner.load(policy, replace(state, acting=acting))
    return updated(learner, spaces)


def updated(learner: Learner, spaces: EnvSpaces) -> dict[str, dict[str, float]]:
    output = learner.update(rounds.inputs(rounds.INDEPENDENT, [rounds.trajectory(spaces, seed) for seed in (7, 8)]))
    return {name: dict(of) for name, of in output.metrics.items()}


@pytest.mark.parametrize(
    ("name", "settings", "spaces"),
    [(*each, TEAM) for each in Q] + [(*each, rounds.CONTINUOUS) for each in ACTOR_CRITICS],
)
def test_units_that_no_sample_turns_on_are_counted(name, settings, spaces):
    found = trained(name, spaces, "relu", settings)
    assert {policy: found[policy]["units_off"] for policy in rounds.AGENTS} == {"a": 0, "b": 0.75, "c": 0, "d": 0}
    assert not any("units_off" in key for of in trained(name, spaces, "tanh", settings).values() for key in of)


@pytest.mark.parametrize("name", ["iddpg", "td3"])
def test_units_of_critics_are_counted_under_their_names(name):
    settings, model = dict(ACTOR_CRITICS)[name], ModelSpec(hidden=(8,), activation="relu")
    learner = rounds.learner(name, rounds.CONTINUOUS, rounds.INDEPENDENT, model=model, **settings)
    state = learner.initial("c", 0)
    off = np.full(8, -100.0, np.float32)
    learning = {key: off if key == "critic.0.bias" else array for key, array in state.learning.items()}
    learner.load("c", replace(state, learning=learning))
    found = updated(learner, rounds.CONTINUOUS)
    assert found["c"]["critic_units_off"] == 1.0 > found["a"]["critic_units_off"]
    assert ("twin_critic_units_off" in found["c"]) == (name == "td3")


def test_policies_that_took_no_gradient_step_are_not_said_to_have_all_units_on():
    model = ModelSpec(hidden=(8,), activation="relu")
    settings = DRAWN | {"updates": 1}  # policies of TD3 wait for the critics' second step
    learner = rounds.learner("td3", rounds.CONTINUOUS, rounds.INDEPENDENT, model=model, **settings)
    found = [updated(learner, rounds.CONTINUOUS)["a"] for _ in range(2)]
    assert all("critic_units_off" in metrics for metrics in found)
    assert ["units_off" in metrics for metrics in found] == [False, True]
