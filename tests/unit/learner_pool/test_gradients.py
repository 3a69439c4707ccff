"""Gradients of every algorithm as they would travel: taken by one learner, sent as bytes, applied by another."""

import numpy as np
import pytest
import torch

from marless.core.state import PolicyState
from marless.jobs.job import prepare
from marless.jobs.sharing.base import initial_groups
from marless.jobs.spec import parse
from marless.learning.algos import registry as algorithms
from marless.learning.algos.algorithm import scopes
from marless.learning.algos.learner import LearnerContext, RoundInput
from marless.learning.data.rollout import rollout
from marless.learning.envs import registry as environments
from marless.learning.nets import serial
from marless.learning.nets.acting import ActingPolicies

ONE_PASS = {"epochs": 1, "minibatches": 1}
ONE_STEP = {"ppo": ONE_PASS, "pqn": ONE_PASS, "": {"updates": 1, "warmup": 0, "batch": 16}}


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", sorted(algorithms.ALGORITHMS.modules))
def test_gradients_that_were_sent_make_the_version_that_an_update_makes(name):
    algorithm = algorithms.algorithm(name)
    settings = ONE_STEP.get(algorithm.config_type.family, ONE_STEP[""])
    if "td3" in name:
        settings = settings | {"policy_every": 1}  # else policies have no gradient in the first step
    document = {"env": {"name": "mpe/simple_spread"}, "algorithm": {"name": name} | settings, "model": {"hidden": [8]}}
    job = prepare(parse(document | {"stop": {"rounds": 1}}, "job"))
    groups = initial_groups("independent", job.spaces)
    [scope], [agents] = scopes(algorithm, job.spec.algorithm, job.spaces), job.spaces.classes
    takes, applies, updates = (
        algorithm.learner(job.spec.algorithm, LearnerContext(job.spec.model, job.spaces, scope, "cpu"))
        for _ in range(3)
    )
    for learner in (takes, applies, updates):
        for state in learner.names(groups):
            learner.load(state, learner.initial(state, 0))
    acting = [ActingPolicies.from_states(agents, [takes.state(agent) for agent in agents.agents])]
    env = environments.make(job.spec.env.name, {}, 4)
    inputs = RoundInput(0, 0, 0, groups, [rollout(env, acting, steps=25, seed=0, with_state=job.with_state)[0]])
    updates.update(inputs)
    for state, gradients in takes.gradients(inputs).gradients.items():
        sent = serial.encode(PolicyState({}, gradients, {}))
        applies.apply(state, serial.decode(*map(bytes, sent)).learning, 0)
        for part, array in updates.state(state).learning.items():
            np.testing.assert_array_equal(applies.state(state).learning[part], array)
        for part, array in updates.state(state).acting.items():
            np.testing.assert_array_equal(applies.state(state).acting[part], array)
