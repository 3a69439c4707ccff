"""BenchMARL's IPPO on the task: nets per agent, 16 environment copies stepped serially (in parallel is slower)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import torch
from benchmarl.algorithms import IppoConfig
from benchmarl.environments.pettingzoo.common import PettingZooClass
from benchmarl.experiment import Callback, Experiment, ExperimentConfig
from benchmarl.models.mlp import MlpConfig
from numpy.typing import NDArray
from tensordict import TensorDict, TensorDictBase
from torchrl.envs import EnvBase, PettingZooWrapper
from torchrl.envs.utils import ExplorationType, set_exploration_type

from bench.events import Events, Options, options
from bench.peers.greedy import GreedyEvaluation, make_env
from bench.task import TASK

GROUP = "agent"
COPIES = 16


class Spread(PettingZooClass):
    """BenchMARL's own PettingZoo task, with the environment taken from mpe2, where it lives today."""

    def get_env_fun(
        self, num_envs: int, continuous_actions: bool, seed: int | None, device: str
    ) -> Callable[[], EnvBase]:
        """One copy; BenchMARL asks for as many as it wants."""
        return lambda: PettingZooWrapper(
            make_env(), categorical_actions=True, return_state=True, seed=seed, device=device
        )


class FinishedError(Exception):
    """The run has its env steps, or its return."""


class Report(Callback):
    """Tells our events of every iteration."""

    def __init__(self, events: Events) -> None:
        super().__init__()
        self._events = events
        self._evaluation = GreedyEvaluation()

    def on_train_end(self, training_td: TensorDictBase, group: str) -> None:
        """The policies of the group (all agents) have been updated."""
        self._events.iteration(lambda seed: self._evaluation(self._act, seed))
        if self._events.finished:
            raise FinishedError

    def _act(self, obs_NBO: NDArray[np.float32]) -> NDArray[np.int64]:
        obs_BNO = torch.from_numpy(obs_NBO.swapaxes(0, 1).copy())
        seen = TensorDict({GROUP: TensorDict({"observation": obs_BNO}, obs_BNO.shape[:2])}, obs_BNO.shape[:1])
        with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
            return self.experiment.policy(seen)[GROUP, "action"].numpy().swapaxes(0, 1)


def experiment_config(run: Options, folder: str) -> ExperimentConfig:
    """The task's hyper-parameters in BenchMARL's words; logging, rendering and its own evaluation are off."""
    config = ExperimentConfig.get_from_yaml()
    config.share_policy_params = False
    config.prefer_continuous_actions = False
    config.gamma = TASK.gamma
    config.lr = TASK.learning_rate
    config.clip_grad_val = TASK.max_grad_norm
    config.max_n_frames = run.env_steps
    config.on_policy_collected_frames_per_batch = TASK.iteration_env_steps
    config.on_policy_n_envs_per_worker = COPIES
    config.on_policy_n_minibatch_iters = TASK.epochs
    config.on_policy_minibatch_size = TASK.minibatch_env_steps
    config.evaluation = False
    config.render = False
    config.loggers = []
    config.create_json = False
    config.save_folder = folder
    return config


def algorithm_config() -> IppoConfig:
    """IPPO with a critic per agent."""
    config = IppoConfig.get_from_yaml()
    config.share_param_critic = False
    config.clip_epsilon = TASK.clip
    config.entropy_coef = TASK.entropy_weight
    config.critic_coef = TASK.value_weight
    config.lmbda = TASK.gae_lambda
    return config


def model_config() -> MlpConfig:
    """The task's net."""
    return MlpConfig(num_cells=list(TASK.hidden), layer_class=torch.nn.Linear, activation_class=torch.nn.Tanh)


def main() -> None:
    """Train, reporting iterations, until the run is over."""
    run = options(__doc__ or "")
    torch.set_num_threads(run.threads)
    os.environ["OMP_NUM_THREADS"] = str(run.threads)
    events = Events(run)
    task = Spread("SIMPLE_SPREAD", {"task": "simple_spread_v3", "max_cycles": TASK.episode_steps})
    with tempfile.TemporaryDirectory() as folder:
        experiment = Experiment(
            task=task,
            algorithm_config=algorithm_config(),
            model_config=model_config(),
            critic_model_config=model_config(),
            seed=run.seed,
            config=experiment_config(run, folder),
            callbacks=[Report(events)],
        )
        # BenchMARL closes the experiment before it raises again.
        with suppress(FinishedError):
            experiment.run()


if __name__ == "__main__":
    main()
