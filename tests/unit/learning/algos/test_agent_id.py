"""Agents that share a policy and see the same: with their ids, they can act differently, in every family."""

from __future__ import annotations

import numpy as np
import pytest

from marless.core.group import Group
from marless.jobs.spec import JobSpec
from marless.learning.envs.base import AgentClass, Box, Discrete, EnvSpaces, Frame, Transition
from marless.learning.nets.inputs import Inputs
from marless.learning.nets.model import ModelSpec
from marless.learning.policies.policy import Policy
from tests.unit.learning.algos.solving import Trained, episode_return

AGENTS = ("a", "b")


class Apart:
    """One step; everyone sees 1. The first agent is paid for action 0, or one below 0, the second for the other."""

    def __init__(self, batch: int, *, smooth: bool = False) -> None:
        action = Box((-1.0,), (1.0,)) if smooth else Discrete(2)
        self.spaces = EnvSpaces((AgentClass("agent", AGENTS, 1, action),), 1, 1)
        self.batch = batch

    def reset(self, seed: int) -> Frame:
        return Frame((np.ones((2, self.batch, 1), np.float32),), np.ones((self.batch, 1), np.float32))

    def step(self, actions) -> Transition:
        second = actions[0] == 1 if actions[0].ndim == 2 else actions[0][..., 0] > 0
        paid = (second == np.array([[False], [True]])).astype(np.float32)
        over, frame = np.ones((2, self.batch), bool), self.reset(0)
        return Transition(frame, frame, (paid,), (over,), ~over[0], over[0])

    def close(self) -> None: ...


PPO = {"lr": 0.03, "gamma": 0.95, "minibatches": 2}
Q = {"lr": 0.01, "gamma": 0.95, "batch": 64, "warmup": 64, "updates": 20, "target_tau": 0.1, "epsilon": 1.0}
PQN = {"lr": 0.02, "gamma": 0.95, "minibatches": 4, "epsilon": 1.0}
DDPG = {"lr": 0.01, "critic_lr": 0.03, "target_tau": 0.02, "batch": 64, "warmup": 64, "updates": 20, "noise": 1.0}


@pytest.mark.parametrize(
    ("name", "settings", "model"),
    [
        ("ippo", PPO, {}),
        ("ippo", PPO, {"recurrent": "gru"}),
        pytest.param("mappo", PPO, {}, marks=pytest.mark.slow),
        ("mappo", PPO | {"critic": "per_agent"}, {}),
        ("iql", Q, {}),
        pytest.param("vdn", Q, {}, marks=pytest.mark.slow),
        ("qmix", Q, {}),
        ("pqn", PQN, {"recurrent": "gru"}),
        ("pqn_vdn", PQN, {}),
        pytest.param("maddpg", DDPG, {}, marks=pytest.mark.slow),
        ("iddpg", DDPG, {}),
    ],
    ids=["ippo", "gru", "central", "per_agent", "iql", "vdn", "qmix", "pqn", "pqn_vdn", "maddpg", "iddpg"],
)
def test_a_shared_policy_acts_differently_for_each_agent(name, settings, model):
    nets = ModelSpec.model_validate({"hidden": (16,), "agent_id": True, **model})
    env = Apart(64, smooth=name == "iddpg")
    team = Trained(env, {"name": name} | settings, seed=0, model=nets, groups=[Group("a", AGENTS)])
    assert Inputs.parse(team.state("a").metadata).known == AGENTS
    assert Policy(name="a", agents=AGENTS, version=1, state=team.state("a")).obs_size == 1
    team.train(rounds=12, steps=1)
    assert episode_return(team.greedy()) == 1.0


def test_an_agent_that_is_alone_in_its_class_needs_no_id():
    nets = ModelSpec.model_validate({"agent_id": True})
    assert Inputs.of(AgentClass("one", ("a",), 3, Discrete(2)), nets) == Inputs()


@pytest.mark.parametrize(
    ("groups", "chosen", "ids"),
    [
        ("independent", None, False),
        ("shared", None, True),
        ("shared", False, False),
        ("independent", True, True),
        ({"agent_0": ["agent_0", "agent_1"], "agent_2": ["agent_2"]}, None, True),
        ({f"agent_{i}": [f"agent_{i}"] for i in range(3)}, None, False),
    ],
)
def test_ids_are_inputs_where_agents_share_from_the_start(groups, chosen, ids):
    job = {"env": {"name": "mpe/simple_spread"}, "algorithm": {"name": "ippo"}, "stop": {"rounds": 1}}
    job["sharing"] = {"groups": groups}
    spec = JobSpec.model_validate(job | {"model": {"agent_id": chosen}})
    assert spec.nets.agent_id is ids
    assert spec.model.agent_id is chosen
