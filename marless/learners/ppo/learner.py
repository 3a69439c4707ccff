"""The learner of the PPO family: post-process → critics and policies, all nets of one shape in one stacked pass.

What differs between IPPO and MAPPO is what a critic sees and whom it serves, `Critic`; all else is here once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from marless.algos.base import (
    Arrays,
    FunctionRun,
    Group,
    LearnerContext,
    PolicyState,
    RoundInput,
    UpdateOutput,
    value_at,
)
from marless.algos.ppo import PPOConfig
from marless.errors import CorruptError
from marless.learners import likeness, measuring
from marless.learners.ppo.functions import CriticFunction, Metrics, PolicyFunction, Samples, Settings
from marless.learners.ppo.post_process import CriticPass, Tensors, critic_samples, estimate, policy_samples, upload
from marless.learners.stacks import Stack, drawn_stacks, stacks
from marless.learners.table import tabulate
from marless.nets import actions
from marless.nets.bank import Bank
from marless.nets.codec import Codec
from marless.nets.layout import Layout, generator

Critic = Literal["own", "state", "joint"]
"""own: each policy has a critic of what its agents see; state: each has one of the global state; joint: one critic of
the global state serves the whole class, with one output per agent."""


@dataclass(frozen=True)
class _Job:
    """The training of one stack."""

    function: Literal["critic", "policy"]
    names: tuple[str, ...]
    trained: PolicyFunction | CriticFunction
    samples: Samples


@dataclass(frozen=True)
class _Trained:
    """What came of a job."""

    job: _Job
    metrics: Metrics
    start_s: float
    end_s: float
    measured: Metrics
    """Of the policies, beside their training; that took from `end_s` to `measured_s`."""
    measured_s: float


class PPOLearner:
    """One agent class of one job; see `marless.algos.base.Learner`.

    On a CPU, stacks of policies and of critics train side by side on as many threads as torch has for inter-op
    parallelism. It is fastest with one thread inside each operation: `torch.set_num_threads(1)` and
    OPENBLAS_NUM_THREADS=1. Results do not depend on the number of threads.
    """

    def __init__(self, config: PPOConfig, context: LearnerContext, *, critic: Critic) -> None:
        (agent_class,) = context.scope.agent_classes(context.spaces)
        model, spaces = context.model, context.spaces
        self._config = config
        self._class = agent_class
        (self._class_index,) = context.scope.classes
        self._critic = critic
        self._device = torch.device(context.device)
        self._joint = f"critic.{agent_class.name}"
        action, activation = agent_class.action, model.activation
        acting = Layout(agent_class.obs_size, model.hidden, action.n, actions.free_parameters(action))
        seen = agent_class.obs_size if critic == "own" else spaces.state_size
        judging = Layout(seen, model.hidden, len(agent_class.agents) if critic == "joint" else 1)
        self._policy_codec = Codec("policy", acting, output_gain=0.01, acts=True)
        self._critic_codec = Codec("critic", judging, output_gain=1.0, acts=False, moments=True)
        self._policies = Bank(lambda row: PolicyFunction(row, acting, activation, action))
        self._critics = Bank(lambda row: CriticFunction(row, judging, activation))
        self._metadata = {"kind": "mlp", "activation": activation, "action": actions.describe(action)}

    def names(self, groups: Sequence[Group]) -> tuple[str, ...]:
        """See `Learner`."""
        return (*(group.policy for group in groups), *((self._joint,) if self._critic == "joint" else ()))

    def initial(self, name: str, seed: int) -> PolicyState:
        """See `Learner`. Policies start almost uniform (output gain 0.01)."""
        rng = generator(seed, name)
        return self._compose([codec.write(codec.fresh(rng)) for codec, _ in self._parts(name)])

    def load(self, name: str, state: PolicyState) -> None:
        """See `Learner`."""
        if dict(state.metadata) != self._metadata:
            raise CorruptError(f"{name}: the state is of {dict(state.metadata)}, this job needs {self._metadata}")
        for codec, bank in self._parts(name):
            row = codec.read(state.acting, state.learning)
            bank.put(name, {key: tensor.to(self._device) for key, tensor in row.items()})

    def state(self, name: str) -> PolicyState:
        """See `Learner`."""
        return self._compose([codec.write(bank.row(name)) for codec, bank in self._parts(name)])

    def update(self, inputs: RoundInput) -> UpdateOutput:
        """See `Learner`."""
        started_s = time.time()
        threads = torch.get_num_interop_threads() if self._device.type == "cpu" else 1
        table = tabulate(inputs.trajectories, self._class_index, self._critic != "own")
        chosen = self._stacks(inputs, table.obs.shape[2], parts=max(1, threads // 2))
        similarity = likeness.begin(inputs, self._class, table, self.state)
        policies = self._policies.arrange([(stack.names, stack.starts) for stack in chosen])
        tensors = upload(table, self._device)
        passes = self._critic_passes(chosen, tensors)
        value_N1S, advantage_N1S = estimate(passes, tensors, self._config)
        jobs: list[_Job] = []
        metrics: dict[str, dict[str, float]] = {name: {} for name in self.names(inputs.groups)}
        for critics in passes:
            samples, measured = critic_samples(critics, value_N1S, advantage_N1S, tensors, self._config)
            _report(metrics, critics.names, measured)
            jobs.append(_Job("critic", critics.names, critics.function, samples))
        for stack, function in zip(chosen, policies, strict=True):
            samples = policy_samples(stack, advantage_N1S, tensors, self._config)
            jobs.append(_Job("policy", stack.names, function, samples))
        done_s = time.time()
        runs = [FunctionRun("post_process", self._class.name, started_s, done_s, done_s - started_s)]
        for trained in self._train(jobs, inputs, threads):
            job = trained.job
            _report(metrics, job.names, trained.metrics)
            share_s = (trained.end_s - trained.start_s) / len(job.names)
            runs += [FunctionRun(job.function, name, trained.start_s, trained.end_s, share_s) for name in job.names]
            runs += self._measured(trained, metrics)
        distances, compared = similarity.result()
        return UpdateOutput(metrics=metrics, runs=(*runs, *compared), distances=distances)

    def _parts(self, name: str) -> list[tuple[Codec, Bank[PolicyFunction] | Bank[CriticFunction]]]:
        policy, critic = (self._policy_codec, self._policies), (self._critic_codec, self._critics)
        if name == self._joint and self._critic == "joint":
            return [critic]
        return [policy] if self._critic == "joint" else [policy, critic]

    def _compose(self, parts: list[tuple[Arrays, Arrays]]) -> PolicyState:
        acting = {name: array for part, _ in parts for name, array in part.items()}
        learning = {name: array for _, part in parts for name, array in part.items()}
        return PolicyState(acting, learning, self._metadata)

    def _stacks(self, inputs: RoundInput, samples: int, parts: int) -> Sequence[Stack]:
        """What trains together; without a shared policy there is nothing to draw."""
        groups, agents, device = inputs.groups, self._class, self._device
        if inputs.pooling == "pooled" or all(len(group.agents) == 1 for group in groups):
            return stacks(groups, agents, parts=parts, device=device)
        seed = (inputs.seed, inputs.round)
        return drawn_stacks(groups, agents, samples=samples, seed=seed, parts=parts, device=device)

    def _critic_passes(self, chosen: Sequence[Stack], tensors: Tensors) -> list[CriticPass]:
        if self._critic == "joint":
            names = (self._joint,)
            (function,) = self._critics.arrange([(names, names)])
            # It serves all agents, grouped or not, and learns from each env step once: nothing to pool or to draw.
            return [CriticPass(names, function, None, tensors["state"], tensors["state"], tensors["boot_state"])]
        features, boot_features = tensors["obs"], tensors["boot_obs"]
        if self._critic == "state":
            agents = len(self._class.agents)
            features, boot_features = (tensors[key].expand(agents, -1, -1) for key in ("state", "boot_state"))
        functions = self._critics.arrange([(stack.names, stack.starts) for stack in chosen])
        passes = []
        for stack, function in zip(chosen, functions, strict=True):
            seen, boot_seen = stack.seen(features), stack.seen(boot_features)
            trained = seen if stack.owner is None else stack.pool(features)
            passes.append(CriticPass(stack.names, function, stack, trained, seen, boot_seen))
        return passes

    def _train(self, jobs: Sequence[_Job], inputs: RoundInput, threads: int) -> list[_Trained]:
        config, settings = self._config, self._settings(inputs.env_steps)
        orders = {size: self._orders(size, inputs) for size in {job.samples.count for job in jobs}}

        def train(job: _Job) -> _Trained:
            start_s = time.time()
            metrics = job.trained.train(job.samples, orders[job.samples.count], config.minibatches, settings)
            end_s, found = time.time(), {}
            if isinstance(job.trained, PolicyFunction) and measuring.asked(inputs.measure):
                found = measuring.measured(job.trained, job.samples, inputs, config.minibatches)
            return _Trained(job, metrics, start_s, end_s, found, time.time())

        if threads == 1:
            return [train(job) for job in jobs]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(train, jobs))

    def _measured(self, trained: _Trained, metrics: dict[str, dict[str, float]]) -> list[FunctionRun]:
        """Report what was measured of a stack, a function per policy; none if nothing was."""
        if not trained.measured:
            return []
        names, start_s, end_s = trained.job.names, trained.end_s, trained.measured_s
        _report(metrics, names, trained.measured)
        return [FunctionRun("curvature", name, start_s, end_s, (end_s - start_s) / len(names)) for name in names]

    def _settings(self, env_steps: int) -> Settings:
        config = self._config
        return Settings(
            lr=value_at(config.lr, env_steps),
            adam_eps=config.adam_eps,
            max_grad_norm=config.max_grad_norm,
            clip=value_at(config.clip, env_steps),
            entropy=value_at(config.entropy, env_steps),
            value_clip=config.value_clip,
            huber=config.huber,
        )

    def _orders(self, samples: int, inputs: RoundInput) -> list[Tensor]:
        """The order of the samples in each epoch; equal for all nets with as many samples."""
        self._config.check_samples(samples)
        rng = np.random.default_rng([inputs.seed, inputs.round])
        orders = [torch.from_numpy(rng.permutation(samples)) for _ in range(self._config.epochs)]
        return [order.to(self._device) for order in orders]


def _report(metrics: dict[str, dict[str, float]], names: tuple[str, ...], measured: Metrics) -> None:
    for metric, values_P in measured.items():
        for name, number in zip(names, values_P.tolist(), strict=True):
            metrics[name][metric] = number
