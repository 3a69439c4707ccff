"""Stable-Baselines3's PPO on one of Atari's games: trains, and prints env steps, seconds and returns as one JSON line.

The settings are those of rl-baselines3-zoo (`hyperparams/ppo.yml`, atari): 8 copies with DeepMind's preprocessing, four
frames, 128 steps a round, 4 epochs in minibatches of 256, and the Nature net, which policy and critic share. There,
rate and clip fall to 0 over 10M env steps; here, as on our side, they stay what they are at first.
"""

from __future__ import annotations

import time

import ale_py
import gymnasium
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecFrameStack

from bench import atari_program


class Games(BaseCallback):
    """Collects the points of whole games, which its `Monitor` counts below the preprocessing."""

    def __init__(self) -> None:
        super().__init__()
        self.games: list[tuple[int, int, float]] = []
        """Of each round in which games ended: env steps, how many ended, and their mean return."""
        self._ended: list[float] = []

    def _on_step(self) -> bool:
        self._ended += [float(info["episode"]["r"]) for info in self.locals["infos"] if "episode" in info]
        return True

    def _on_rollout_end(self) -> None:
        if self._ended:
            self.games.append((self.num_timesteps, len(self._ended), sum(self._ended) / len(self._ended)))
        self._ended = []


def main() -> None:
    """Train and print."""
    args = atari_program.options(__doc__)
    torch.set_num_threads(args.threads)
    gymnasium.register_envs(ale_py)
    env = VecFrameStack(make_atari_env(f"{args.game}NoFrameskip-v4", n_envs=8, seed=args.seed), n_stack=4)
    settings = {"n_steps": 128, "batch_size": 256, "n_epochs": 4, "clip_range": 0.1, "vf_coef": 0.5, "ent_coef": 0.01}
    model = PPO("CnnPolicy", env, seed=args.seed, device="cpu", learning_rate=2.5e-4, **settings)
    began, played = time.perf_counter(), Games()
    model.learn(args.env_steps, callback=played)
    atari_program.report(time.perf_counter() - began, model.num_timesteps, played.games)


if __name__ == "__main__":
    main()
