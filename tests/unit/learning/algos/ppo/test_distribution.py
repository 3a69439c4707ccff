"""Policies of every distribution of continuous actions, trained by the whole family."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from marless.core.errors import SpecError
from marless.core.group import Group
from marless.core.settings import CurvatureSpec, InvalidSettingsError, Measure
from marless.learning.algos import registry
from marless.learning.algos.algorithm import scopes
from marless.learning.algos.learner import Learner, LearnerContext, Scope
from marless.learning.algos.ppo.algorithms import IPPO, IPPOConfig
from marless.learning.algos.training.similarity import behaviour
from marless.learning.algos.training.table import tabulate
from marless.learning.data.trajectory import Trajectory
from marless.learning.envs.base import AgentClass, Box, EnvSpaces
from marless.learning.nets.acting import ActingPolicies
from marless.learning.nets.model import ModelSpec
from marless.learning.similarity.distributions import PolicyDistances
from marless.learning.similarity.measures import Normals
from tests.unit.learning.algos import rounds
from tests.unit.learning.algos.ppo.test_initial import setting
from tests.unit.learning.algos.ppo.test_learner import _alone

(WALKER,) = rounds.CONTINUOUS.classes
DISTRIBUTIONS = pytest.mark.parametrize("distribution", ["squashed_normal", "beta"])


def acted(learner: Learner, seed: int) -> Trajectory:
    """A trajectory with the actions and log-probabilities of the learner's policies."""
    given = rounds.trajectory(rounds.CONTINUOUS, seed)
    policies = ActingPolicies.from_states(WALKER, [learner.state(agent) for agent in rounds.AGENTS])
    rng, arrays = np.random.default_rng(seed), dict(given.arrays)
    for t, obs_NBO in enumerate(arrays["obs/0"]):
        arrays["action/0"][t], arrays["log_prob/0"][t] = policies.sample(obs_NBO, None, rng)
    return Trajectory(arrays)


@DISTRIBUTIONS
@pytest.mark.parametrize("name", ["ippo", "mappo", "impact"])
@pytest.mark.parametrize("recurrent", ["none", "gru"])
def test_the_family_trains_it(distribution: str, name: str, recurrent: str) -> None:
    model = ModelSpec.model_validate({"hidden": (16, 8), "recurrent": recurrent})
    more = {"advantage": "vtrace", "distribution": distribution, "output_gain": 1.0}
    learner = rounds.learner(name, rounds.CONTINUOUS, rounds.INDEPENDENT, model=model, **more)
    before = learner.state("a")
    if recurrent == "none":  # the actions of `acted` are those of an empty memory at each step
        given = rounds.inputs(rounds.INDEPENDENT, [acted(learner, 3)])
        once = learner.gradients(given).metrics["a"]
        assert abs(once["approx_kl"]) < 1e-6, "learners find the log-probabilities that actors recorded"
    else:
        given = rounds.inputs(rounds.INDEPENDENT, [rounds.trajectory(rounds.CONTINUOUS, 3)])
        given.trajectories[0].arrays["action/0"].clip(-0.9, 0.9, out=given.trajectories[0].arrays["action/0"])
    metrics = learner.update(given).metrics["a"]
    after = learner.state("a")
    assert all(np.isfinite(number) for number in metrics.values())
    moved = [key for key in before.acting if not np.array_equal(before.acting[key], after.acting[key])]
    assert len(moved) == len(before.acting)
    other = rounds.learner(name, rounds.CONTINUOUS, rounds.INDEPENDENT, model=model, **more)
    other.load("a", after)
    assert rounds.flat(other.state("a")) == rounds.flat(after)


@DISTRIBUTIONS
def test_stacked_policies_learn_what_they_learn_alone(distribution: str) -> None:
    stacked = rounds.learner("ippo", rounds.CONTINUOUS, rounds.INDEPENDENT, distribution=distribution)
    given = acted(stacked, 5)
    config = IPPOConfig(name="ippo", distribution=distribution)
    for i, agent in enumerate(rounds.AGENTS):
        spaces = EnvSpaces((replace(WALKER, agents=(agent,)),), state_size=6, max_steps=None)
        context = LearnerContext(rounds.MODEL, spaces, Scope(0, (0,), "walker"), "cpu")
        alone = registry.algorithm("ippo").learner(config, context)
        alone.load(agent, alone.initial(agent, 0))
        alone.update(rounds.inputs((Group(agent, (agent,)),), [_alone(given, i)]))
        if not i:
            stacked.update(rounds.inputs(rounds.INDEPENDENT, [given]))
        for name, array in alone.state(agent).acting.items():
            np.testing.assert_allclose(stacked.state(agent).acting[name], array, rtol=1e-4, atol=1e-5)


@DISTRIBUTIONS
def test_curvature_and_similarity_are_measured(distribution: str) -> None:
    learner = rounds.learner("ippo", rounds.CONTINUOUS, rounds.INDEPENDENT, distribution=distribution)
    given = acted(learner, 5)
    measure = Measure(curvature=CurvatureSpec())
    metrics = learner.update(replace(rounds.inputs(rounds.INDEPENDENT, [given]), measure=measure)).metrics["a"]
    assert metrics["lambda_max"] > metrics["lambda_min"]
    states = {agent: learner.state(agent) for agent in rounds.AGENTS}
    states["b"] = states["a"]
    rng = np.random.default_rng(0)
    seen = behaviour(tabulate([given], 0, False), WALKER, states, 10, rng)
    assert seen is not None
    normals = seen.policies(seen.obs[0], None)
    assert isinstance(normals, Normals)
    assert normals.std.shape == normals.mean.shape == (4, 10, 2)
    far_NN = PolicyDistances().distances(seen, rng)
    assert far_NN[0, 1] == 0 < far_NN[0, 2]


@DISTRIBUTIONS
def test_what_it_does_not_fit_is_refused(distribution: str) -> None:
    config = IPPOConfig(name="ippo", distribution=distribution)
    with pytest.raises(SpecError, match=r"algorithm.distribution: all actions of env.name are discrete; leave it out"):
        IPPO().check(config, setting(rounds.DISCRETE))
    free = EnvSpaces((AgentClass("walker", ("a",), 5, Box((-1.0, 0.0), (1.0, 1e38))),), state_size=6, max_steps=None)
    with pytest.raises(SpecError, match=rf"algorithm.distribution: {distribution} needs two bounds of each component"):
        IPPO().check(config, setting(free))
    IPPO().check(config, setting(rounds.CONTINUOUS))
    if distribution == "beta":
        with pytest.raises(InvalidSettingsError, match="initial_std belongs to distribution"):
            IPPOConfig(name="ippo", distribution="beta", initial_std=0.5)


@DISTRIBUTIONS
@pytest.mark.parametrize("name", ["ippo", "impact"])
def test_sizes_of_states_are_known_before(distribution: str, name: str) -> None:
    learner = rounds.learner(name, rounds.CONTINUOUS, rounds.INDEPENDENT, distribution=distribution)
    algorithm = registry.algorithm(name)
    config = algorithm.config_type.model_validate({"name": name, "distribution": distribution})
    (scope,) = scopes(algorithm, config, rounds.CONTINUOUS)
    expected = algorithm.net_bytes(config, scope, rounds.INDEPENDENT, rounds.CONTINUOUS, rounds.MODEL)
    state = learner.state("a")
    arrays = {**state.acting, **state.learning}
    assert expected["a"] == sum(each.nbytes for each in arrays.values() if each.dtype == np.float32)
