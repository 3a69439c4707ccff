"""Every algorithm with agents that act in turns, where the right returns and values are known."""

from __future__ import annotations

import pytest
import torch

from marless.learning.algos.ppo.learner import PPOLearner
from marless.learning.algos.ppo.post_process import critic_passes, estimate
from marless.learning.algos.training.round_tensors import upload
from marless.learning.algos.training.segments import Segments
from marless.learning.algos.training.table import tabulate
from marless.learning.data.rollout import rollout
from marless.learning.nets.acting import ActingPolicies
from marless.learning.nets.model import ModelSpec
from tests.unit.learning.algos import rounds
from tests.unit.learning.algos.solving import Trained
from tests.unit.learning.envs.turns import Alternating, Blinking, Late, copies

GAMMA = 0.9
PPO = {"lr": 0.03, "gamma": GAMMA, "minibatches": 2}
Q = {"lr": 0.01, "gamma": GAMMA, "batch": 64, "warmup": 64, "updates": 20, "target_tau": 0.1, "epsilon": 1.0}
DDPG = {"lr": 0.003, "critic_lr": 0.02, "gamma": GAMMA, "target_tau": 0.02, "batch": 64, "warmup": 64, "updates": 20}
PQN = {"lr": 0.02, "gamma": GAMMA, "minibatches": 4, "epochs": 4, "epsilon": 1.0}
SETTINGS = {
    "pqn": PQN,
    "pqn_vdn": PQN,
    "ippo": PPO,
    "mappo": PPO,
    "impact": PPO,
    "iql": Q,
    "vdn": Q,
    "qmix": Q,
    "iddpg": DDPG,
    "maddpg": DDPG,
}
EPISODES = {"replay": {"unit": "episodes"}, "batch": 32}
TARGETS = {
    "one step": {},
    "several steps": {"n_step": 3},
    "prioritised": {"replay": {"draw": "prioritised"}},
    "episodes": EPISODES,
    "lambda": {**EPISODES, "td_lambda": 0.5},
    "memory": EPISODES,
}
SEEDS = (0, 1)
ONE = (0,)
"""For tests of many kinds of targets, which share most of their code."""
MEMORY = ModelSpec.model_validate({"hidden": (16,), "recurrent": "gru"})
NETS = {"plain": ModelSpec.model_validate({"hidden": (16,)}), "memory": MEMORY}


def team(name: str, make, *, seed: int, copied: int = 64, nets: str = "plain", **settings: object) -> Trained:
    return Trained(copies(make, copied), {"name": name} | SETTINGS[name] | settings, seed=seed, model=NETS[nets])


@pytest.mark.parametrize("nets", ["plain", "memory"])
@pytest.mark.parametrize("name", ["ippo", "mappo", "impact"])
def test_what_an_agent_chose_is_paid_while_it_waits(name, nets):
    for seed in SEEDS:
        made = team(name, Alternating, seed=seed, nets=nets)
        made.train(12, 2)
        assert made.greedy(4).return_sum == {"a": 4.0, "b": 4.0}, seed


@pytest.mark.parametrize("targets", list(TARGETS))
@pytest.mark.parametrize("name", ["iql", "vdn", "qmix"])
def test_targets_of_every_kind_reach_the_choice_that_is_paid_later(name, targets):
    for seed in ONE:
        nets = "memory" if targets == "memory" else "plain"
        made = team(name, Alternating, seed=seed, nets=nets, **TARGETS[targets])
        made.train(12, 2)
        assert made.greedy(4).return_sum == {"a": 4.0, "b": 4.0}, seed


@pytest.mark.parametrize("nets", ["plain", "memory"])
@pytest.mark.parametrize("name", ["pqn", "pqn_vdn"])
def test_returns_of_a_round_reach_the_choice_that_is_paid_later(name, nets):
    for seed in SEEDS:
        made = team(name, Alternating, seed=seed, nets=nets)
        made.train(12, 2)
        assert made.greedy(4).return_sum == {"a": 4.0, "b": 4.0}, seed


@pytest.mark.parametrize("name", ["iddpg", "maddpg"])
def test_critics_reach_the_choice_that_is_paid_later(name):
    for seed in ONE:
        made = team(name, Alternating, seed=seed)
        made.train(12, 2)
        assert made.greedy(4).return_sum == {"a": 4.0, "b": 4.0}, seed


@pytest.mark.parametrize("targets", list(TARGETS))
@pytest.mark.parametrize(("make", "value"), [(Blinking, 1 / (1 - GAMMA**2)), (Late, GAMMA / (1 - GAMMA**2))])
def test_q_at_turns_is_that_of_the_chain_of_turns(make, value, targets):
    for seed in ONE:
        nets = "memory" if targets == "memory" else "plain"
        settings = {"reward_normalisation": False, "lr": 0.02, "target_tau": 0.2} | TARGETS[targets]
        if targets in ("episodes", "lambda", "memory"):
            settings["batch"] = 8
        made = team("iql", make, seed=seed, copied=8, nets=nets, **settings)
        made.train(25, make.length)
        assert made.metrics["b"]["value"] == pytest.approx(value, abs=0.1), seed


@pytest.mark.parametrize("advantage", ["gae", "vtrace"])
@pytest.mark.parametrize(("make", "value"), [(Blinking, 1 / (1 - GAMMA**2)), (Late, GAMMA / (1 - GAMMA**2))])
def test_values_at_turns_are_those_of_the_chain_of_turns(make, value, advantage):
    for seed in SEEDS:
        made = team("ippo", make, seed=seed, copied=8, advantage=advantage)
        made.train(25, make.length)
        assert values(made, make) == pytest.approx([10.0, value], abs=0.1), seed


def values(made: Trained, make) -> list[float]:
    """V of both agents in the first step, by their critics."""
    env = copies(make, 1)
    states = [made.state(agent) for agent in env.spaces.agents]
    trajectory, _ = rollout(
        env, [ActingPolicies.from_states(env.spaces.classes[0], states)], steps=2, seed=1, with_state=False
    )
    [(learner, groups)] = made._learners
    assert isinstance(learner, PPOLearner)
    tensors = upload(tabulate([trajectory], 0, False), torch.device("cpu"))
    segments = Segments.of(tensors) if learner._remembers else None
    stacked = learner._stacks(rounds.inputs(groups, [trajectory]), parts=1)
    served = learner._policies.copies([(stack.names, stack.starts) for stack in stacked])
    judges = learner._judges(list(zip(stacked, served, strict=True)), learner._critics.copies)
    passes = critic_passes(judges, learner._seen(tensors), segments)
    return estimate(passes, tensors, segments, learner._config).value[:, 0, 0].tolist()
