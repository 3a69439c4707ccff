"""Gradients of DDPG and SAC, alone and in teams, against one autograd graph of the losses as the papers print them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from marless.core.group import Group
from marless.learning.algos.ddpg import heads
from marless.learning.algos.ddpg.actor_critics import ActorCritics, Actors, Critics, RowNets
from marless.learning.algos.ddpg.algorithms import IDDPGConfig, SACConfig
from marless.learning.algos.ddpg.inputs import CriticInputs, JointInputs, OwnInputs, SampleView, Sizes
from marless.learning.algos.training.policy_batching import Stack, row_stacks
from marless.learning.envs.base import AgentClass, Box, Discrete
from marless.learning.nets.layout import Layout, generator

CPU, SAMPLES, REGULARISATION = torch.device("cpu"), 12, 0.05
SCOUT = AgentClass("scout", ("s", "t"), 3, Discrete(3))
WALKER = AgentClass("walker", ("a", "b", "c"), 2, Box((-1.0, 0.0), (1.0, 2.0)))
PAIR = (Group("x", ("c", "a")), Group("b", ("b",)))


def flat_rows(layout: Layout, nets: int, seed: int) -> Tensor:
    return torch.from_numpy(np.stack([layout.initial(generator(seed + i, "net"), 1.0) for i in range(nets)]))


def drawn_view(agents: AgentClass, seed: int) -> SampleView:
    n, a, draw = len(agents.agents), agents.action.n, torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw)

    features = [torch.cat([normal(n, agents.obs_size, SAMPLES), torch.ones(n, 1, SAMPLES)], dim=1) for _ in range(2)]
    discrete = isinstance(agents.action, Discrete)
    legal = [normal(n, a, SAMPLES) > -0.5 for _ in range(2)] if discrete else [None, None]
    for each in legal:
        if each is not None:
            each[:, 0] = True
    return SampleView(
        now=features[0],
        after=features[1],
        action=torch.nn.functional.one_hot(normal(n, a, SAMPLES).argmax(1), a).float().transpose(1, 2)
        if discrete
        else torch.tanh(normal(n, a, SAMPLES)),
        noise=normal(n, a, SAMPLES),
        noise_after=normal(n, a, SAMPLES),
        reward=normal(n, 1, SAMPLES),
        discount=0.9 * (normal(n, 1, SAMPLES) < 1),
        legal=legal[0],
        legal_after=legal[1],
        alive=(normal(n, 1, SAMPLES) < 1).float(),
        alive_after=(normal(n, 1, SAMPLES) < 1).float(),
        importance=torch.rand(SAMPLES, generator=draw).expand(n, 1, -1),
    )


def mlp(layout: Layout, flat_D: Tensor, x_IM: Tensor) -> Tensor:
    hidden = x_IM
    for i, (span, shape) in enumerate(zip(layout.spans, layout.shapes, strict=True)):
        hidden = flat_D[span].view(shape) @ hidden
        if i < len(layout.shapes) - 1:
            hidden = torch.cat([torch.tanh(hidden), torch.ones(1, hidden.shape[1])])
    return hidden


class _Team:
    """Nets of some classes, as our code has them and as autograd wants them."""

    def __init__(
        self,
        classes: Sequence[AgentClass],
        chosen: Sequence[Stack],
        critic: str,
        *,
        twin: bool,
        straight: bool,
        soft: bool = False,
    ) -> None:
        kind, name = (SACConfig, "sac") if soft else (IDDPGConfig, "iddpg")
        config = kind.model_validate({"name": name, "twin": twin, "straight_through": straight})
        self.classes, self.chosen, self.joint, self.soft = classes, chosen, critic == "joint", soft
        self.heads = [heads.head(each.action, config) for each in classes]
        wide = [2 if soft and isinstance(each.action, Box) else 1 for each in classes]
        self.layouts = [Layout(e.obs_size, (5,), e.action.n * w) for e, w in zip(classes, wide, strict=True)]
        self.log_weights = [torch.linspace(-1.5, -0.5, len(r.names)).unsqueeze(1) for r in chosen]
        self.policies = [flat_rows(lay, len(r.names), 7) for lay, r in zip(self.layouts, chosen, strict=True)]
        self.policy_targets = [flat_rows(lay, len(r.names), 17) for lay, r in zip(self.layouts, chosen, strict=True)]
        if soft:
            self.policy_targets = self.policies
        sizes = [Sizes(len(each.agents), each.obs_size, each.action.n) for each in classes]
        self.inputs: CriticInputs = JointInputs(sizes) if self.joint else OwnInputs(sizes[0])
        agents = sum(len(each.agents) for each in classes)
        self.critic_owners = list(range(agents)) if self.joint else list(chosen[0].owners)
        self.layout = Layout(self.inputs.size, (6, 4), 1)
        nets = max(self.critic_owners) + 1
        self.critics = [flat_rows(self.layout, nets, 27 + 50 * i) for i in range(1 + twin)]
        self.critic_targets = [flat_rows(self.layout, nets, 37 + 50 * i) for i in range(1 + twin)]

    def ours(self) -> ActorCritics:
        actors, first = [], 0
        for k, each in enumerate(self.classes):
            seats = self.chosen[k]
            mine = [self.critic_owners[first + i] if self.joint else seats.owners[i] for i in range(len(seats.owners))]
            if self.joint:
                mine = [first + i for i in seats.agents.tolist()]
            actors.append(
                Actors(
                    index=k,
                    stack=seats,
                    head=self.heads[k],
                    nets=RowNets(self.layouts[k], self.policies[k], "tanh", seats.owners),
                    targets=RowNets(self.layouts[k], self.policy_targets[k], "tanh", seats.owners),
                    judges=tuple(
                        RowNets(self.layout, flat, "tanh", mine)
                        for flat in (self.critics if self.soft else self.critics[:1])
                    ),
                    own=self.inputs.own(k)[seats.agents],
                    log_weight=self.log_weights[k] if self.soft else None,
                )
            )
            first += len(each.agents)
        critics = [
            Critics(
                nets=RowNets(self.layout, flat, "tanh", self.critic_owners),
                targets=RowNets(self.layout, target, "tanh", self.critic_owners),
            )
            for flat, target in zip(self.critics, self.critic_targets, strict=True)
        ]
        return ActorCritics(self.inputs, actors, critics, regularisation=0.0 if self.soft else REGULARISATION)


def weights(view: SampleView, row: int) -> Tensor:
    assert view.importance is not None
    alive_M = view.alive[row, 0]
    return alive_M / alive_M.sum().clamp_min(1) * view.importance[row, 0]


def _squashed(output_KM: Tensor, noise_AM: Tensor) -> tuple[Tensor, Tensor]:
    """An action, and −log of its density by the change of variables, without care for rounding."""
    mean_AM, log_std_AM = output_KM.chunk(2)
    normal = torch.distributions.Normal(mean_AM, log_std_AM.clamp(-20, 2).exp())
    sample_AM = normal.mean + normal.stddev * noise_AM
    action_AM = torch.tanh(sample_AM)
    return action_AM, -(normal.log_prob(sample_AM) - torch.log(1 - action_AM**2)).sum(0)


def _categorical_entropy(output_AM: Tensor, legal_AM: Tensor) -> Tensor:
    entropies = [
        torch.distributions.Categorical(logits=output_AM[:, m][legal_AM[:, m]]).entropy() for m in range(SAMPLES)
    ]
    return torch.stack(entropies)


def _bonus(team: _Team, k: int, view: SampleView, row: int) -> Tensor | float:
    """α H in the successor states."""
    if not team.soft:
        return 0.0
    seats = team.chosen[k]
    owner = seats.owners[seats.agents.tolist().index(row)]
    output_KM = mlp(team.layouts[k], team.policies[k][owner], view.after[row])
    if view.legal_after is None:
        _, entropy_M = _squashed(output_KM, view.noise_after[row])
    else:
        entropy_M = _categorical_entropy(output_KM, view.legal_after[row])
    return team.log_weights[k][owner].exp() * entropy_M


def _target_action(team: _Team, k: int, view: SampleView, row: int) -> Tensor:
    seats = team.chosen[k]
    owner = seats.owners[seats.agents.tolist().index(row)]
    output_AM = mlp(team.layouts[k], team.policy_targets[k][owner], view.after[row])
    if team.soft and view.legal_after is None:
        return _squashed(output_AM, view.noise_after[row])[0]
    if isinstance(team.classes[k].action, Discrete):
        assert view.legal_after is not None
        noisy_AM = (output_AM + view.noise_after[row]).masked_fill(~view.legal_after[row], -torch.inf)
        action_AM = torch.nn.functional.one_hot(noisy_AM.argmax(0), len(output_AM)).T.float()
    else:
        action_AM = torch.tanh(output_AM)
        if len(team.critics) == 2:
            action_AM = (action_AM + (0.2 * view.noise_after[row]).clamp(-0.5, 0.5)).clamp(-1, 1)
    return action_AM


def _policy_action(
    team: _Team, k: int, view: SampleView, row: int, flat_D: Tensor, straight: bool
) -> tuple[Tensor, Tensor]:
    output_AM = mlp(team.layouts[k], flat_D, view.now[row])
    if not isinstance(team.classes[k].action, Discrete):
        return torch.tanh(output_AM), output_AM
    assert view.legal is not None
    noisy_AM = (output_AM + view.noise[row]).masked_fill(~view.legal[row], -torch.inf)
    soft_AM = torch.softmax(noisy_AM, dim=0)
    hard_AM = torch.nn.functional.one_hot(noisy_AM.argmax(0), len(output_AM)).T.float()
    return (hard_AM + soft_AM - soft_AM.detach() if straight else soft_AM), output_AM * view.legal[row]


def _soft_action(team: _Team, k: int, view: SampleView, row: int, flat_D: Tensor) -> tuple[Tensor, Tensor]:
    if view.legal is None:
        return _squashed(mlp(team.layouts[k], flat_D, view.now[row]), view.noise[row])
    action_AM, _ = _policy_action(team, k, view, row, flat_D, True)
    return action_AM, _categorical_entropy(mlp(team.layouts[k], flat_D, view.now[row]), view.legal[row])


def _seen(
    team: _Team, views: Sequence[SampleView], features: list[list[Tensor]], actions: list[list[Tensor]], agent: int
) -> Tensor:
    """What the critic of an agent, counted over all classes, reads."""
    if team.joint:
        rows_ = [x[:-1] for each in features for x in each] + [x for each in actions for x in each]
    else:
        rows_ = [features[0][agent][:-1], actions[0][agent]]
    return torch.cat([*rows_, torch.ones(1, SAMPLES)])


def _oracle(team: _Team, views: Sequence[SampleView], straight: bool) -> tuple[list[Tensor], list[Tensor]]:
    """Gradients of each stack of critics, and of the policies of each class, means over the rows of a net."""
    where = [(k, row) for k, view in enumerate(views) for row in range(len(view.now))]
    critics = [flat.clone().requires_grad_() for flat in team.critics]
    policies = [flat.clone().requires_grad_() for flat in team.policies]
    now = [list(view.now) for view in views]
    after = [list(view.after) for view in views]
    taken = [list(view.action) for view in views]
    acts = [[_target_action(team, k, view, row) for row in range(len(view.now))] for k, view in enumerate(views)]
    then = [list(torch.stack(each) * view.alive_after) for each, view in zip(acts, views, strict=True)]
    critic_loss, policy_loss = torch.zeros(()), torch.zeros(())
    for agent, (k, row) in enumerate(where):
        view = views[k]
        seats = team.chosen[k]
        owner = team.critic_owners[agent] if team.joint else seats.owners[seats.agents.tolist().index(row)]
        gone = [list(each) for each in then]
        gone[k][row] = acts[k][row]  # its own critic judges an agent that was truncated as if it went on
        values = [mlp(team.layout, flat[owner], _seen(team, views, after, gone, agent)) for flat in team.critic_targets]
        after_M = torch.stack(values).amin(0)[0] + _bonus(team, k, view, row)
        target_M = view.reward[row, 0] + view.discount[row, 0] * after_M
        weight_M = weights(view, row)
        share = 1 if team.joint else seats.owners.count(owner)
        for flat in critics:
            value_M = mlp(team.layout, flat[owner], _seen(team, views, now, taken, agent))[0]
            critic_loss = critic_loss + 0.5 * ((value_M - target_M) ** 2 * weight_M).sum() / share
        policy = seats.owners[seats.agents.tolist().index(row)]
        if team.soft:
            action_AM, entropy_M = _soft_action(team, k, view, row, policies[k][policy])
        else:
            action_AM, output_AM = _policy_action(team, k, view, row, policies[k][policy], straight)
        acted = [list(each) for each in taken]
        acted[k][row] = action_AM
        judges = team.critics if team.soft else team.critics[:1]
        values = [mlp(team.layout, flat[owner], _seen(team, views, now, acted, agent))[0] for flat in judges]
        loss = -(torch.stack(values).amin(0) * weight_M).sum()
        if team.soft:
            loss = loss - (team.log_weights[k][policy].exp() * entropy_M * weight_M).sum()
        else:
            loss = loss + REGULARISATION * (output_AM.square().mean(0) * weight_M).sum()
        policy_loss = policy_loss + loss / seats.owners.count(policy)
    return list(torch.autograd.grad(critic_loss, critics)), list(torch.autograd.grad(policy_loss, policies))


def _check(team: _Team, views: Sequence[SampleView], straight: bool = True) -> None:
    ours = team.ours()
    built = ours.built(views)
    critics, _ = ours.critic_gradients(views, built)
    found = [each.gradient.clone() for each in critics]
    policies = [each.policy.gradient for each in ours.policy_gradients(views, built)]
    expected_critics, expected_policies = _oracle(team, views, straight)
    torch.testing.assert_close(found, expected_critics, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(policies, expected_policies, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("straight", [True, False])
@pytest.mark.parametrize("twin", [False, True])
def test_maddpg_follows_its_losses(twin: bool, straight: bool) -> None:
    """Two classes, discrete and continuous actions, a policy that two agents share, deaths and masks."""
    chosen = [
        Stack.separate(SCOUT.agents, CPU),
        *row_stacks(PAIR, WALKER, pooling="pooled", samples=SAMPLES, device=CPU),
    ]
    team = _Team((SCOUT, WALKER), chosen, "joint", twin=twin, straight=straight)
    _check(team, [drawn_view(SCOUT, 1), drawn_view(WALKER, 2)], straight)


@pytest.mark.parametrize("twin", [False, True])
@pytest.mark.parametrize("agents", [SCOUT, WALKER])
def test_iddpg_follows_its_losses(agents: AgentClass, twin: bool) -> None:
    team = _Team((agents,), [Stack.separate(agents.agents, CPU)], "own", twin=twin, straight=True)
    _check(team, [drawn_view(agents, 1)])


def test_masac_follows_its_losses() -> None:
    chosen = [
        Stack.separate(SCOUT.agents, CPU),
        *row_stacks(PAIR, WALKER, pooling="pooled", samples=SAMPLES, device=CPU),
    ]
    team = _Team((SCOUT, WALKER), chosen, "joint", twin=True, straight=True, soft=True)
    _check(team, [drawn_view(SCOUT, 1), drawn_view(WALKER, 2)])


@pytest.mark.parametrize("twin", [False, True])
@pytest.mark.parametrize("agents", [SCOUT, WALKER])
def test_sac_follows_its_losses(agents: AgentClass, twin: bool) -> None:
    team = _Team((agents,), [Stack.separate(agents.agents, CPU)], "own", twin=twin, straight=True, soft=True)
    _check(team, [drawn_view(agents, 1)])


def test_the_weight_of_the_entropy_grows_while_the_entropy_is_below_its_target() -> None:
    team = _Team((WALKER,), [Stack.separate(WALKER.agents, CPU)], "own", twin=True, straight=True, soft=True)
    view, ours = drawn_view(WALKER, 1), team.ours()
    (found,) = ours.policy_gradients([view], ours.built([view]))
    for row in range(3):
        _, entropy_M = _soft_action(team, 0, view, row, team.policies[0][row])
        expected = float((weights(view, row) * entropy_M).sum()) - 7.5
        assert float(found.weight_gradient(7.5).gradient[row, 0]) == pytest.approx(expected, rel=1e-4)
        assert expected < 0  # gradient descent raises log α
    absent = replace(view, alive=torch.zeros_like(view.alive))
    (found,) = ours.policy_gradients([absent], ours.built([absent]))
    assert not found.weight_gradient(7.5).gradient.any()


def test_shared_critics_follow_the_mean_of_their_rows() -> None:
    (seats,) = row_stacks(PAIR, WALKER, pooling="pooled", samples=SAMPLES, device=CPU)
    seated = replace(Stack.separate(("x", "b", ""), CPU), names=("x", "b"), owners=seats.owners)
    team = _Team((WALKER,), [seated], "own", twin=True, straight=True)
    _check(team, [drawn_view(WALKER, 1).taken(seats)])
