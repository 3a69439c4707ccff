"""Stable-Baselines3's PPO on one of Atari's games: trains, and prints env steps and seconds as one JSON line.

The settings are those of rl-baselines3-zoo (`hyperparams/ppo.yml`, atari): 8 copies with DeepMind's preprocessing, four
frames, 128 steps a round, 4 epochs in minibatches of 256, and the Nature net, which policy and critic share.
"""

from __future__ import annotations

import argparse
import json
import time

import ale_py
import gymnasium
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecFrameStack


def main() -> None:
    """Train and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--game", default="Pong")
    parser.add_argument("--env-steps", type=int, default=8192)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    gymnasium.register_envs(ale_py)
    env = VecFrameStack(make_atari_env(f"{args.game}NoFrameskip-v4", n_envs=8, seed=args.seed), n_stack=4)
    settings = {"n_steps": 128, "batch_size": 256, "n_epochs": 4, "clip_range": 0.1, "vf_coef": 0.5, "ent_coef": 0.01}
    model = PPO("CnnPolicy", env, seed=args.seed, device="cpu", learning_rate=2.5e-4, **settings)
    began = time.perf_counter()
    model.learn(args.env_steps)
    print(json.dumps({"wall_s": time.perf_counter() - began, "env_steps": model.num_timesteps}))


if __name__ == "__main__":
    main()
