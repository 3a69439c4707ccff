"""The floor must be honest PPO: a slow or wrong script would flatter us."""

import numpy as np
import pytest
import torch

from bench.plain_ppo import COPIES, PlainPPO
from bench.task import TASK


@pytest.fixture(scope="module")
def ppo():
    torch.set_num_threads(1)
    return PlainPPO(seed=3)


def test_advantages_are_discounted_sums_that_bootstrap_at_the_time_limit(ppo):
    generator = torch.Generator().manual_seed(0)
    n, t = TASK.agents, TASK.episode_steps
    seen = torch.randn((t + 1, n, COPIES, ppo.env.spaces.classes[0].obs_size), generator=generator)
    reward = torch.randn((t, n, COPIES), generator=generator)
    with torch.no_grad():
        advantage, target = ppo.advantages(seen, reward)
        value = torch.stack([ppo.critic(step).squeeze(-1) for step in seen]).double().numpy()
    delta = reward.double().numpy() + TASK.gamma * value[1:] - value[:-1]
    decay = TASK.gamma * TASK.gae_lambda
    expected = np.stack([sum(decay ** (k - s) * delta[k] for k in range(s, t)) for s in range(t)])
    np.testing.assert_allclose(target.numpy(), expected + value[:-1], atol=1e-4)
    np.testing.assert_allclose(advantage.mean((0, 2)), 0.0, atol=1e-5)
    np.testing.assert_allclose(advantage.std((0, 2)), 1.0, atol=1e-4)


def test_gradients_are_bounded_per_agent_and_keep_their_direction(ppo):
    for p in ppo.parameters:
        p.grad = torch.ones_like(p)
        p.grad[0] *= 1e-6
    ppo.clip_gradients()
    norms = sum(p.grad.flatten(1).square().sum(1) for p in ppo.parameters).sqrt()
    assert norms[0] < 1e-3
    np.testing.assert_allclose(norms[1:], TASK.max_grad_norm, rtol=1e-4)


def test_it_learns():
    ppo = PlainPPO(seed=0)
    before = ppo.greedy_return(1)
    for _ in range(4):
        ppo.iterate()
    assert ppo.greedy_return(1) > before + 2
