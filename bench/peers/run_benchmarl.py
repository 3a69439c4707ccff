"""BenchMARL's algorithms: nets per agent, 16 environment copies.

Copies of mpe2 are stepped serially (in parallel is slower). With `--simulator marless`, they are marless's copies of
the same game, which are stepped at once: equal samples in less time. With `--simulator vmas`, they are those of VMAS,
BenchMARL's own vectorised simulator. Its spread has other rules, so there is no evaluation.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress

import numpy as np
import torch
from benchmarl.algorithms import algorithm_config_registry
from benchmarl.algorithms.common import AlgorithmConfig
from benchmarl.environments import VmasTask
from benchmarl.environments.common import TaskClass
from benchmarl.environments.pettingzoo.common import PettingZooClass
from benchmarl.experiment import Callback, Experiment, ExperimentConfig
from benchmarl.models.mlp import MlpConfig
from numpy.typing import NDArray
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Composite
from torchrl.envs import EnvBase, PettingZooWrapper
from torchrl.envs.utils import ExplorationType, set_exploration_type

from bench.events import Events, Options, options
from bench.peers.batched import BatchedEvaluation, BatchedGame
from bench.peers.greedy import Evaluation, make_env
from bench.task import (
    CONTINUOUS,
    EXPLORED_ENV_STEPS,
    GAMES,
    OFF_POLICY_BATCH,
    ON_POLICY,
    PEER_COPIES,
    TASK,
    Game,
    peer_env_steps,
)

COPIES = 16
"""Of mpe2, for on-policy algorithms."""
BATCHED_COPIES = TASK.iteration_env_steps // TASK.episode_steps
"""In a simulator that steps all at once: as many as marless has."""


class Mpe2(PettingZooClass):
    """BenchMARL's own PettingZoo task, with the environment from mpe2, its present package."""

    def __init__(self, game: Game) -> None:
        super().__init__(game.peer, {"task": game.peer, "max_cycles": TASK.episode_steps})
        self._game = game

    def supports_continuous_actions(self) -> bool:
        """Every game does."""
        return True

    def supports_discrete_actions(self) -> bool:
        """Every game does."""
        return True

    def has_state(self) -> bool:
        """Every game has one."""
        return True

    def get_env_fun(
        self, num_envs: int, continuous_actions: bool, seed: int | None, device: str
    ) -> Callable[[], EnvBase]:
        """A function that creates one copy; BenchMARL calls it once per copy."""
        return lambda: PettingZooWrapper(
            make_env(self._game, continuous=continuous_actions),
            categorical_actions=True,
            return_state=True,
            seed=seed,
            device=device,
        )


class Batched(Mpe2):
    """A task with marless's batched copies of its game."""

    def get_env_fun(
        self, num_envs: int, continuous_actions: bool, seed: int | None, device: str
    ) -> Callable[[], EnvBase]:
        """A function that creates all copies in one."""
        return lambda: BatchedGame(self._game, num_envs, seed, continuous=continuous_actions)

    def observation_spec(self, env: EnvBase) -> Composite:
        """The observations of one copy, by agent class."""
        spec = env.full_observation_spec_unbatched.clone()
        del spec["state"]
        return spec

    def state_spec(self, env: EnvBase) -> Composite:
        """The global state of one copy."""
        return Composite({"state": env.full_observation_spec_unbatched["state"].clone()})

    def action_spec(self, env: EnvBase) -> Composite:
        """The actions of one copy, by agent class."""
        return env.full_action_spec_unbatched

    def action_mask_spec(self, env: EnvBase) -> None:
        """Every action is always legal."""

    def info_spec(self, env: EnvBase) -> None:
        """Nothing else is told."""


def task(run: Options) -> TaskClass:
    """The game in the chosen simulator; exits if VMAS does not have the run."""
    if run.simulator != "vmas":
        return (Batched if run.simulator == "marless" else Mpe2)(GAMES[run.game])
    if run.game != "spread" or run.eval_every:
        raise SystemExit("--simulator vmas: only spread, and without --eval")
    config = {"max_steps": TASK.episode_steps, "n_agents": TASK.agents, "obs_agents": True}
    return VmasTask.SIMPLE_SPREAD.get_task(config)


class FinishedError(Exception):
    """The run has reached its env steps, or its target return."""


class Report(Callback):
    """Reports every iteration to `Events`."""

    def __init__(self, events: Events, run: Options) -> None:
        super().__init__()
        self._events, self._game = events, GAMES[run.game]
        self._evaluation = (
            Evaluation(self._game, continuous=run.algorithm in CONTINUOUS)
            if self._game.peer
            else BatchedEvaluation(self._game, TASK.evaluation_episodes)
        )
        self._env_steps = peer_env_steps(run.algorithm)

    def on_train_end(self, training_td: TensorDictBase, group: str) -> None:
        """Called after each group's update; the last group's ends the iteration."""
        if group != list(self.experiment.group_map)[-1]:
            return
        self._events.iteration(self._return, self._env_steps)
        if self._events.finished:
            if isinstance(self._evaluation, Evaluation) and len(self._game.groups) > 1:
                self._events.sides(self._evaluation.above_chance(self._act, seed=0))
            raise FinishedError

    def _return(self, seed: int) -> float:
        found = self._evaluation(self._act, seed)
        return sum(found[group] * size for group, size in self._game.groups.items()) / sum(self._game.groups.values())

    def _act(self, obs: Mapping[str, NDArray[np.float32]]) -> dict[str, NDArray[np.generic]]:
        seen, batch = {}, next(iter(obs.values())).shape[1:2]
        for group, obs_NBO in obs.items():
            obs_BNO = torch.from_numpy(obs_NBO.swapaxes(0, 1).copy())
            seen[group] = TensorDict({"observation": obs_BNO}, obs_BNO.shape[:2])
        with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
            done = self.experiment.policy(TensorDict(seen, batch))
        return {group: done[group, "action"].numpy().swapaxes(0, 1) for group in obs}


def experiment_config(run: Options, folder: str) -> ExperimentConfig:
    """The task's hyperparameters as BenchMARL's config; logging, rendering and its own evaluation are off."""
    config = ExperimentConfig.get_from_yaml()
    config.share_policy_params = False
    config.prefer_continuous_actions = run.algorithm in CONTINUOUS
    config.gamma = TASK.gamma
    config.lr = run.rates.lr
    config.clip_grad_val = run.rates.clip
    config.polyak_tau = run.rates.tau
    config.max_n_frames = run.env_steps
    config.on_policy_collected_frames_per_batch = TASK.iteration_env_steps
    config.on_policy_n_envs_per_worker = COPIES if run.simulator == "mpe2" else BATCHED_COPIES
    config.on_policy_n_minibatch_iters = TASK.epochs
    config.on_policy_minibatch_size = TASK.minibatch_env_steps
    config.off_policy_collected_frames_per_batch = peer_env_steps(run.algorithm)
    config.off_policy_n_envs_per_worker = PEER_COPIES
    config.off_policy_n_optimizer_steps = peer_env_steps(run.algorithm) // TASK.episode_steps
    config.off_policy_train_batch_size = OFF_POLICY_BATCH
    config.exploration_eps_init = 1.0
    config.exploration_eps_end = 0.05
    config.exploration_anneal_frames = EXPLORED_ENV_STEPS
    config.evaluation = False
    config.render = False
    config.loggers = []
    config.create_json = False
    config.save_folder = folder
    return config


def algorithm_config(name: str) -> AlgorithmConfig:
    """The algorithm's config with a critic per agent; PPO has the task's settings, others BenchMARL's own."""
    config = algorithm_config_registry[name].get_from_yaml()
    if hasattr(config, "share_param_critic"):
        config.share_param_critic = False
    if name in ON_POLICY:
        config.clip_epsilon = TASK.clip
        config.entropy_coef = TASK.entropy_weight
        config.critic_coef = TASK.value_weight
        config.lmbda = TASK.gae_lambda
    return config


def model_config() -> MlpConfig:
    """The task's net."""
    return MlpConfig(num_cells=list(TASK.hidden), layer_class=torch.nn.Linear, activation_class=torch.nn.Tanh)


def main() -> None:
    """Train and report iterations until the run is finished."""
    run = options(__doc__ or "")
    torch.set_num_threads(run.threads)
    os.environ["OMP_NUM_THREADS"] = str(run.threads)
    events = Events(run)
    simulated = task(run)
    with tempfile.TemporaryDirectory() as folder:
        experiment = Experiment(
            task=simulated,
            algorithm_config=algorithm_config(run.algorithm),
            model_config=model_config(),
            critic_model_config=model_config(),
            seed=run.seed,
            config=experiment_config(run, folder),
            callbacks=[Report(events, run)],
        )
        # BenchMARL closes the experiment before it raises again.
        with suppress(FinishedError):
            experiment.run()


if __name__ == "__main__":
    main()
