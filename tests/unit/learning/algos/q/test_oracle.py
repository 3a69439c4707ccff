"""Gradients of IQL, VDN and QMIX against one autograd graph of the losses as the papers print them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from marless.core.group import Group
from marless.learning.algos.learner import RoundInput
from marless.learning.algos.off_policy.batches import Batch
from marless.learning.algos.q.learner import QLearner
from marless.learning.nets.layout import GRULayout, MixingLayout
from marless.learning.nets.model import ModelSpec
from tests.unit.learning.algos import rounds

TEAM = (Group("s", ("s",)), Group("x", ("c", "a")), Group("b", ("b",)), Group("d", ("d",)))
WALKERS = TEAM[1:]
EPISODES = {"replay": {"unit": "episodes"}}
GRU = ModelSpec.model_validate({"hidden": (7, 5), "recurrent": "gru"})


def learner(name: str, model: ModelSpec = rounds.MODEL, **settings: object) -> QLearner:
    """With target nets that differ from the nets in training."""
    groups = WALKERS if name == "iql" else TEAM
    settings |= {"embed": 4, "hypernet": 6} if name == "qmix" else {}
    made = rounds.learner(name, rounds.DISCRETE, groups, model=model, warmup=0, batch=6, **settings)
    assert isinstance(made, QLearner)
    for state in made.names(groups):
        if state != made._replay_name:
            (part,) = made._parts(state)
            for key in ("flat", "target"):
                tensor = part.bank.row(state)[key]
                noise = np.random.default_rng([len(key), *state.encode()]).normal(size=tensor.shape)
                tensor += torch.from_numpy(0.3 * noise).float()
    return made


def inputs(name: str, pooling: str = "pooled") -> RoundInput:
    groups = WALKERS if name == "iql" else TEAM
    trajectories = [rounds.trajectory(rounds.DISCRETE, 7), rounds.trajectory(rounds.DISCRETE, 8)]
    return RoundInput(0, 0, 11, groups, trajectories, pooling)


def drawn(made: QLearner, given: RoundInput) -> Batch:
    """What the first gradient step draws."""
    made._remember(given)
    [batch] = rounds.draws(made, given, made._count(given))
    return batch


def perceptron(layout, flat_D: Tensor, x_IM: Tensor) -> Tensor:
    for i, (span, shape) in enumerate(zip(layout.spans, layout.shapes, strict=True)):
        x_IM = flat_D[span].view(shape) @ x_IM
        if i < len(layout.shapes) - 1:
            x_IM = torch.cat([torch.tanh(x_IM), torch.ones(1, x_IM.shape[1])])
    return x_IM


def remembering(layout: GRULayout, flat_D: Tensor, x_IM: Tensor, alive_TE: Tensor) -> Tensor:
    """torch's own cell, over whole episodes side by side; an agent that comes back remembers nothing."""
    steps = len(alive_TE)
    *below, gates, memory, last = layout.shapes
    parts, start = [], 0
    for rows, columns in layout.shapes:
        parts.append(flat_D[start : start + rows * columns].view(rows, columns))
        start += rows * columns
    for matrix, _ in zip(parts, below, strict=False):
        x_IM = torch.cat([torch.tanh(matrix @ x_IM), torch.ones(1, x_IM.shape[1])])
    gates_in, gates_back, output = parts[len(below) :]
    assert (gates, memory, last) == (gates_in.shape, gates_back.shape, output.shape)
    columns = x_IM.shape[1] // steps
    hidden = torch.zeros(columns, memory[1] - 1)
    outputs = []
    for t in range(steps):
        if t:
            hidden = hidden * (1 - alive_TE[t] * (1 - alive_TE[t - 1])).unsqueeze(1)
        x = x_IM[:-1, t * columns : (t + 1) * columns].T
        hidden = torch.gru_cell(
            x,
            hidden,
            gates_in[:, :-1],
            gates_back[:, :-1],
            gates_in[:, -1].contiguous(),
            gates_back[:, -1].contiguous(),
        )
        outputs.append(output @ torch.cat([hidden.T, torch.ones(1, columns)]))
    return torch.cat(outputs, dim=1)


class Oracle:
    """Everything in one graph, agent by agent, sample by sample."""

    def __init__(self, made: QLearner, given: RoundInput, batch: Batch, mixing: str) -> None:
        self.made, self.batch, self.config, self.mixing = made, batch, made._config, mixing
        self.owner = {agent: group.policy for group in given.groups for agent in group.agents}
        names = list(dict.fromkeys([*self.owner.values(), *(["mixer"] if mixing == "monotone" else [])]))
        rows: dict[str, Mapping[str, Tensor]] = {n: made._parts(n)[0].bank.row(n) for n in names}
        self.flat = {n: row["flat"].clone().requires_grad_() for n, row in rows.items()}
        self.target = {n: row["target"].clone() for n, row in rows.items()}
        self.agents = [
            (index, i, agent)
            for index, k in enumerate(made._scope.classes)
            for i, agent in enumerate(made._spaces.classes[k].agents)
        ]

    def q(self, index: int, i: int, flat_D: Tensor) -> Tensor:
        """[A, F] of one agent."""
        layout = self.made._nets[self.made._scope.classes[index]].codec.layout
        x_IF = self.batch.classes[index].features[i]
        if isinstance(layout, GRULayout):
            alive_TE = self.batch.classes[index].alive[i].view(self.batch.steps + 1, -1)
            output = remembering(layout, flat_D, x_IF, alive_TE)
        else:
            output = perceptron(layout, flat_D, x_IF)
        return output[:1] + output[1:] - output[1:].mean(0, keepdim=True) if self.config.dueling else output

    def values(self, index: int, i: int, agent: str) -> tuple[Tensor, Tensor]:
        """Of the actions taken, and of the best after them, [M] each."""
        mine, after = self.batch.classes[index], self.batch.width
        online, target = (self.q(index, i, nets[self.owner[agent]]) for nets in (self.flat, self.target))
        taken = online[mine.action[i, 0], torch.arange(mine.action.shape[2])]
        ahead = target.clone() if not self.config.double else online.detach().clone()
        if mine.legal is not None:
            ahead[~mine.legal[i]] = -torch.inf
        best = ahead[:, after:].argmax(0)
        return taken, target[best, after + torch.arange(len(best))]

    def wanted(self, gains_row: tuple[Tensor, Tensor], after: Tensor, alive: Tensor | None = None) -> Tensor:
        """Targets [M] by looking forward from each step; of an agent, as long as it is `alive`, [F]."""
        reward, discount = (x.tolist() for x in gains_row)
        steps, width, follows = self.batch.steps, self.batch.width, self.batch.follows
        if alive is not None:
            follows = follows & (alive[width:].view(steps, width) > 0)
        follows = follows.tolist()
        after, found = after.tolist(), {}
        for t in reversed(range(steps)):
            for e in range(width):
                m, more = t * width + e, follows[t][e]
                ahead = after[m]
                if more and self.config.td_lambda is not None:
                    ahead = (1 - self.config.td_lambda) * ahead + self.config.td_lambda * found[t + 1, e]
                found[t, e] = reward[m] + discount[m] * ahead
        if self.config.td_lambda is None and steps > 1:
            for t in range(steps):
                for e in range(width):
                    total, scale, at = 0.0, 1.0, t
                    for _ in range(self.config.n_step):
                        total += scale * reward[at * width + e]
                        scale *= discount[at * width + e]
                        last = at
                        if not follows[at][e]:
                            break
                        at += 1
                    found[t, e] = total + scale * after[last * width + e]
        return torch.tensor([found[t, e] for t in range(steps) for e in range(width)])

    def count(self, index: int, i: int) -> Tensor:
        alive = self.batch.classes[index].alive
        now = torch.ones(self.batch.steps * self.batch.width) if alive is None else alive[i, : -self.batch.width]
        return now if self.batch.valid is None else now * self.batch.valid

    def loss(self) -> Tensor:
        values = {agent: self.values(index, i, agent) for index, i, agent in self.agents}
        importance = 1.0 if self.batch.importance is None else self.batch.importance
        if self.mixing == "none":
            return self.independent(values, importance)
        now, then = ({} for _ in "12")
        for index, i, agent in self.agents:
            alive = self.batch.classes[index].alive
            gone = (1.0, 1.0) if alive is None else (alive[i, : -self.batch.width], alive[i, self.batch.width :])
            now[agent], then[agent] = (value * here for value, here in zip(values[agent], gone, strict=True))
        gains = self.batch.gains[0]
        wanted = self.wanted((gains.reward[0], gains.discount[0]), self.mixed(then, self.target, after=True))
        anyone = torch.stack([self.count(index, i) for index, i, _ in self.agents]).amax(0)
        error = self.mixed(now, self.flat, after=False) - wanted
        return (self.penalty(error) * anyone * importance).sum() / anyone.sum()

    def independent(self, values: Mapping[str, tuple[Tensor, Tensor]], importance: Tensor | float) -> Tensor:
        total = torch.zeros(())
        for policy in dict.fromkeys(self.owner.values()):
            terms, counts = [], []
            for index, i, agent in self.agents:
                if self.owner[agent] == policy:
                    gains = self.batch.gains[index]
                    error = values[agent][0] - self.wanted(
                        (gains.reward[i], gains.discount[i]), values[agent][1], self.batch.classes[index].alive[i]
                    )
                    terms.append(self.penalty(error) * self.count(index, i) * importance)
                    counts.append(self.count(index, i).sum())
            total = total + torch.stack(terms).sum() / torch.stack(counts).sum()
        return total

    def mixed(self, values: Mapping[str, Tensor], nets: Mapping[str, Tensor], *, after: bool) -> Tensor:
        q_NM = torch.stack([values[agent] for _, _, agent in self.agents])
        if self.mixing == "sum":
            return q_NM.sum(0)
        width, layout = self.batch.width, self.made._mixer.codec.layout
        assert isinstance(layout, MixingLayout)
        state = self.batch.state[0][:, width:] if after else self.batch.state[0][:, :-width]
        made = {}
        for name, net in layout.nets.items():
            x, flat_D = state, nets["mixer"][layout.spans[name]]
            for i, (span, shape) in enumerate(zip(net.spans, net.shapes, strict=True)):
                x = flat_D[span].view(shape) @ x
                if i < len(net.shapes) - 1:
                    x = torch.cat([torch.relu(x), torch.ones(1, x.shape[1])])
            made[name] = x
        weight1 = made["weight1"].view(len(q_NM), layout.embed, -1).abs()
        hidden = functional.elu((q_NM.unsqueeze(1) * weight1).sum(0) + made["bias1"])
        return (hidden * made["weight2"].abs()).sum(0) + made["bias2"][0]

    def penalty(self, error: Tensor) -> Tensor:
        huber = self.config.huber
        return (
            0.5 * error.square()
            if huber is None
            else huber * functional.huber_loss(error / huber, torch.zeros_like(error), reduction="none") * huber
        )


CASES = {
    "plain": {},
    "single": {"double": False},
    "dueling": {"dueling": True, "huber": 0.5},
    "n steps": {"n_step": 3},
    "prioritised": {"replay": {"draw": "prioritised", "beta": 1.0}},
    "episodes": EPISODES,
    "episodes, n steps": EPISODES | {"n_step": 3, "last_action": True},
    "episodes, λ": EPISODES | {"td_lambda": 0.7, "dueling": True},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("name", "mixing"), [("iql", "none"), ("vdn", "sum"), ("qmix", "monotone")])
def test_gradients_are_those_of_one_graph(name, mixing, case):
    check(name, mixing, rounds.MODEL, CASES[case])


@pytest.mark.parametrize(("name", "mixing"), [("iql", "none"), ("qmix", "monotone")])
def test_gradients_of_nets_with_memory_are_those_of_one_graph(name, mixing):
    check(name, mixing, GRU.model_copy(update={"agent_id": True}), EPISODES | {"td_lambda": 0.5})


def check(name: str, mixing: str, model: ModelSpec, settings: Mapping[str, object]) -> None:
    given = inputs(name)
    made, twin = (learner(name, model, **settings) for _ in "12")
    for each in (made, twin):
        each._remember(given)
        seen = each._replay.draw(np.random.default_rng(0), 200).row
        each._replay.reprioritise(seen, np.random.default_rng(1).exponential(size=200))
    oracle = Oracle(twin, given, drawn(twin, given), mixing)
    importance = oracle.batch.importance
    assert importance is None or importance.min() < 0.9
    oracle.loss().backward()
    gradients = made.gradients(given).gradients
    assert gradients.keys() == oracle.flat.keys()
    for policy, flat_D in oracle.flat.items():
        prefix = "mixer" if policy == "mixer" else "policy"
        expected = flat_D.grad.numpy()
        largest = np.abs(expected).max()
        assert largest > 1e-4
        np.testing.assert_allclose(gradients[policy][prefix], expected, rtol=1e-3, atol=1e-5 * largest)
