"""What a PQN learner keeps, and that a policy does not depend on what trains beside it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from marless.core.errors import CorruptError, SpecError
from marless.core.group import Group
from marless.core.settings import CurvatureSpec, Measure
from marless.learning.algos.algorithm import Setting
from marless.learning.algos.registry import algorithm
from marless.learning.algos.training.passes import PassTimer
from marless.learning.nets.model import ModelSpec
from tests.unit.learning.algos import rounds

SETTINGS = {"epochs": 2, "minibatches": 3}
NETS = [
    {"hidden": (16, 8)},
    {"hidden": (16, 8), "layer_norm": True},
    {"hidden": (8, 4), "recurrent": "gru", "normalise_observations": True},
]
MEMORY = (2, 4)


def trajectories(memory=()):
    return [rounds.trajectory(rounds.DISCRETE, seed, memory=memory) for seed in (1, 2)]


@pytest.mark.parametrize("nets", NETS)
def test_stacked_policies_are_those_that_train_alone_bit_for_bit(nets):
    """On targets of its own: those of the team's would depend on the others."""
    model = ModelSpec.model_validate(nets)
    given = rounds.inputs(rounds.INDEPENDENT, trajectories())
    together = rounds.learner("pqn", rounds.DISCRETE, rounds.INDEPENDENT, model=model, **SETTINGS)
    together.update(given)
    # Two of the four share a policy, so that the others form another stack.
    groups = (Group("a", ("a", "b")), *rounds.INDEPENDENT[2:])
    apart = rounds.learner("pqn", rounds.DISCRETE, groups, model=model, **SETTINGS)
    apart.update(replace(given, groups=groups))
    for name in ("c", "d"):
        assert rounds.flat(together.state(name)) == rounds.flat(apart.state(name))
    assert rounds.flat(together.state("a")) != rounds.flat(apart.state("a"))


@pytest.mark.parametrize("name", ["pqn", "pqn_vdn"])
def test_carried_episodes_go_on_with_the_memory_of_the_actors(name):
    model = ModelSpec.model_validate({"hidden": (8, 4), "recurrent": "gru"})
    groups = rounds.INDEPENDENT if name == "pqn" else (Group("s", ("s",)), *rounds.INDEPENDENT)
    measure = Measure(curvature=CurvatureSpec(), noise=True)
    found = {}
    for scale in (1.0, 0.0):
        given = trajectories(memory=(4, 4))
        for each in given:
            for k in (0, 1):
                each.arrays[f"memory/{k}"] *= np.float32(scale)
        learner = rounds.learner(name, rounds.DISCRETE, groups, model=model, carried=True, **SETTINGS)
        metrics = learner.update(replace(rounds.inputs(groups, given), measure=measure)).metrics
        assert all(np.isfinite(number) for numbers in metrics.values() for number in numbers.values())
        found[scale] = rounds.flat(learner.state("a"))
    assert found[1.0] != found[0.0]


def test_exploration_falls_with_the_env_steps_and_is_part_of_the_policy():
    epsilon = {"start": 1.0, "end": 0.0, "env_steps": 600}
    learner = rounds.learner("pqn", rounds.DISCRETE, rounds.INDEPENDENT, epsilon=epsilon, **SETTINGS)
    assert learner.state("a").acting["exploration"].tolist() == [1.0]
    learner.update(replace(rounds.inputs(rounds.INDEPENDENT, trajectories()), env_steps=240))
    assert learner.state("a").acting["exploration"].tolist() == [0.5]  # a round has 60


def test_rewards_are_counted_over_all_rounds():
    learner = rounds.learner("pqn", rounds.DISCRETE, rounds.INDEPENDENT, **SETTINGS)
    for number in range(2):
        learner.update(rounds.inputs(rounds.INDEPENDENT, trajectories(), number))
    rewards = np.concatenate([each["reward/1"][each.alive(1)] for each in trajectories()])
    sums = learner.state("a").learning["policy.rewards"]
    np.testing.assert_allclose(
        sums[:3], 2 * np.array([rewards.size, rewards.sum(), np.square(rewards).sum()]), rtol=1e-5
    )
    state = learner.state("a")
    learning = {key: array for key, array in state.learning.items() if key != "policy.rewards"}
    with pytest.raises(CorruptError, match=r"policy\.rewards is missing"):
        learner.load("a", replace(state, learning=learning))


def test_gradients_of_another_form_are_refused():
    learner = rounds.learner("pqn", rounds.DISCRETE, rounds.INDEPENDENT, **SETTINGS)
    given = learner.gradients(rounds.inputs(rounds.INDEPENDENT, trajectories())).gradients["a"]
    with pytest.raises(CorruptError, match="expected sums"):
        learner.apply("a", {key: array for key, array in given.items() if key != "policy.rewards"}, 0)
    with pytest.raises(CorruptError):
        learner.apply("a", {**given, "policy": given["policy"][1:]}, 0)


def test_a_team_that_draws_takes_as_many_samples_a_policy_as_one_agent_has():
    groups = (Group("s", ("s",)), Group("a", rounds.AGENTS))
    learner = rounds.learner("pqn_vdn", rounds.DISCRETE, groups, epochs=1, minibatches=1)
    given = replace(rounds.inputs(groups, trajectories()), pooling="drawn")
    learner.names(groups)
    *_, (order_U,) = learner._prepare(given, PassTimer(), 1, copies=True)
    assert len(order_U) == 24  # of 60 env steps: 2 policies have those of 5 agents
    learner._config = learner._config.model_copy(update={"minibatches": 25})
    with pytest.raises(SpecError, match="only 24 env steps"):
        learner.update(given)


def test_continuous_actions_are_refused_with_what_to_use():
    kind = algorithm("pqn")
    with pytest.raises(SpecError, match=r"needs discrete actions.*use maddpg, iddpg or ippo"):
        setting = Setting(spaces=rounds.CONTINUOUS, model=rounds.MODEL, samples=100, steps=5, memory_bytes=2**20)
        kind.check(kind.config_type(), setting)
