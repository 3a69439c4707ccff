"""The baseline script: independent PPO in one process, written with torch on the same batched environment.

It uses only the environment of marless. The three policies and critics are stacked, so that each layer is one batched
matmul; Adam is fused. `python -m bench.plain_ppo --env-steps 200000 --eval 5`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from bench.events import Events, Options, options
from bench.task import TASK
from marless.learning.envs import registry
from marless.learning.envs.base import BatchedEnv

COPIES = TASK.iteration_env_steps // TASK.episode_steps
ACTIONS = 5


class StackedMLP(nn.Module):
    """One multi-layer perceptron per agent: [N, M, inputs] → [N, M, outputs]."""

    def __init__(self, sizes: tuple[int, ...], last_gain: float) -> None:
        super().__init__()
        gains = [2**0.5] * (len(sizes) - 2) + [last_gain]
        layers = list(zip(sizes[:-1], sizes[1:], gains, strict=True))
        self.weights = nn.ParameterList([_orthogonal(i, o, gain) for i, o, gain in layers])
        self.biases = nn.ParameterList([torch.zeros(TASK.agents, 1, o) for _, o, _ in layers])

    def forward(self, x: Tensor) -> Tensor:
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = torch.tanh(torch.baddbmm(bias, x, weight))
        return torch.baddbmm(self.biases[-1], x, self.weights[-1])


def _orthogonal(inputs: int, outputs: int, gain: float) -> Tensor:
    return torch.stack([nn.init.orthogonal_(torch.empty(inputs, outputs), gain) for _ in range(TASK.agents)])


@dataclass(frozen=True)
class Batch:
    """Flat samples of one rollout: obs [N, M, O], the others [N, M], with M = T·B."""

    obs: Tensor
    action: Tensor
    log_prob: Tensor
    advantage: Tensor
    target: Tensor

    def minibatches(self) -> Iterator[Batch]:
        """The samples once, in random order."""
        for rows in torch.randperm(TASK.iteration_env_steps).view(TASK.minibatches, -1):
            yield Batch(*(field.index_select(1, rows) for field in vars(self).values()))


def _taken(log_all: Tensor, action: Tensor) -> Tensor:
    """Log-probability of the action taken, out of those of all actions (last axis)."""
    return log_all.gather(-1, action.unsqueeze(-1)).squeeze(-1)


class PlainPPO:
    """The nets, optimizer and environments of one run."""

    def __init__(self, seed: int, lr: float = TASK.learning_rate) -> None:
        torch.manual_seed(seed)
        self.env, self.evaluation_env = make_env(COPIES), make_env(TASK.evaluation_episodes)
        obs_size = self.env.spaces.classes[0].obs_size
        self.policy = StackedMLP((obs_size, *TASK.hidden, ACTIONS), 0.01)
        self.critic = StackedMLP((obs_size, *TASK.hidden, 1), 1.0)
        self.parameters = [*self.policy.parameters(), *self.critic.parameters()]
        self.optimizer = torch.optim.Adam(self.parameters, lr, fused=True)
        self.frame = self.env.reset(seed)

    def iterate(self) -> None:
        """One rollout and the update on it."""
        batch = self.rollout()
        for _ in range(TASK.epochs):
            for minibatch in batch.minibatches():
                self.optimizer.zero_grad()
                torch.autograd.backward(self.loss(minibatch))
                self.clip_gradients()
                self.optimizer.step()

    @torch.no_grad()
    def rollout(self) -> Batch:
        """Sample one episode of every copy; values bootstrap from the final observations."""
        obs, actions, log_probs, rewards = [], [], [], []
        for _ in range(TASK.episode_steps):
            obs.append(torch.from_numpy(self.frame.obs[0].copy()))
            log_all_NBA = self.policy(obs[-1]).log_softmax(-1)
            actions.append(torch.multinomial(log_all_NBA.exp().flatten(0, 1), 1).view(TASK.agents, COPIES))
            log_probs.append(_taken(log_all_NBA, actions[-1]))
            transition = self.env.step((actions[-1].numpy().astype(np.int32),))
            rewards.append(torch.from_numpy(transition.rewards[0].astype(np.float32)))
            self.frame = transition.frame
        assert transition.truncated.all(), "a rollout is one episode of every copy"
        seen_SNBO = torch.stack([*obs, torch.from_numpy(transition.final.obs[0].copy())])
        advantage_TNB, target_TNB = self.advantages(seen_SNBO, torch.stack(rewards))
        series = (seen_SNBO[:-1], torch.stack(actions), torch.stack(log_probs), advantage_TNB, target_TNB)
        return Batch(*(tensor.transpose(0, 1).flatten(1, 2) for tensor in series))

    def advantages(self, seen_SNBO: Tensor, reward_TNB: Tensor) -> tuple[Tensor, Tensor]:
        """GAE(λ), normalised per agent, and the critics' targets; S = T + 1."""
        flat_NMO = seen_SNBO.transpose(0, 1).flatten(1, 2)
        value_SNB = self.critic(flat_NMO).view(TASK.agents, len(seen_SNBO), COPIES).transpose(0, 1)
        delta_TNB = reward_TNB + TASK.gamma * value_SNB[1:] - value_SNB[:-1]
        advantage_TNB = torch.empty_like(delta_TNB)
        running_NB = torch.zeros_like(delta_TNB[0])
        for t in reversed(range(TASK.episode_steps)):
            running_NB = delta_TNB[t] + TASK.gamma * TASK.gae_lambda * running_NB
            advantage_TNB[t] = running_NB
        target_TNB = advantage_TNB + value_SNB[:-1]
        std, mean = torch.std_mean(advantage_TNB, dim=(0, 2), keepdim=True)
        return (advantage_TNB - mean) / (std + 1e-8), target_TNB

    def loss(self, batch: Batch) -> Tensor:
        """Clipped surrogate, value error and entropy bonus, summed over agents (Schulman et al. 2017, eq. 9)."""
        log_all_NMA = self.policy(batch.obs).log_softmax(-1)
        ratio_NM = (_taken(log_all_NMA, batch.action) - batch.log_prob).exp()
        clipped_NM = ratio_NM.clamp(1 - TASK.clip, 1 + TASK.clip)
        gain_NM = torch.minimum(ratio_NM * batch.advantage, clipped_NM * batch.advantage)
        entropy_NM = -(log_all_NMA.exp() * log_all_NMA).sum(-1)
        error_NM = (self.critic(batch.obs).squeeze(-1) - batch.target).square()
        loss_NM: Tensor = TASK.value_weight * error_NM - gain_NM - TASK.entropy_weight * entropy_NM
        return loss_NM.mean(1).sum()

    def clip_gradients(self) -> None:
        """Bound each agent's gradient by `max_grad_norm`."""
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        norm_N = torch.stack([g.flatten(1).square().sum(1) for g in gradients]).sum(0).sqrt()
        scale_N11 = (TASK.max_grad_norm / (norm_N + 1e-6)).clamp(max=1.0).view(-1, 1, 1)
        for gradient in gradients:
            gradient.mul_(scale_N11)

    @torch.no_grad()
    def greedy_return(self, seed: int) -> float:
        """Undiscounted return per agent, mean over agents and evaluation episodes."""
        frame, total = self.evaluation_env.reset(seed), 0.0
        for _ in range(TASK.episode_steps):
            action_NB = self.policy(torch.from_numpy(frame.obs[0].copy())).argmax(-1)
            transition = self.evaluation_env.step((action_NB.numpy().astype(np.int32),))
            frame, total = transition.frame, total + float(transition.rewards[0].sum())
        return total / (TASK.agents * TASK.evaluation_episodes)


def make_env(copies: int) -> BatchedEnv:
    """The task's environment."""
    return registry.make("mpe/simple_spread", {"agents": TASK.agents, "local_ratio": TASK.local_ratio}, copies)


def train(run: Options) -> None:
    """Train and report iterations until the run is finished."""
    torch.set_num_threads(run.threads)
    events, ppo = Events(run), PlainPPO(run.seed, run.rates.lr)
    while not events.finished:
        ppo.iterate()
        events.iteration(ppo.greedy_return)


if __name__ == "__main__":
    train(options(__doc__ or ""))
