"""A whole update against a second implementation: plain loops, torch's autograd, distributions, GRU cell and Adam."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from marless.core.group import Group
from marless.core.state import PolicyState
from marless.learning.algos.ppo.algorithms import ImpactConfig, PPOConfig
from marless.learning.data.trajectory import Trajectory
from marless.learning.envs.base import AgentClass, Discrete, EnvSpaces
from tests.unit.learning.algos import rounds

STEPS = 6
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
    """A perceptron of three layers; `first` is for nets with memory."""

    names: tuple[str, ...] = ("0", "1", "2")

    def __init__(self, prefix: str, state: PolicyState) -> None:
        source = state.acting if prefix == "policy" else state.learning
        keys = [f"{prefix}.{name}.{part}" for name in self.names for part in ("weight", "bias")]
        keys += [f"{prefix}.free"] * (f"{prefix}.free" in source)
        self.parameters = {key: torch.tensor(source[key]).requires_grad_() for key in keys}
        self.prefix = prefix
        self.adam = torch.optim.Adam(self.parameters.values(), lr=3e-3, eps=1e-5)

    def layer(self, name: str) -> tuple[Tensor, Tensor]:
        weight, bias = (self.parameters[f"{self.prefix}.{name}.{part}"] for part in ("weight", "bias"))
        return weight, bias

    def __call__(self, x: Tensor, first: Tensor) -> Tensor:
        """Outputs [samples, K] of inputs [samples, I]."""
        for i in range(3):
            x = torch.nn.functional.linear(x, *self.layer(str(i)))
            x = torch.tanh(x) if i < 2 else x
        return x

    def step(self, loss: Tensor) -> None:
        self.adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters.values(), 0.4)
        self.adam.step()

    def after(self, seen: Tensor, first: Tensor, boots: Mapping[tuple[int, int], int], boot_seen: Tensor) -> Tensor:
        """Outputs [K, outputs] at the bootstrap rows."""
        return self(boot_seen, first)


class _Memory(_Net):
    """A dense layer, a GRU and an output layer, one step after another."""

    names = ("0", "1", "1.memory", "2")

    def hidden(self, x_TBI: Tensor, first_TB: Tensor) -> Tensor:
        """[T, B, H] after each step."""
        x_TBI = torch.tanh(torch.nn.functional.linear(x_TBI, *self.layer("0")))
        memory, seen = x_TBI.new_zeros(x_TBI.shape[1], 8), []
        for x_BI, first_B in zip(x_TBI, first_TB, strict=True):
            memory = self._cell(x_BI, memory.masked_fill(first_B[:, None], 0.0))
            seen.append(memory)
        return torch.stack(seen)

    def _cell(self, x: Tensor, memory: Tensor) -> Tensor:
        (inputs, bias), (memories, memory_bias) = self.layer("1"), self.layer("1.memory")
        return torch.gru_cell(x, memory, inputs, memories, bias, memory_bias)

    def __call__(self, x: Tensor, first: Tensor) -> Tensor:
        """Of samples in time-major order: every copy starts with `first`."""
        hidden = self.hidden(x.view(STEPS, -1, x.shape[1]), first.view(STEPS, -1))
        return torch.nn.functional.linear(hidden.flatten(0, 1), *self.layer("2"))

    def after(self, seen: Tensor, first: Tensor, boots: Mapping[tuple[int, int], int], boot_seen: Tensor) -> Tensor:
        """One more step from what was remembered where an episode was cut."""
        hidden = self.hidden(seen, first)
        memory = torch.stack([hidden[at] for at in boots])
        x = torch.tanh(torch.nn.functional.linear(boot_seen, *self.layer("0")))
        return torch.nn.functional.linear(self._cell(x, memory), *self.layer("2"))


@dataclass(frozen=True)
class _Oracle:
    """One agent class of one round, trajectories side by side."""

    config: PPOConfig | ImpactConfig
    spaces: EnvSpaces
    agents: AgentClass
    data: dict[str, Tensor]
    """As in a trajectory, with the class's index left out of the names, except `boots`: {(t, b): row}."""
    boots: dict[tuple[int, int], int]

    def ratio(self, agent: int, net: _Net) -> Tensor:
        """π/μ of what an agent did, [T, B]; 1 where it is dead."""
        steps, batch = self.data["cut"].shape
        rows = torch.arange(steps * batch)
        with torch.no_grad():
            log_prob, _ = self.law(net, [agent], rows)
        ratio = (log_prob - self.of("log_prob", [agent])).exp().view(steps, batch)
        return torch.where(self.data["alive"][:, agent], ratio, 1.0) if self.spaces.deaths else ratio

    def law(self, net: _Net, members: Sequence[int], rows: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the actions in these rows, and entropies."""
        obs, action = self.of("obs", members), self.of("action", members)
        output = net(obs[rows], self.first_of(members)[rows])
        if isinstance(self.agents.action, Discrete):
            masked = output.masked_fill(~self.of("mask", members)[rows], -1e9)
            law = torch.distributions.Categorical(logits=masked)
            return law.log_prob(action[rows]), law.entropy()
        normal = torch.distributions.Normal(output, net.parameters["policy.free"].exp().expand_as(output))
        return normal.log_prob(action[rows]).sum(1), normal.entropy().sum(1)

    def advantages(
        self, agent: int, values: Tensor, boot_values: Tensor, ratio: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """What the returns add to the values, and advantages, [T, B], by the table in `data.trajectory`."""
        steps, batch = self.data["cut"].shape
        result, advantage = torch.zeros(steps, batch), torch.zeros(steps, batch)
        config = self.config
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
                gone = self.spaces.deaths and t + 1 < steps and not self.data["alive"][t + 1, agent, b]
                later = 0.0 if cut or dead or gone else config.gamma * config.gae_lambda * ahead
                likely = 1.0 if ratio is None else float(ratio[t, b])
                ahead = min(likely, config.vtrace_rho) * delta + min(likely, config.vtrace_c) * later
                result[t, b], advantage[t, b] = ahead, delta + later
        return result, advantage

    def of(self, name: str, members: Sequence[int]) -> Tensor:
        """Rows of the members one after another, [m · T · B, ...]."""
        return torch.cat([self.data[name][:, i].flatten(0, 1) for i in members])

    @property
    def first(self) -> Tensor:
        """[T, B]: where an episode starts."""
        return torch.cat([torch.ones_like(self.data["cut"][:1]), self.data["cut"][:-1]])

    def first_of(self, members: Sequence[int]) -> Tensor:
        """[m · T · B]: where an episode starts for each of the members, or it comes back into one."""
        found = [self.first.clone() for _ in members]
        if self.spaces.deaths:
            for first, i in zip(found, members, strict=True):
                alive = self.data["alive"][:, i]
                first[1:] |= alive[1:] & ~alive[:-1]
        return torch.cat([first.flatten() for first in found])

    def batches(self, samples: int, remembers: bool) -> list[Tensor]:
        """Rows of `of`; with memory those of whole segments, time-major."""
        steps, batch = self.data["cut"].shape
        rows_SU = torch.arange(samples).view(-1, steps, batch).transpose(0, 1).reshape(steps, -1)
        rows_SU = rows_SU if remembers else torch.arange(samples).view(1, -1)
        units = rows_SU.shape[1]
        rng = np.random.default_rng([11, 0])
        orders = [torch.from_numpy(rng.permutation(units)) for _ in range(self.config.epochs)]
        count = self.config.minibatches
        bounds = [units * i // count for i in range(count + 1)]
        return [rows_SU[:, order[a:b]].flatten() for order in orders for a, b in pairwise(bounds)]

    def truncated(self, own: Tensor, others: Sequence[Tensor]) -> Tensor:
        """Each ratio, or a constant where the others' or ρ are the limit."""
        assert isinstance(self.config, PPOConfig)
        rho = self.config.truncation_rho
        least = torch.stack([own, *(each.exp() for each in others)]).min(dim=0).values.detach()
        limit = least.clamp(max=rho) if self.config.truncation == "least" else least.clamp(min=rho)
        return torch.where(own <= limit * math.exp(1e-4), own, limit)  # but for rounding, see `truncation`

    def train_policy(self, net: _Net, members: Sequence[int], advantage: Tensor, peers: Sequence[_Net] = ()) -> None:
        alive = self.of("alive", members).float() if self.spaces.deaths else torch.ones_like(advantage)
        mean = (advantage * alive).sum() / alive.sum()
        std = (((advantage - mean) ** 2 * alive).sum() / alive.sum()).sqrt()
        advantage = (advantage - mean) / (std + 1e-8)
        old = self.of("log_prob", members)
        for rows in self.batches(len(advantage), isinstance(net, _Memory)):
            log_prob, entropy = self.law(net, members, rows)
            ratio = (log_prob - old[rows]).exp()
            if isinstance(self.config, PPOConfig) and self.config.truncation != "none":
                ratio = self.truncated(ratio, [self.law(peer, members, rows)[0] - old[rows] for peer in peers])
            clip = float(self.config.clip)  # type: ignore[attr-defined]  # each of these algorithms has it
            gain = torch.minimum(ratio * advantage[rows], ratio.clamp(1 - clip, 1 + clip) * advantage[rows])
            weight = alive[rows] / alive[rows].sum()
            net.step(-((gain + 0.02 * entropy) * weight).sum())

    def train_critic(
        self, net: _Net, first: Tensor, inputs: Tensor, returns: Tensor, old: Tensor, alive: Tensor
    ) -> None:
        for rows in self.batches(len(inputs), isinstance(net, _Memory)):
            value, low = net(inputs[rows], first[rows]), old[rows]
            clipped = low + (value - low).clamp(-0.2, 0.2)
            loss = 0.5 * torch.maximum((value - returns[rows]) ** 2, (clipped - returns[rows]) ** 2)
            net.step((loss * alive[rows]).sum() / alive[rows].sum())


def _oracle(config: PPOConfig | ImpactConfig, spaces: EnvSpaces, trajectories: Sequence[Trajectory]) -> _Oracle:
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


def _trajectories(spaces: EnvSpaces) -> list[Trajectory]:
    return [rounds.trajectory(spaces, seed, steps=STEPS, batch=batch) for seed, batch in ((1, 5), (2, 3))]


@pytest.mark.parametrize("spaces", [rounds.DISCRETE, rounds.CONTINUOUS], ids=["discrete", "continuous"])
@pytest.mark.parametrize("critic", ["own", "central", "per_agent"])
@pytest.mark.parametrize("kind", [_Net, _Memory], ids=["mlp", "gru"])
def test_update_is_the_oracles(spaces: EnvSpaces, critic: str, kind: type[_Net]) -> None:
    check_update(spaces, critic, kind, {})


LIMITS = {"vtrace_rho": 1.5, "vtrace_c": 1.2}
VTRACE = {"advantage": "vtrace", **LIMITS}


@pytest.mark.parametrize("spaces", [rounds.DISCRETE, rounds.CONTINUOUS], ids=["discrete", "continuous"])
@pytest.mark.parametrize("kind", [_Net, _Memory], ids=["mlp", "gru"])
@pytest.mark.parametrize(
    ("critic", "variant"),
    [
        ("own", VTRACE),
        ("central", VTRACE),
        ("own", {"truncation": "least", "truncation_rho": 1.1}),
        ("own", {"truncation": "floor", "truncation_rho": 0.9}),
    ],
    ids=["vtrace", "vtrace-central", "least", "floor"],
)
def test_variants_are_the_oracles(spaces: EnvSpaces, critic: str, kind: type[_Net], variant: dict[str, object]) -> None:
    check_update(spaces, critic, kind, variant)


@pytest.mark.parametrize("spaces", [rounds.DISCRETE, rounds.CONTINUOUS], ids=["discrete", "continuous"])
@pytest.mark.parametrize("kind", [_Net, _Memory], ids=["mlp", "gru"])
def test_impact_is_the_oracles(spaces: EnvSpaces, kind: type[_Net]) -> None:
    check_update(spaces, "own", kind, {"name": "impact", "epochs": 1, "batches": 1, "rho": 1.1, **LIMITS})


def check_update(spaces: EnvSpaces, critic: str, kind: type[_Net], variant: dict[str, object]) -> None:
    """Two learners of other seeds are peers, for variants that have any."""
    name = str(variant.get("name", "ippo" if critic == "own" else "mappo"))
    settings = SETTINGS | {key: value for key, value in variant.items() if key != "name"}
    settings |= {} if critic == "own" else {"critic": critic}
    model = rounds.MODEL.model_copy(update={"recurrent": "gru" if kind is _Memory else "none"})
    learner = rounds.learner(name, spaces, PAIRS, model=model, **settings)
    before = {state: learner.state(state) for state in learner.names(PAIRS) if not state.startswith("batches")}
    trajectories = _trajectories(spaces)
    others = [rounds.learner(name, spaces, PAIRS, model=model, seed=seed, **settings) for seed in (5, 6)]
    peers = [{group.policy: each.state(group.policy) for group in PAIRS} for each in others]
    weights = tuple({policy: state.acting for policy, state in each.items()} for each in peers)
    learner.update(replace(rounds.inputs(PAIRS, trajectories), peers=weights))

    family = ImpactConfig if name == "impact" else PPOConfig
    config = family.model_validate({"name": name, **SETTINGS, **variant})
    oracle = _oracle(config, spaces, trajectories)
    steps, batch = oracle.data["cut"].shape
    members = {group.policy: [rounds.AGENTS.index(agent) for agent in group.agents] for group in PAIRS}
    critics = {state: kind("critic", before[state]) for state in before if critic != "central" or "critic" in state}
    values, corrections, advantages = torch.zeros(3, 4, steps, batch)
    for policy, agents in members.items():
        for i in agents:
            net = critics[policy if critic != "central" else "critic.walker"]
            column = i if critic == "central" else 0
            with torch.no_grad():
                seen = oracle.data["obs"][:, i] if critic == "own" else oracle.data["state"]
                boots = oracle.data["boot_obs"][i] if critic == "own" else oracle.data["boot_state"]
                first = oracle.first if critic == "central" else oracle.first_of([i]).view(steps, batch)
                values[i] = net(seen.flatten(0, 1), first)[:, column].view(steps, batch)
                boot_values = net.after(seen, first, oracle.boots, boots)[:, column]
            ratio = oracle.ratio(i, kind("policy", before[policy])) if config.advantage == "vtrace" else None
            corrections[i], advantages[i] = oracle.advantages(i, values[i], boot_values, ratio)
            if isinstance(config, ImpactConfig) and ratio is not None:  # a new policy is its own target
                advantages[i] = corrections[i]
                old = oracle.data["log_prob"][:, i]
                oracle.data["log_prob"][:, i] = torch.maximum(old + ratio.log(), old - math.log(config.rho))
    alive = oracle.data["alive"].float() if spaces.deaths else torch.ones(steps, 4, batch)
    if critic == "central":
        table = [x.flatten(1).T for x in (values + corrections, values, alive.transpose(0, 1))]
        oracle.train_critic(
            critics["critic.walker"], oracle.first.flatten(), oracle.data["state"].flatten(0, 1), *table
        )
    for policy, agents in members.items():
        net = kind("policy", before[policy])
        others = [kind("policy", each[policy]) for each in peers]
        oracle.train_policy(net, agents, torch.cat([advantages[i].flatten() for i in agents]), others)
        state = learner.state(policy)
        for key, parameter in net.parameters.items():
            np.testing.assert_allclose(state.acting[key], parameter.detach(), rtol=1e-4, atol=2e-5, err_msg=key)
        if critic != "central":
            table = [torch.cat([x[i].flatten() for i in agents])[:, None] for x in (values + corrections, values)]
            lives = torch.cat([alive[:, i].flatten() for i in agents])[:, None]
            seen = oracle.data["state"].flatten(0, 1).repeat(len(agents), 1)
            seen = oracle.of("obs", agents) if critic == "own" else seen
            oracle.train_critic(critics[policy], oracle.first_of(agents), seen, *table, lives)
    for name, net in critics.items():
        for key, parameter in net.parameters.items():
            learned = learner.state(name).learning[key]
            np.testing.assert_allclose(learned, parameter.detach(), rtol=1e-4, atol=2e-5, err_msg=f"{name} {key}")
