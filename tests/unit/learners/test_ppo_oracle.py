"""A whole update against a second implementation: plain loops, torch's autograd, distributions and Adam."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from marless.algos.base import Group, PolicyState
from marless.algos.ppo import PPOConfig
from marless.data.trajectory import Trajectory
from marless.envs.base import AgentClass, Discrete, EnvSpaces
from tests.unit.learners import rounds

SETTINGS = {
    "epochs": 2,
    "minibatches": 3,
    "lr": 3e-3,
    "value_normalisation": False,
    "entropy": 0.02,
    "max_grad_norm": 0.4,
    "value_clip": 0.2,
}
PAIRS = (Group("x", ("a", "c")), Group("y", ("b",)), Group("z", ("d",)))


class _Net:
    def __init__(self, prefix: str, state: PolicyState) -> None:
        source = state.acting if prefix == "policy" else state.learning
        names = [f"{prefix}.{i}.{part}" for i in range(3) for part in ("weight", "bias")]
        names += [f"{prefix}.free"] * (f"{prefix}.free" in source)
        self.parameters = {name: torch.tensor(source[name]).requires_grad_() for name in names}
        self.prefix = prefix
        self.adam = torch.optim.Adam(self.parameters.values(), lr=3e-3, eps=1e-5)

    def __call__(self, x: Tensor) -> Tensor:
        for i in range(3):
            weight, bias = (self.parameters[f"{self.prefix}.{i}.{part}"] for part in ("weight", "bias"))
            x = torch.nn.functional.linear(x, weight, bias)
            x = torch.tanh(x) if i < 2 else x
        return x

    def step(self, loss: Tensor) -> None:
        self.adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters.values(), 0.4)
        self.adam.step()


@dataclass(frozen=True)
class _Oracle:
    """One agent class of one round, trajectories side by side."""

    config: PPOConfig
    spaces: EnvSpaces
    agents: AgentClass
    data: dict[str, Tensor]
    """As in a trajectory, with the class's index left out of the names, except `boots`: {(t, b): row}."""
    boots: dict[tuple[int, int], int]

    def advantages(self, agent: int, values: Tensor, boot_values: Tensor) -> Tensor:
        """[T, B], by the table in `marless.data.trajectory`."""
        steps, batch = self.data["cut"].shape
        result = torch.zeros(steps, batch)
        for b in range(batch):
            ahead = 0.0
            for t in reversed(range(steps)):
                cut, dead = bool(self.data["cut"][t, b]), bool(self.data["terminated"][t, agent, b])
                after = 0.0 if dead else None
                if after is None and cut:
                    after = float(boot_values[self.boots[t, b]]) if (t, b) in self.boots else 0.0
                if after is None:
                    after = float(values[t + 1, b])
                delta = float(self.data["reward"][t, agent, b]) + self.config.gamma * after - float(values[t, b])
                ahead = delta + (0.0 if cut or dead else self.config.gamma * self.config.gae_lambda * ahead)
                result[t, b] = ahead
        return result

    def of(self, name: str, members: Sequence[int]) -> Tensor:
        """Rows of the members one after another, [m · T · B, ...]."""
        return torch.cat([self.data[name][:, i].flatten(0, 1) for i in members])

    def batches(self, samples: int) -> list[Tensor]:
        rng = np.random.default_rng([11, 0])
        orders = [torch.from_numpy(rng.permutation(samples)) for _ in range(self.config.epochs)]
        count = self.config.minibatches
        bounds = [samples * i // count for i in range(count + 1)]
        return [order[a:b] for order in orders for a, b in pairwise(bounds)]

    def train_policy(self, net: _Net, members: Sequence[int], advantage: Tensor) -> None:
        alive = self.of("alive", members).float() if self.spaces.deaths else torch.ones_like(advantage)
        mean = (advantage * alive).sum() / alive.sum()
        std = (((advantage - mean) ** 2 * alive).sum() / alive.sum()).sqrt()
        advantage = (advantage - mean) / (std + 1e-8)
        obs, action, old = (self.of(name, members) for name in ("obs", "action", "log_prob"))
        for rows in self.batches(len(advantage)):
            output = net(obs[rows])
            if isinstance(self.agents.action, Discrete):
                masked = output.masked_fill(~self.of("mask", members)[rows], -1e9)
                law: torch.distributions.Distribution = torch.distributions.Categorical(logits=masked)
                log_prob, entropy = law.log_prob(action[rows]), law.entropy()
            else:
                law = torch.distributions.Normal(output, net.parameters["policy.free"].exp().expand_as(output))
                log_prob, entropy = law.log_prob(action[rows]).sum(1), law.entropy().sum(1)
            ratio = (log_prob - old[rows]).exp()
            gain = torch.minimum(ratio * advantage[rows], ratio.clamp(0.8, 1.2) * advantage[rows])
            weight = alive[rows] / alive[rows].sum()
            net.step(-((gain + 0.02 * entropy) * weight).sum())

    def train_critic(self, net: _Net, inputs: Tensor, returns: Tensor, old: Tensor, alive: Tensor) -> None:
        for rows in self.batches(len(inputs)):
            value, low = net(inputs[rows]), old[rows]
            clipped = low + (value - low).clamp(-0.2, 0.2)
            loss = 0.5 * torch.maximum((value - returns[rows]) ** 2, (clipped - returns[rows]) ** 2)
            net.step((loss * alive[rows]).sum() / alive[rows].sum())


def _oracle(config: PPOConfig, spaces: EnvSpaces, trajectories: Sequence[Trajectory]) -> _Oracle:
    agents = spaces.class_of("a")
    suffix = f"/{spaces.classes.index(agents)}"
    names = [name for name in trajectories[0].arrays if name.endswith(suffix) or name in ("cut", "state")]
    data = {}
    for name in names:
        axis = 1 if "boot" in name or name in ("cut", "state") else 2
        parts = [torch.from_numpy(np.asarray(t[name])) for t in trajectories]
        data[name.removesuffix(suffix)] = torch.cat(parts, dim=axis)
    data["boot_state"] = torch.cat([torch.from_numpy(np.asarray(t["boot_state"])) for t in trajectories])
    boots, offset = {}, 0
    for t in trajectories:
        for index in t["boot_index"].tolist():
            boots[index // t.batch, offset + index % t.batch] = len(boots)
        offset += t.batch
    return _Oracle(config, spaces, agents, data, boots)


@pytest.mark.parametrize("spaces", [rounds.DISCRETE, rounds.CONTINUOUS], ids=["discrete", "continuous"])
@pytest.mark.parametrize("critic", ["own", "central", "per_agent"])
def test_update_is_the_oracles(spaces: EnvSpaces, critic: str) -> None:
    name = "ippo" if critic == "own" else "mappo"
    settings = SETTINGS | ({} if critic == "own" else {"critic": critic})
    learner = rounds.learner(name, spaces, PAIRS, **settings)
    before = {state: learner.state(state) for state in learner.names(PAIRS)}
    trajectories = [rounds.trajectory(spaces, seed, batch=batch) for seed, batch in ((1, 5), (2, 3))]
    learner.update(rounds.inputs(PAIRS, trajectories))

    config = PPOConfig.model_validate({"name": name, **SETTINGS})
    oracle = _oracle(config, spaces, trajectories)
    steps, batch = oracle.data["cut"].shape
    members = {group.policy: [rounds.AGENTS.index(agent) for agent in group.agents] for group in PAIRS}
    critics = {state: _Net("critic", before[state]) for state in before if critic != "central" or "critic" in state}
    values, advantages = torch.zeros(4, steps, batch), torch.zeros(4, steps, batch)
    for policy, agents in members.items():
        for i in agents:
            net = critics[policy if critic != "central" else "critic.walker"]
            column = i if critic == "central" else 0
            with torch.no_grad():
                seen = oracle.data["obs"][:, i] if critic == "own" else oracle.data["state"]
                boots = oracle.data["boot_obs"][i] if critic == "own" else oracle.data["boot_state"]
                values[i], boot_values = net(seen)[..., column], net(boots)[:, column]
            advantages[i] = oracle.advantages(i, values[i], boot_values)
    alive = oracle.data["alive"].float() if spaces.deaths else torch.ones(steps, 4, batch)
    if critic == "central":
        table = [x.flatten(1).T for x in (values + advantages, values, alive.transpose(0, 1))]
        oracle.train_critic(critics["critic.walker"], oracle.data["state"].flatten(0, 1), *table)
    for policy, agents in members.items():
        net = _Net("policy", before[policy])
        oracle.train_policy(net, agents, torch.cat([advantages[i].flatten() for i in agents]))
        state = learner.state(policy)
        for key, parameter in net.parameters.items():
            np.testing.assert_allclose(state.acting[key], parameter.detach(), rtol=1e-4, atol=2e-5, err_msg=key)
        if critic != "central":
            table = [torch.cat([x[i].flatten() for i in agents])[:, None] for x in (values + advantages, values)]
            lives = torch.cat([alive[:, i].flatten() for i in agents])[:, None]
            seen = oracle.data["state"].flatten(0, 1).repeat(len(agents), 1)
            oracle.train_critic(critics[policy], oracle.of("obs", agents) if critic == "own" else seen, *table, lives)
    for name, net in critics.items():
        for key, parameter in net.parameters.items():
            learned = learner.state(name).learning[key]
            np.testing.assert_allclose(learned, parameter.detach(), rtol=1e-4, atol=2e-5, err_msg=f"{name} {key}")
