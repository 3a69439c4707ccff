"""What workers compute in a simulation: digests of their inputs, in the arrays that the job declares.

Each number follows from everything that may influence it, and is checked where it is used. So a trajectory that is
missing, trained twice, in another order or made by other weights changes all weights after it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from marless.core.group import FunctionRun, Group
from marless.core.state import REPLAY, PolicyState
from marless.jobs.job import PreparedJob, schema_of
from marless.learning.algos.learner import GradientOutput, LearnerContext, RoundInput, UpdateOutput
from marless.learning.data.episodes import EpisodeStats
from marless.learning.data.player import LivingLanes, Rolled
from marless.learning.data.trajectory import Trajectory
from marless.services.actor_pool import worker as actors
from marless.services.actor_pool.worker import Actor

INPUTS = 3
"""Of a policy's net, whose layer has one output, and one bias."""
HALF = np.float32(2**15)
"""Half of the range of `numbers`."""
_NO_ROLLOUTS = PolicyState({}, {"rounds": np.zeros((0, 1), np.int64), "ring": np.zeros(1, np.int64)}, {"kind": REPLAY})
"""The state of the replay of a canned learner, which remembers none; asked for if the pool has removed its file."""


class WrongInputError(AssertionError):
    """A worker was given what it must never be given."""


def digest(*values: Any) -> bytes:
    """A digest of numbers, texts, bytes and arrays."""
    found = hashlib.sha256()
    for value in values:
        if isinstance(value, np.ndarray):
            found.update(np.ascontiguousarray(value).tobytes())
        else:
            found.update(value if isinstance(value, bytes) else repr(value).encode())
        found.update(b"|")
    return found.digest()


def numbers(seed: bytes, count: int) -> np.ndarray:
    """Finite float32 numbers that follow from a digest."""
    return np.resize(np.frombuffer(seed, np.uint16), count).astype(np.float32)


def _of(acting: Mapping[str, Any]) -> bytes:
    """A digest of the weights that the agents act with."""
    return digest(*(each for agent in sorted(acting) for each in (agent, *_weights(acting[agent]))))


class Canned:
    """What the actors of one job compute."""

    def __init__(self, job: PreparedJob) -> None:
        self.job = job
        self._schema = schema_of(job.spec, job.spaces)

    def actor(self, *arguments: Any) -> Actor:
        """Makes an actor, in the place of the class."""
        return _CannedActor(self, *arguments)

    def lane(self) -> Any:
        """An environment that nobody steps."""
        return SimpleNamespace(spaces=self.job.spaces, batch=self._schema.batch, close=lambda: None)

    def act(self, task: Any, acting: Mapping[str, Any]) -> tuple[Trajectory, EpisodeStats]:
        seed = digest(task.settings.seed, task.round, task.index, _of(acting))
        return self._trajectory(task, seed), self._stats(self._schema.steps * self._schema.batch, seed)

    def roll_on(self, task: Any, acting: Mapping[str, Any], lanes: LivingLanes, loaded: bytes) -> Rolled:
        """As `Player.go_on`."""
        living, goes_on = lanes.take(actors._env_key(task), (task.job, task.index), task.lane.digest)
        before = loaded or (living.lane.carry if goes_on else b"")
        seed = digest(task.settings.seed, task.round, task.index, _of(acting), before)
        carry = living.lane.carry = digest(seed, "carry")
        stats = self._stats(self._schema.steps * self._schema.batch, seed)
        return Rolled(living, self._trajectory(task, seed), stats, carry)

    def play(self, task: Any, acting: Mapping[str, Any]) -> Any:
        seed = digest(task.settings.seed, task.mode, task.round, task.index, _of(acting))
        receipt = actors._receipt(task, self._stats(task.episodes, seed), 0)
        receipt.played_s = 0.01
        return receipt

    def _stats(self, steps: int, seed: bytes) -> EpisodeStats:
        returns = {agent: float(seed[0]) for agent in self.job.spaces.agents}
        return EpisodeStats(
            env_steps=steps,
            episodes=1,
            episode_steps=steps,
            return_sum=returns,
            return_scatter=dict.fromkeys(returns, 0.0),
            mean_scatter=0.0,
        )

    def _trajectory(self, task: Any, seed: bytes) -> Trajectory:
        arrays: dict[str, np.ndarray] = {}
        for name, (dtype, shape) in self._schema.shapes(1).items():
            arrays[name] = np.zeros(shape, dtype)
            if name.startswith(("obs/", "reward/")):
                arrays[name][...] = numbers(digest(seed, name), arrays[name].size).reshape(shape)
        arrays["cut"][-1] = True
        arrays["boot_index"][0] = (self._schema.steps - 1) * self._schema.batch
        arrays["reward/0"][0, 0, 0], arrays["reward/0"][0, 1, 0] = task.round, task.index
        return Trajectory(arrays)


class _CannedActor(Actor):
    def __init__(self, canned: Canned, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._canned = canned
        self._player._lanes = LivingLanes(lambda _: canned.lane())

    def _act(self, task: Any, acting: Mapping[str, Any], stop: Any) -> tuple[Trajectory, EpisodeStats]:
        return self._canned.act(task, acting)

    def _roll_on(self, task: Any, acting: Mapping[str, Any], loaded: bytes, stop: Any) -> Rolled:
        return self._canned.roll_on(task, acting, self._player._lanes, loaded)

    def _play(self, task: Any, acting: Mapping[str, Any], stop: Any) -> Any:
        return self._canned.play(task, acting)


class CannedLearner:
    """A learner whose policies are digests of all they were trained on."""

    def __init__(self, context: LearnerContext, in_rounds: bool) -> None:
        self._context = context
        self._in_rounds = in_rounds
        self._held: dict[str, PolicyState] = {}

    def names(self, groups: Sequence[Group]) -> tuple[str, ...]:
        return tuple(group.policy for group in groups)

    def initial(self, name: str, seed: int) -> PolicyState:
        return _state(digest(name, seed))

    def load(self, name: str, state: PolicyState) -> None:
        self._held[name] = state

    def state(self, name: str) -> PolicyState:
        return _NO_ROLLOUTS if name.startswith(f"{REPLAY}.") else self._held[name]

    def update(self, inputs: RoundInput) -> UpdateOutput:
        said = [tuple(int(each["reward/0"][0, agent, 0]) for agent in (0, 1)) for each in inputs.trajectories]
        if self._in_rounds and said != [(inputs.round, index) for index in range(len(said))]:
            raise WrongInputError(f"round {inputs.round} is trained on trajectories of (round, actor) {said}")
        metrics = {}
        for group in inputs.groups:
            self._held[group.policy] = state = _state(self._trained(group, inputs))
            metrics[group.policy] = {"loss": float(_weights(state)[0][0, 0])}
        return UpdateOutput(metrics=metrics, runs=() if self._in_rounds else _runs(metrics))

    def gradients(self, inputs: RoundInput) -> GradientOutput:
        found = {}
        for group in inputs.groups:
            gradient_D = numbers(self._trained(group, inputs), INPUTS + 1) / HALF - 1
            found[group.policy] = {"policy": gradient_D}
        metrics = {name: {"loss": float(each["policy"][0])} for name, each in found.items()}
        return GradientOutput(gradients=found, metrics=metrics, runs=_runs(found))

    def _trained(self, group: Group, inputs: RoundInput) -> bytes:
        """A digest of all that training this group depends on."""
        arrays = (array for each in inputs.trajectories for _, array in sorted(each.arrays.items()))
        before = self._held[group.start]
        return digest(*_weights(before), *arrays, inputs.round, inputs.env_steps)


def _runs(names: Iterable[str]) -> tuple[FunctionRun, ...]:
    """A function of each policy."""
    return tuple(FunctionRun("policy", name, time.time(), time.time(), 0.001) for name in names)


def _weights(state: PolicyState) -> tuple[Any, Any]:
    return state.acting["policy.0.weight"], state.acting["policy.0.bias"]


def _state(seed: bytes) -> PolicyState:
    """A net that the parameter store can apply gradients to."""
    weights = numbers(seed, INPUTS + 1) / HALF
    acting = {"policy.0.weight": weights[None, :INPUTS], "policy.0.bias": weights[INPUTS:]}
    learning = {"policy.first": weights - 1, "policy.second": weights, "policy.count": np.array(0, np.int64)}
    return PolicyState(acting=acting, learning=learning, metadata={"kind": "canned"})
