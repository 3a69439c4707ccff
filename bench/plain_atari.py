"""The baseline script for Atari: PPO in one process, written with torch on the same batched environment.

It uses only the environment of marless, and has the settings of `bench.atari_training`: 8 copies, 128 steps a round, 4
epochs in minibatches of 256, one Nature net for policy and critic, Adam. `python -m bench.plain_atari --game Pong`
trains, and prints env steps, seconds and returns of whole games as one JSON line. Shapes: T steps, B copies, M samples.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from bench import atari_program
from marless.learning.envs import registry
from marless.learning.envs.base import Frame

COPIES, STEPS, FRAMES, EPOCHS, MINIBATCH = 8, 128, 4, 4, 256
GAMMA, GAE_LAMBDA, CLIP, LR, ENTROPY, VALUE, MAX_NORM = 0.99, 0.95, 0.1, 2.5e-4, 0.01, 0.5, 0.5
OPTIONS: Mapping[str, object] = {"episodic_life": True, "fire_reset": True}


def layer(made: nn.Module, gain: float = 2**0.5) -> nn.Module:
    """The layer with orthogonal weights, and biases of 0."""
    nn.init.orthogonal_(made.weight, gain)  # type: ignore[arg-type]
    nn.init.zeros_(made.bias)  # type: ignore[arg-type]
    return made


class Net(nn.Module):
    """The Nature net: logits of actions and a value."""

    def __init__(self, actions: int) -> None:
        super().__init__()
        convolutions = nn.Conv2d(FRAMES, 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3, 1)
        parts = [part for each in convolutions for part in (layer(each), nn.ReLU())]
        self.torso = nn.Sequential(*parts, nn.Flatten(), layer(nn.Linear(3136, 512)), nn.ReLU())
        self.policy, self.value = layer(nn.Linear(512, actions), 0.01), layer(nn.Linear(512, 1), 1.0)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities of all actions [M, A], and values [M], of images uint8 [M, frames, 84, 84]."""
        features = self.torso(images / 255.0)
        return self.policy(features).log_softmax(-1), self.value(features).squeeze(-1)


class PlainPPO:
    """The net, optimizer and environments of one run."""

    def __init__(self, game: str, seed: int) -> None:
        torch.manual_seed(seed)
        self.env = registry.make(f"atari/{game}", OPTIONS, COPIES)
        self.net = Net(self.env.spaces.classes[0].action.n)
        self.optimizer = torch.optim.Adam(self.net.parameters(), LR, eps=1e-5)
        self.images = np.repeat(_shown(self.env.reset(seed))[:, None], FRAMES, axis=1)
        self.points = np.zeros(COPIES)
        self.ended: list[float] = []
        """Points of whole games that ended since the last round."""

    def iterate(self) -> None:
        """One rollout and the update on it."""
        samples = self.rollout()
        for _ in range(EPOCHS):
            for rows in torch.randperm(STEPS * COPIES).view(-1, MINIBATCH):
                self.optimizer.zero_grad()
                torch.autograd.backward(self.loss(*(part[rows] for part in samples)))
                nn.utils.clip_grad_norm_(self.net.parameters(), MAX_NORM)
                self.optimizer.step()

    @torch.no_grad()
    def rollout(self) -> list[Tensor]:
        """Images, actions, log-probabilities, advantages and targets of all samples, [M, …] each."""
        images, actions, log_probs, values, rewards, over = [], [], [], [], [], []
        for _ in range(STEPS):
            images.append(torch.from_numpy(self.images.copy()))
            log_all_BA, value_B = self.net(images[-1])
            actions.append(torch.multinomial(log_all_BA.exp(), 1).squeeze(-1))
            log_probs.append(_taken(log_all_BA, actions[-1]))
            values.append(value_B)
            reward_B, ended_B = self.step(actions[-1])
            rewards.append(torch.from_numpy(np.sign(reward_B).astype(np.float32)))
            over.append(torch.from_numpy(ended_B.copy()))
        _, last_B = self.net(torch.from_numpy(self.images))
        advantage_TB = advantages(torch.stack(rewards), torch.stack([*values, last_B]), torch.stack(over))
        target_TB = advantage_TB + torch.stack(values)
        series = torch.stack(images), torch.stack(actions), torch.stack(log_probs), advantage_TB, target_TB
        return [each.flatten(0, 1) for each in series]

    def step(self, action_B: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Act in all copies; rewards [B], and where an episode has ended."""
        transition = self.env.step((action_B.numpy()[None].astype(np.int32),))
        reward_B, ended_B, shown_BHW = transition.rewards[0][0], transition.ended, _shown(transition.frame)
        self.points += reward_B
        self.ended += self.points[transition.whole].tolist()
        self.points[transition.whole] = 0
        self.images = np.concatenate([self.images[:, 1:], shown_BHW[:, None]], axis=1)
        self.images[ended_B] = shown_BHW[ended_B][:, None]
        return reward_B, ended_B

    def loss(self, images: Tensor, action: Tensor, old: Tensor, advantage: Tensor, target: Tensor) -> Tensor:
        """Clipped surrogate, value error and entropy bonus (Schulman et al. 2017, eq. 9)."""
        log_all_MA, value_M = self.net(images)
        ratio_M = (_taken(log_all_MA, action) - old).exp()
        advantage_M = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        gain_M = torch.minimum(ratio_M * advantage_M, ratio_M.clamp(1 - CLIP, 1 + CLIP) * advantage_M)
        entropy_M = -(log_all_MA.exp() * log_all_MA).sum(-1)
        loss: Tensor = (VALUE * (value_M - target).square() - gain_M - ENTROPY * entropy_M).mean()
        return loss


def advantages(reward_TB: Tensor, value_SB: Tensor, over_TB: Tensor) -> Tensor:
    """GAE(λ), [T, B]; S = T + 1."""
    going_TB, running_B = (~over_TB).float(), torch.zeros(COPIES)
    delta_TB = reward_TB + GAMMA * value_SB[1:] * going_TB - value_SB[:-1]
    found_TB = torch.empty_like(delta_TB)
    for t in reversed(range(STEPS)):
        running_B = delta_TB[t] + GAMMA * GAE_LAMBDA * going_TB[t] * running_B
        found_TB[t] = running_B
    return found_TB


def _taken(log_all: Tensor, action: Tensor) -> Tensor:
    return log_all.gather(-1, action.unsqueeze(-1)).squeeze(-1)


def _shown(frame: Frame) -> np.ndarray:
    """The images of the one agent, uint8 [B, 84, 84]."""
    shown: np.ndarray = frame.obs[0][0].reshape(COPIES, 84, 84).copy()
    return shown


def main() -> None:
    """Train and print."""
    args = atari_program.options(__doc__)
    torch.set_num_threads(args.threads)
    ppo, games, sampled, began = PlainPPO(args.game, args.seed), [], 0, time.perf_counter()
    while sampled < args.env_steps:
        ppo.iterate()
        sampled += STEPS * COPIES
        if ppo.ended:
            games.append((sampled, len(ppo.ended), sum(ppo.ended) / len(ppo.ended)))
            ppo.ended.clear()
    atari_program.report(time.perf_counter() - began, sampled, games)


if __name__ == "__main__":
    main()
