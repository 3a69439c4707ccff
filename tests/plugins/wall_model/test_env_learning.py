"""A shared policy of few weights learns what neither chance nor a frozen policy earns, on the smallest grid."""

import numpy as np

from marless.core.group import Group
from marless.learning.algos import registry
from marless.learning.algos.algorithm import scopes
from marless.learning.algos.learner import LearnerContext, RoundInput
from marless.learning.data.rollout import play, rollout
from marless.learning.nets.acting import ActingPolicies
from marless.learning.nets.model import ModelSpec
from marless_wall_model.controllers import CONTROLLERS, episode_returns
from marless_wall_model.entries import llwm
from tests.plugins.wall_model.conftest import SMALL

TASK = {**SMALL, "decisions": 40, "re_tau": [4000.0], "spin_up": 1.0, "snapshots": 2, "apart": 0.3}
MODEL = ModelSpec.model_validate({"hidden": (8,), "agent_id": False, "normalise_observations": True})
SETTINGS = {"name": "ippo", "lr": 0.01, "gamma": 0.95, "entropy": 0.0, "initial_std": 0.4}


def test_one_policy_of_all_agents_learns_more_than_chance_and_than_it_began_with():
    env = llwm(TASK, 4)
    (agents,) = env.spaces.classes
    groups = (Group("wall", agents.agents),)
    algorithm = registry.algorithm("ippo")
    config = algorithm.config_type.model_validate(SETTINGS)
    (scope,) = scopes(algorithm, config, env.spaces)
    learner = algorithm.learner(config, LearnerContext(MODEL, env.spaces, scope, "cpu"))
    learner.load("wall", learner.initial("wall", seed=1))

    def policies() -> list[ActingPolicies]:
        return [ActingPolicies.from_states(agents, [learner.state("wall")] * len(agents.agents))]

    def earned() -> float:
        played = play(env, policies(), episodes=4, seed=999)
        return float(np.mean(list(played.return_sum.values())) / played.episodes)

    frozen = earned()
    for number in range(8):
        sampled, _ = rollout(env, policies(), steps=40, seed=number, with_state=False)
        learner.update(RoundInput(number, 0, 1, groups, [sampled]))
    trained = earned()
    chance = np.mean(episode_returns(env, CONTROLLERS["random"], 4, 999))
    assert chance < 0.05 and frozen < 0.1 and trained > 0.25, (chance, frozen, trained)
