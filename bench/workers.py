"""Runs a job's rounds in one process: the work of its workers, without services in between, measured by part."""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from marless.core import process_environment
from marless.core.compiling import VARIABLE
from marless.jobs.sharing.base import initial_groups
from marless.jobs.spec import JobSpec
from marless.learning.algos import registry as algorithms
from marless.learning.algos.algorithm import scopes
from marless.learning.algos.learner import Learner, LearnerContext, RoundInput, Scope
from marless.learning.data.rollout import rollout
from marless.learning.data.trajectory import Trajectory
from marless.learning.envs import registry
from marless.learning.envs.base import random_actions
from marless.learning.nets.acting import ActingPolicies

ACTING, ENVIRONMENT, UPDATE = "acting", "environment", "update"


def on_one_thread() -> None:
    """Use one thread, as a learner worker with one; restarts this program if its environment variables must change."""
    told = process_environment.learner(1)
    if not told.items() <= os.environ.items():
        os.execve(sys.executable, sys.orig_argv, os.environ | told)
    torch.set_num_threads(1)


@contextmanager
def kernels(choice: str) -> Iterator[None]:
    """Start programs with these kernels: one of `marless.core.compiling.CHOICES`."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = choice
    try:
        yield
    finally:
        del os.environ[VARIABLE]
        if before is not None:
            os.environ[VARIABLE] = before


class Team:
    """Runs a job's rounds in this process; `cpu_ms` adds up the CPU milliseconds of their parts."""

    def __init__(self, spec: JobSpec) -> None:
        """The job must have one actor and a game with one agent class."""
        self.cpu_ms: defaultdict[str, float] = defaultdict(float)
        self._spec = spec
        self._entry = algorithms.algorithm(spec.algorithm.name)
        self._env = registry.make(spec.env.name, spec.env.arguments, spec.actors.envs)
        self._groups = initial_groups(spec.sharing.groups, self._env.spaces)
        [scope] = scopes(self._entry, spec.algorithm, self._env.spaces)
        self._learner = self._made(scope)

    def _made(self, scope: Scope) -> Learner:
        context = LearnerContext(self._spec.model, self._env.spaces, scope, "cpu")
        learner = self._entry.learner(self._spec.algorithm, context)
        for name in learner.names(self._groups):
            learner.load(name, learner.initial(name, self._spec.seed))
        return learner

    def round(self, number: int) -> None:
        """Sample and update."""
        self.update(number, self.sample(number))

    def sample(self, number: int) -> Trajectory:
        """Do the actor's work: a rollout with the current policies."""
        steps, with_state = self._spec.actors.steps, self._entry.needs_state(self._spec.algorithm)
        with self._measured(ACTING):
            sampled, _ = rollout(self._env, self._acting(), steps=steps, seed=number, with_state=with_state)
        actions = random_actions(self._env.spaces, self._env.reset(number), np.random.default_rng(number))
        before_ms = self.cpu_ms[ENVIRONMENT]
        with self._measured(ENVIRONMENT):  # the same steps without policies
            self._env.reset(number)
            for _ in range(steps):
                self._env.step(actions)
        self.cpu_ms[ACTING] -= self.cpu_ms[ENVIRONMENT] - before_ms
        return sampled

    def update(self, number: int, sampled: Trajectory) -> None:
        """Do the learner's work: an update."""
        spec, env_steps = self._spec, number * sampled.env_steps
        with self._measured(UPDATE):
            self._learner.update(
                RoundInput(number, env_steps, spec.seed, self._groups, [sampled], spec.sharing.samples)
            )

    def _acting(self) -> list[ActingPolicies]:
        states = {agent: self._learner.state(group.policy) for group in self._groups for agent in group.agents}
        return [ActingPolicies.from_states(c, [states[agent] for agent in c.agents]) for c in self._env.spaces.classes]

    @contextmanager
    def _measured(self, part: str) -> Iterator[None]:
        before_s = time.process_time()
        yield
        self.cpu_ms[part] += 1000 * (time.process_time() - before_s)
