"""RLlib's IPPO (new API stack) on the task: two env runners (BENCH_RUNNERS) of 16 copies each, one local learner."""

from __future__ import annotations

import os

import numpy as np
import torch
from numpy.typing import NDArray
from ray.rllib.algorithms.ppo import PPO, PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv
from ray.tune.registry import register_env

from bench.events import Events, Options, options
from bench.peers.greedy import Act, GreedyEvaluation, make_env
from bench.peers.local_ray import local_ray
from bench.task import TASK

AGENTS = [f"agent_{n}" for n in range(TASK.agents)]
RUNNERS, COPIES = int(os.environ.get("BENCH_RUNNERS", "2")), 16


def config(seed: int, lr: float) -> PPOConfig:
    """The task's hyperparameters as RLlib's config; everything else has RLlib's default."""
    net = DefaultModelConfig(fcnet_hiddens=list(TASK.hidden), fcnet_activation="tanh", vf_share_layers=False)
    return (
        PPOConfig()
        .environment("spread")
        .framework("torch")
        .env_runners(num_env_runners=RUNNERS, num_envs_per_env_runner=COPIES, num_cpus_per_env_runner=1)
        .learners(num_learners=0)
        .multi_agent(policies=set(AGENTS), policy_mapping_fn=lambda agent, *_, **__: agent)
        .rl_module(
            rl_module_spec=MultiRLModuleSpec(
                rl_module_specs={agent: RLModuleSpec(model_config=net) for agent in AGENTS}
            )
        )
        .training(
            train_batch_size_per_learner=TASK.iteration_env_steps,
            minibatch_size=TASK.minibatch_env_steps,
            num_epochs=TASK.epochs,
            lr=lr,
            gamma=TASK.gamma,
            lambda_=TASK.gae_lambda,
            clip_param=TASK.clip,
            entropy_coeff=TASK.entropy_weight,
            vf_loss_coeff=TASK.value_weight,
            vf_clip_param=float("inf"),
            use_kl_loss=False,
            grad_clip=TASK.max_grad_norm,
        )
        .debugging(seed=seed, log_level="ERROR")
    )


def actor(algorithm: PPO) -> Act:
    """A function that acts greedily with the policies as last synchronised from the learner."""
    modules = [algorithm.get_module(agent) for agent in AGENTS]

    def act(obs_NBO: NDArray[np.float32]) -> NDArray[np.int64]:
        with torch.no_grad():
            outputs = [m.forward_inference({"obs": torch.from_numpy(o)}) for m, o in zip(modules, obs_NBO, strict=True)]
        return torch.stack([output["action_dist_inputs"].argmax(-1) for output in outputs]).numpy()

    return act


def train(run: Options) -> None:
    """Train and report iterations until the run is finished."""
    events, evaluation = Events(run), GreedyEvaluation()
    register_env("spread", lambda _: ParallelPettingZooEnv(make_env()))
    algorithm = config(run.seed, run.rates.lr).build_algo()
    sampled = 0
    while not events.finished:
        result = algorithm.train()
        lifetime = int(result["env_runners"]["num_env_steps_sampled_lifetime"])
        events.iteration(lambda seed: evaluation(actor(algorithm), seed), lifetime - sampled)
        sampled = lifetime
    algorithm.stop()


def main() -> None:
    """Start Ray, train, and stop Ray."""
    run = options(__doc__ or "")
    with local_ray(RUNNERS + 1, run.threads):
        train(run)


if __name__ == "__main__":
    main()
