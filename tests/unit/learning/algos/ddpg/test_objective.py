"""What policies maximise, E[Q(s, μ(s))]: gradients and Hessians against autograd on tiny nets."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from marless.core.group import Group
from marless.core.settings import CurvatureSpec, Measure
from marless.learning.algos.ddpg import heads
from marless.learning.algos.ddpg.actor_critics import Actors, RowNets
from marless.learning.algos.ddpg.algorithms import MADDPGConfig
from marless.learning.algos.ddpg.inputs import JointInputs, Sizes
from marless.learning.algos.ddpg.training import PolicyObjective, SampledStack
from marless.learning.algos.learner import RoundInput
from marless.learning.algos.training import measuring
from marless.learning.algos.training.policy_batching import row_stacks
from marless.learning.envs.base import AgentClass, Box, Discrete
from marless.learning.nets.layout import Layout
from tests.unit.learning.algos.ddpg.test_oracle import CPU, SAMPLES, drawn_view, flat_rows, mlp, weights

DISCRETE = AgentClass("walker", ("a", "b", "c"), 2, Discrete(3))
SMOOTH = AgentClass("walker", ("a", "b", "c"), 2, Box((-1.0, 0.0), (1.0, 2.0)))
SHARED = (Group("b", ("b",)), Group("c", ("c", "a")))


class _Stack:
    """Two policies of three agents, and the critics of all three."""

    def __init__(self, agents: AgentClass) -> None:
        self.view = drawn_view(agents, 3)
        self.inputs = JointInputs([Sizes(3, 2, agents.action.n)])
        self.layout, self.critic_layout = Layout(2, (3,), agents.action.n), Layout(self.inputs.size, (4, 3), 1)
        self.flat, self.critics = flat_rows(self.layout, 2, 5), flat_rows(self.critic_layout, 3, 15)
        (self.rows,) = row_stacks(SHARED, agents, pooling="pooled", samples=SAMPLES, device=CPU)
        self.head = heads.head(agents.action, MADDPGConfig.model_validate({"name": "maddpg"}))
        self.actors = Actors(
            index=0,
            stack=self.rows,
            head=self.head,
            nets=RowNets(self.layout, self.flat, "tanh", self.rows.owners),
            targets=RowNets(self.layout, self.flat, "tanh", self.rows.owners),
            judges=(RowNets(self.critic_layout, self.critics, "tanh", self.rows.agents.tolist()),),
            own=self.inputs.own(0)[self.rows.agents],
        )
        self.built = self.inputs.build([self.view.now], [self.view.action])
        self.objective = PolicyObjective(self.actors, {"flat": self.flat})
        self.samples = SampledStack(self.actors, self.view, self.built)

    def value(self, flat_PD: Tensor, hard: bool) -> Tensor:
        """Of each policy, [P]: the mean over its rows; differentiable."""
        found = torch.zeros(2)
        for agent, owner in zip(self.rows.agents.tolist(), self.rows.owners, strict=True):
            output_AM = mlp(self.layout, flat_PD[owner], self.view.now[agent])
            if isinstance(self.head, heads.Relaxed):
                assert self.view.legal is not None
                noisy_AM = (output_AM + self.view.noise[agent]).masked_fill(~self.view.legal[agent], -torch.inf)
                soft_AM = torch.softmax(noisy_AM, dim=0)
                hard_AM = torch.nn.functional.one_hot(noisy_AM.argmax(0), 3).T - soft_AM.detach() + soft_AM
                action_AM = hard_AM if hard else soft_AM
            else:
                action_AM = torch.tanh(output_AM)
            done = [action_AM if other == agent else self.view.action[other] for other in range(3)]
            seen = torch.cat([*(x[:-1] for x in self.view.now), *done, torch.ones(1, SAMPLES)])
            value_M = mlp(self.critic_layout, self.critics[agent], seen)[0]
            share = (value_M * weights(self.view, agent)).sum() / self.rows.owners.count(owner)
            found = found + share * torch.eye(2)[owner]
        return found


@pytest.mark.parametrize("agents", [DISCRETE, SMOOTH], ids=["discrete", "continuous"])
def test_gradients_and_hessians_are_autograds(agents: AgentClass) -> None:
    stack = _Stack(agents)
    batch = stack.samples.subset(torch.arange(SAMPLES))
    for policy in range(2):

        def value(flat_D: Tensor, policy: int = policy, hard: bool = False) -> Tensor:
            return stack.value(torch.stack([flat_D if i == policy else stack.flat[i] for i in range(2)]), hard)[policy]

        flat_D = stack.flat[policy].clone().requires_grad_()
        (gradient_D,) = torch.autograd.grad(value(flat_D, hard=True), flat_D)
        torch.testing.assert_close(stack.objective.score_gradient(batch)[policy], gradient_D, rtol=1e-4, atol=1e-6)
        hessian_DD = torch.autograd.functional.hessian(value, stack.flat[policy])
        product = stack.objective.hessian(batch)
        for seed in range(3):
            direction_D = torch.randn(stack.layout.size, generator=torch.Generator().manual_seed(seed))
            direction_PD = torch.stack(
                [direction_D if i == policy else torch.zeros_like(direction_D) for i in range(2)]
            )
            found_D = product(direction_PD)[policy]
            torch.testing.assert_close(found_D, hessian_DD @ direction_D, rtol=1e-3, atol=1e-5)


def test_parts_of_a_sample_are_its_columns() -> None:
    stack = _Stack(SMOOTH)
    samples = stack.samples
    assert (samples.count, samples.unit) == (SAMPLES, 1)
    samples.shuffle(torch.arange(SAMPLES).flip(0))
    first, second, third = samples.minibatches(3)
    torch.testing.assert_close(first["features"], stack.view.now[[1, 2, 0]][:, :, -4:].flip(2))
    assert second["input"].shape == third["input"].shape == (3, stack.inputs.size + 1, 4)
    # c and a share: their samples count together
    alive = stack.view.alive[:, 0]
    torch.testing.assert_close(samples.subset(torch.arange(SAMPLES))["alive"][1, 0], (alive[2] + alive[0]) / 2)


def test_rounds_measure_curvature_and_noise_of_both_policies() -> None:
    stack = _Stack(SMOOTH)
    spec = CurvatureSpec.model_validate({"samples": SAMPLES, "steps": 5})
    inputs = RoundInput(0, 0, 1, SHARED, [], measure=Measure(curvature=spec, noise=True))
    before = stack.flat.clone()
    found = measuring.measured(stack.objective, stack.samples, inputs, 4)
    assert set(found) == {"lambda_max", "lambda_min", "curvature", "noise_scale"}
    assert all(numbers.shape == (2,) and np.isfinite(numbers.numpy()).all() for numbers in found.values())
    assert (found["lambda_max"] >= found["lambda_min"]).all()
    torch.testing.assert_close(stack.flat, before)
