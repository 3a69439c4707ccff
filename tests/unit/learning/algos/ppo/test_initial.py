"""What policies and critics are before they are trained."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from marless.core.errors import SpecError
from marless.learning.algos.algorithm import Setting
from marless.learning.algos.ppo.algorithms import IPPO, IPPOConfig
from marless.learning.envs.base import EnvSpaces
from marless.learning.nets import heads
from marless.learning.nets.acting import ActingPolicies
from tests.unit.learning.algos import rounds

(WALKER,) = rounds.CONTINUOUS.classes


def test_gains_of_layers_are_those_of_the_field() -> None:
    """Rows of an orthogonal matrix with gain g have the length g, or columns where there are more rows."""
    given = rounds.learner("ippo", rounds.CONTINUOUS, rounds.INDEPENDENT, output_gain=0.5).state("a")
    plain = rounds.learner("ippo", rounds.CONTINUOUS, rounds.INDEPENDENT).state("a")
    for state, gain in ((given, 0.5), (plain, 0.01)):
        first, output = state.acting["policy.0.weight"], state.acting["policy.2.weight"]
        np.testing.assert_allclose(output @ output.T, gain**2 * np.eye(2), atol=1e-6)
        np.testing.assert_allclose(first.T @ first, 2 * np.eye(5), atol=1e-5)
        np.testing.assert_allclose(np.linalg.norm(state.learning["critic.2.weight"]), 1.0, rtol=1e-6)
    assert (given.acting["policy.0.weight"] == plain.acting["policy.0.weight"]).all()


@pytest.mark.parametrize("name", ["ippo", "impact"])
def test_actors_and_learners_begin_with_the_given_deviation(name: str) -> None:
    made = rounds.learner(name, rounds.CONTINUOUS, rounds.INDEPENDENT, initial_std=0.6)
    states = [made.state(agent) for agent in rounds.AGENTS]
    for state in states:
        np.testing.assert_allclose(state.acting["policy.free"], [math.log(0.6)] * 2, rtol=1e-6)
    if name == "impact":
        np.testing.assert_allclose(states[0].learning["policy.target"][-2:], [math.log(0.6)] * 2, rtol=1e-6)
    policies = ActingPolicies.from_states(WALKER, states)
    obs_NBO = np.zeros((4, 20_000, 5), np.float32)
    action_NBA, log_prob_NB = policies.sample(obs_NBO, None, np.random.default_rng(1))
    np.testing.assert_allclose(action_NBA.std(axis=1), 0.6, rtol=0.02)
    mean_NBA, log_std_NA = policies.outputs(obs_NBO, None)
    assert log_std_NA is not None
    head = heads.Gaussian(torch.tensor(np.broadcast_to(log_std_NA, (4, 2)).copy()), torch.zeros(4, 2))
    moved = [torch.tensor(np.ascontiguousarray(each.transpose(0, 2, 1))) for each in (mean_NBA, action_NBA)]
    found_NB, entropy_NB = head.evaluate(*moved, None)
    np.testing.assert_allclose(found_NB, log_prob_NB, atol=1e-4)
    # ½ log(2πe σ²) per component
    np.testing.assert_allclose(entropy_NB[:, 0], math.log(2 * math.pi * math.e * 0.36), rtol=1e-6)


def setting(spaces: EnvSpaces) -> Setting:
    return Setting(spaces=spaces, model=rounds.MODEL, samples=1000, steps=25, memory_bytes=10**9)


def test_a_deviation_of_discrete_actions_is_refused() -> None:
    with pytest.raises(SpecError, match=r"algorithm.initial_std: all actions of env.name are discrete; leave it out"):
        IPPO().check(IPPOConfig(name="ippo", initial_std=0.5), setting(rounds.DISCRETE))
    IPPO().check(IPPOConfig(name="ippo", initial_std=0.5), setting(rounds.CONTINUOUS))
    IPPO().check(IPPOConfig(name="ippo"), setting(rounds.DISCRETE))
