"""Stable-Baselines3 on one of MuJoCo's tasks: trains, plays whole greedy episodes, and prints both as one JSON line.

PPO with `--settings zoo` has the settings that rl-baselines3-zoo tuned for the task (`hyperparams/ppo.yml`, v3), with
one copy; with `equal`, those of marless's `examples/hopper.yaml`: as many samples in a round, epochs, minibatches and
units. Observations and rewards are normalised with both. SAC and TD3 have the zoo's, which are the library's defaults
with 10,000 random steps.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from typing import Any

import numpy as np
import torch
from stable_baselines3 import PPO, SAC, TD3
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from torch import nn

from bench.one_agent_task import ALGORITHMS, COPIES, TASKS, returns, warm_up

ZOO: dict[str, dict[str, Any]] = {  # Any: as the library's constructors take them
    "hopper": {
        "n_steps": 512,
        "batch_size": 32,
        "gamma": 0.999,
        "learning_rate": 9.80828e-05,
        "ent_coef": 0.00229519,
        "clip_range": 0.2,
        "n_epochs": 5,
        "gae_lambda": 0.99,
        "max_grad_norm": 0.7,
        "vf_coef": 0.835671,
        "policy_kwargs": {"log_std_init": -2, "ortho_init": False, "activation_fn": nn.ReLU, "net_arch": [256, 256]},
    },
    "walker2d": {
        "n_steps": 512,
        "batch_size": 32,
        "gamma": 0.99,
        "learning_rate": 5.05041e-05,
        "ent_coef": 0.000585045,
        "clip_range": 0.1,
        "n_epochs": 20,
        "gae_lambda": 0.95,
        "max_grad_norm": 1,
        "vf_coef": 0.871923,
    },
    "half_cheetah": {
        "n_steps": 512,
        "batch_size": 64,
        "gamma": 0.98,
        "learning_rate": 2.0633e-05,
        "ent_coef": 0.000401762,
        "clip_range": 0.1,
        "n_epochs": 20,
        "gae_lambda": 0.92,
        "max_grad_norm": 0.8,
        "vf_coef": 0.58096,
        "policy_kwargs": {"log_std_init": -2, "ortho_init": False, "activation_fn": nn.ReLU, "net_arch": [256, 256]},
    },
    "inverted_double_pendulum": {
        "n_steps": 128,
        "batch_size": 512,
        "gamma": 0.98,
        "learning_rate": 0.000155454,
        "ent_coef": 1.05057e-06,
        "clip_range": 0.4,
        "n_epochs": 10,
        "gae_lambda": 0.8,
        "max_grad_norm": 0.5,
        "vf_coef": 0.695929,
    },
    "humanoid": {
        "n_steps": 512,
        "batch_size": 256,
        "gamma": 0.95,
        "learning_rate": 3.56987e-05,
        "ent_coef": 0.00238306,
        "clip_range": 0.3,
        "n_epochs": 5,
        "gae_lambda": 0.9,
        "max_grad_norm": 2,
        "vf_coef": 0.431892,
        "policy_kwargs": {"log_std_init": -2, "ortho_init": False, "activation_fn": nn.ReLU, "net_arch": [256, 256]},
    },
}
EQUAL: dict[str, Any] = {
    "n_steps": 2048 // COPIES,
    "batch_size": 64,
    "n_epochs": 10,
    "ent_coef": 0.0,
    "policy_kwargs": {"log_std_init": math.log(0.6), "activation_fn": nn.Tanh, "net_arch": [64, 64]},
}


def model(algorithm: str, task: str, settings: str, env_steps: int, seed: int) -> tuple[Any, VecEnv]:
    """An untrained model and its environment."""
    if algorithm == "ppo":
        equal = settings == "equal"
        own = EQUAL if equal else ZOO.get(task, {})
        env = make_vec_env(TASKS[task], n_envs=COPIES if equal else 1, seed=seed)
        env = VecNormalize(env, gamma=own.get("gamma", 0.99))
        rate = (lambda left: 3e-4 * max(left, 0.0)) if equal else own.get("learning_rate", 3e-4)
        return PPO("MlpPolicy", env, seed=seed, device="cpu", **{**own, "learning_rate": rate}), env
    env = make_vec_env(TASKS[task], n_envs=1, seed=seed)
    kind, own = (SAC, {}) if algorithm == "sac" else (TD3, {})
    if algorithm == "td3":
        actions = env.action_space.shape[0]
        own = {"action_noise": NormalActionNoise(np.zeros(actions), 0.1 * np.ones(actions))}
    return kind("MlpPolicy", env, seed=seed, device="cpu", learning_starts=warm_up(env_steps), **own), env


def main() -> None:
    """Train, evaluate and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithm", choices=ALGORITHMS, default="ppo")
    parser.add_argument("--task", choices=sorted(TASKS), default="hopper")
    parser.add_argument("--settings", choices=("zoo", "equal"), default="zoo")
    parser.add_argument("--env-steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    trained, env = model(args.algorithm, args.task, args.settings, args.env_steps, args.seed)
    began, cpu = time.perf_counter(), time.process_time()
    trained.learn(args.env_steps)
    wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu

    def act(observation: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        seen = env.normalize_obs(observation) if isinstance(env, VecNormalize) else observation
        action, _ = trained.predict(seen, deterministic=True)
        return action

    found = returns(args.task, act, args.seed)
    print(json.dumps({"wall_s": wall_s, "cpu_s": cpu_s, "env_steps": trained.num_timesteps, "returns": found}))


if __name__ == "__main__":
    main()
