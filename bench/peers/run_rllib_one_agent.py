"""RLlib's PPO (new API stack) on one of MuJoCo's tasks: trains, and prints env steps and seconds as one JSON line.

It is compared by its rate only: no episodes are played. The settings are those of marless's `examples/hopper.yaml`: two
env runners, as many samples in a round, epochs, minibatches and units; RLlib's own filter normalises observations.
"""

from __future__ import annotations

import argparse
import json
import time

from ray.rllib.algorithms.ppo import PPO, PPOConfig
from ray.rllib.connectors.env_to_module import MeanStdFilter
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from bench.one_agent_task import RLLIB_COPIES, TASKS
from bench.peers.local_ray import local_ray

RUNNERS, SAMPLES = 2, 2048


def config(task: str, seed: int) -> PPOConfig:
    """The example's hyperparameters as RLlib's config; everything else has RLlib's default."""
    net = DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False, free_log_std=True)
    return (
        PPOConfig()
        .environment(TASKS[task])
        .framework("torch")
        .env_runners(
            num_env_runners=RUNNERS,
            num_envs_per_env_runner=RLLIB_COPIES,
            num_cpus_per_env_runner=1,
            env_to_module_connector=lambda env, spaces, device: MeanStdFilter(),
        )
        .learners(num_learners=0)
        .rl_module(model_config=net)
        .training(
            train_batch_size_per_learner=SAMPLES,
            minibatch_size=64,
            num_epochs=10,
            lr=3e-4,
            gamma=0.99,
            lambda_=0.95,
            clip_param=0.2,
            entropy_coeff=0.0,
            vf_clip_param=float("inf"),
            use_kl_loss=False,
            grad_clip=0.5,
        )
        .debugging(seed=seed, log_level="ERROR")
    )


def trained(algorithm: PPO, env_steps: int) -> tuple[int, float]:
    """Train for so many env steps; returns how many it were, and the seconds."""
    began, sampled = time.perf_counter(), 0
    while sampled < env_steps:
        sampled = int(algorithm.train()["env_runners"]["num_env_steps_sampled_lifetime"])
    return sampled, time.perf_counter() - began


def main() -> None:
    """Start Ray, train, stop Ray, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=sorted(TASKS), default="hopper")
    parser.add_argument("--env-steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with local_ray(RUNNERS + 1, threads=1):
        algorithm = config(args.task, args.seed).build_algo()
        env_steps, wall_s = trained(algorithm, args.env_steps)
        algorithm.stop()
    print(json.dumps({"wall_s": wall_s, "env_steps": env_steps, "returns": []}))


if __name__ == "__main__":
    main()
