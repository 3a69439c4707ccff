"""Gradients of PQN and PQN-VDN against one autograd graph of their losses, agent by agent and sample by sample."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from marless.core.group import Group
from marless.learning.algos.training.rewards import RewardMoments, rewarded, team_rewards
from marless.learning.algos.training.table import tabulate
from marless.learning.nets.layout import GRULayout
from marless.learning.nets.model import ModelSpec
from tests.unit.learning.algos import rounds

WALKERS = (Group("x", ("c", "a")), Group("b", ("b",)), Group("d", ("d",)))
TEAM = (Group("s", ("s",)), *WALKERS)
GAMMA, LAMBDA = 0.9, 0.7
MODELS = {
    "plain": rounds.MODEL,
    "gru": ModelSpec.model_validate({"hidden": (7, 5), "recurrent": "gru"}),
}
TRAJECTORIES = [rounds.trajectory(rounds.DISCRETE, 7), rounds.trajectory(rounds.DISCRETE, 8)]


def moved(made, groups):
    """Weights that differ from their initial ones, which are too small to tell actions apart."""
    for group in groups:
        flat = made._nets[made._class_of(group.policy)][1].row(group.policy)["flat"]
        noise = np.random.default_rng([*group.policy.encode()]).normal(size=flat.shape)
        flat += torch.from_numpy(0.3 * noise).float()
    return made


def net(layout, flat_D: Tensor):
    """A function of an input and a hidden state: Q values [A], and the next hidden state."""
    parts, start = [], 0
    for rows, columns in layout.shapes:
        parts.append(flat_D[start : start + rows * columns].view(rows, columns))
        start += rows * columns

    def bound(x: Tensor) -> Tensor:
        return torch.cat([x, torch.ones(1)])

    def step(x: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        below = parts[:-3] if isinstance(layout, GRULayout) else parts[:-1]
        for matrix in below:
            x = bound(torch.tanh(matrix @ x))
        if isinstance(layout, GRULayout):
            gates, back = parts[-3:-1]
            biases = gates[:, -1].contiguous(), back[:, -1].contiguous()
            (hidden,) = torch.gru_cell(x[None, :-1], hidden[None], gates[:, :-1], back[:, :-1], *biases)
            x = bound(hidden)
        return parts[-1] @ x, hidden

    return step


def values(made, k: int, flats: dict[str, Tensor], owner: dict[str, str]):
    """Per agent of a class: Q of what was done [T, B], the best legal Q [T, B], and that of bootstrap rows, by t·B + b.

    Also who is there, [N, T, B].
    """
    table, agents = tabulate(TRAJECTORIES, k, False), rounds.DISCRETE.classes[k].agents
    _, steps, copies = table.reward.shape
    layout = made._nets[k][0].layout
    alive = table.alive.reshape(-1, steps, copies) > 0
    chosen, best = (torch.zeros(len(agents), steps, copies) for _ in range(2))
    boots = []
    for n, agent in enumerate(agents):
        step, found = net(layout, flats[owner[agent]]), {}
        for b in range(copies):
            hidden = torch.zeros(layout.memory)
            for t in range(steps):
                s = t * copies + b
                if t and (table.cut[t - 1, b] or (alive[n, t, b] and not alive[n, t - 1, b])):
                    hidden = torch.zeros_like(hidden)
                q_A, hidden = step(torch.from_numpy(table.obs[n, :, s]), hidden)
                chosen[n, t, b] = q_A[int(table.action[n, 0, s])]
                best[n, t, b] = legal_best(q_A, table.legal[n, :, s])
                for row in np.flatnonzero(table.boot_index == s):
                    q_A, _ = step(torch.from_numpy(table.boot_obs[n, :, row]), hidden)
                    found[s] = legal_best(q_A, table.boot_legal[n, :, row])
        boots.append(found)
    return table, alive, chosen, best.detach(), boots


def legal_best(q_A: Tensor, legal_A) -> Tensor:
    legal = [float(q) for q, allowed in zip(q_A.detach(), legal_A, strict=True) if allowed]
    return torch.tensor(max(legal) if legal else float(q_A[0]))


def returns(reward, over, cut, best, boots, goes_on, centre, scale):
    """λ-returns [T, B] of one agent or team by their definition, from the last step to the first."""
    steps, copies = cut.shape
    found = np.zeros((steps, copies))
    for b in range(copies):
        for t in reversed(range(steps)):
            discount = 0.0 if over[t, b] else GAMMA
            gained = (reward[t, b] + (discount - 1) * centre) * scale
            if cut[t, b] or t == steps - 1:
                later = boots.get(t * copies + b, 0.0)
            else:
                later = best[t + 1, b]
                if goes_on[t + 1, b]:
                    later = (1 - LAMBDA) * later + LAMBDA * found[t + 1, b]
            found[t, b] = gained + discount * float(later)
    return torch.from_numpy(found).float()


@pytest.mark.parametrize("nets", MODELS)
def test_gradients_of_independent_agents(nets):
    made = moved(
        rounds.learner("pqn", rounds.DISCRETE, WALKERS, model=MODELS[nets], gamma=GAMMA, td_lambda=LAMBDA), WALKERS
    )
    owner = {agent: group.policy for group in WALKERS for agent in group.agents}
    flats = {g.policy: made._nets[1][1].row(g.policy)["flat"].clone().requires_grad_() for g in WALKERS}
    table, alive, chosen, best, boots = values(made, 1, flats, owner)
    moments = RewardMoments((1,), GAMMA)
    moments.add(TRAJECTORIES)
    losses = {group.policy: [] for group in WALKERS}
    for n, agent in enumerate(rounds.AGENTS):
        target_TB = returns(
            table.reward[n],
            table.terminated[n],
            table.cut,
            best[n],
            boots[n],
            alive[n],
            moments.centre(0),
            moments.scale(0),
        )
        losses[owner[agent]].append((0.5 * (chosen[n] - target_TB) ** 2)[torch.from_numpy(alive[n])])
    sum(torch.cat(each).mean() for each in losses.values()).backward()
    found = made.gradients(rounds.inputs(WALKERS, TRAJECTORIES)).gradients
    for group in WALKERS:
        expected = flats[group.policy].grad
        np.testing.assert_allclose(found[group.policy]["policy"], expected, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("nets", MODELS)
def test_gradients_of_a_team(nets):
    made = moved(
        rounds.learner("pqn_vdn", rounds.DISCRETE, TEAM, model=MODELS[nets], gamma=GAMMA, td_lambda=LAMBDA), TEAM
    )
    owner = {agent: group.policy for group in TEAM for agent in group.agents}
    flats = {
        g.policy: made._nets[made._class_of(g.policy)][1].row(g.policy)["flat"].clone().requires_grad_() for g in TEAM
    }
    classes = [values(made, k, flats, owner) for k in (0, 1)]
    steps, copies = classes[0][0].cut.shape
    team, best, boots = torch.zeros(steps, copies), torch.zeros(steps, copies), {}
    over, anyone = np.ones((steps, copies), np.bool_), np.zeros((steps, copies), np.bool_)
    for table, alive, chosen, own_best, own_boots in classes:
        there = torch.from_numpy(alive)
        team, best = team + (chosen * there).sum(0), best + (own_best * there).sum(0)
        over, anyone = over & (table.terminated | ~alive).all(axis=0), anyone | alive.any(axis=0)
        for n, found in enumerate(own_boots):
            for s, value in found.items():
                stays = alive[n].flat[s] and not table.terminated[n].flat[s]
                boots[s] = boots.get(s, 0.0) + float(value) * stays
    config = made._config
    reward = np.concatenate([team_rewards(each, rounds.DISCRETE, "sum") for each in TRAJECTORIES], axis=1)
    moments = RewardMoments((0, 1), GAMMA, team=True)
    moments.add([rewarded(each, rounds.DISCRETE, config.reward_rule) for each in TRAJECTORIES])
    everyone = np.ones_like(over)
    target_TB = returns(reward, over, classes[0][0].cut, best, boots, everyone, moments.centre(0), moments.scale(0))
    (0.5 * (team - target_TB) ** 2)[torch.from_numpy(anyone)].mean().backward()
    found = made.gradients(rounds.inputs(TEAM, TRAJECTORIES)).gradients
    for group in TEAM:
        expected = flats[group.policy].grad
        np.testing.assert_allclose(found[group.policy]["policy"], expected, rtol=1e-4, atol=2e-6)
