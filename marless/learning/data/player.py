"""What an actor plays: rollouts, lanes that go on, and whole episodes, in environments that it keeps between tasks.

An actor is a pure function of its seed, the policies and, if its episodes are carried, its lane's carry. So it gives
the same trajectory in a worker of the actor pool, in a forked copy of `marless train --in-process`, or by a plain call.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import NamedTuple

import numpy as np

from marless.core import documents
from marless.core.errors import SpecError, shown, told
from marless.core.interruption import Stopped, never
from marless.core.stopwatch import RunningTime
from marless.learning.data.carry import decode, encode
from marless.learning.data.episodes import EpisodeStats, total
from marless.learning.data.returns import PlayLimits, returns_of
from marless.learning.data.rollout import Lane, play, rollout
from marless.learning.data.trajectory import Trajectory
from marless.learning.envs import registry
from marless.learning.envs.base import BatchedEnv, agents_checksum
from marless.learning.nets.acting import Acting, ActingPolicies

_CACHED_ENVS = 4
LIVING = 16
"""Lanes that live in one worker; each holds an environment. Others are loaded into the one used longest ago, which is
cheap for environments that save their state, and slow for those whose episodes are played again."""


class EnvKey(NamedTuple):
    """What a batch of environment copies is made from; equal keys may share one."""

    name: str
    options_json: str
    with_state: bool
    """Whether its frames hold the global state."""
    envs: int
    """Number of copies."""
    agents_crc32: int
    """Checksum of the job's agents; 0: not known."""


def close_env(env: BatchedEnv) -> None:
    """Close an environment that is needed no more; an error is logged only, because nothing depends on it."""
    try:
        env.close()
    except Exception as error:  # noqa: BLE001  # third-party code may raise anything
        from marless.core.log import structlog  # here, because the library does without it

        structlog.get_logger().warning("env.close_failed", error=told(error))


@dataclass
class Living:
    """A lane in this process."""

    env_key: EnvKey
    env: BatchedEnv
    lane: Lane
    whose: tuple[str, int] = ("", 0)
    """Its job, and its index there."""
    digest: str = ""
    """Of its carry; "" while it moves, and after an error."""


class LivingLanes:
    """The living lanes of one worker, at most `LIVING`."""

    def __init__(self, make: Callable[[EnvKey], BatchedEnv]) -> None:
        self._make = make
        self._living: list[Living] = []
        """Those used last are at the end."""

    def has(self, env_key: EnvKey, whose: tuple[str, int], digest: str) -> bool:
        """True if a lane was left with this carry, so that it need not be loaded."""
        return self._left(env_key, whose, digest) is not None

    def take(self, env_key: EnvKey, whose: tuple[str, int], digest: str) -> tuple[Living, bool]:
        """The lane to run next, and whether it is the one that was left with this carry; if not, begin or load it.

        Until its new digest is set, no other task continues it: an interrupted one may have moved it.
        """
        found = self._left(env_key, whose, digest)
        living = found or self._place(env_key, whose)
        if living in self._living:
            self._living.remove(living)
        self._living.append(living)
        living.whose, living.digest = whose, ""
        return living, found is not None

    def close(self) -> None:
        """Close all environments."""
        for each in self._living:
            close_env(each.env)
        self._living.clear()

    def _left(self, env_key: EnvKey, whose: tuple[str, int], digest: str) -> Living | None:
        wanted = (env_key, whose, digest)
        left = (each for each in self._living if each.digest)
        return next((each for each in left if (each.env_key, each.whose, each.digest) == wanted), None)

    def _place(self, env_key: EnvKey, whose: tuple[str, int]) -> Living:
        """Where a lane can begin or be loaded: one that nobody goes on with, a new one, or that used longest ago."""
        alike = [each for each in self._living if each.env_key == env_key]
        # What this lane itself has left here earlier is out of date: another worker has moved it on, or it has begun
        # anew.
        if free := next((each for each in alike if not each.digest or each.whose == whose), None):
            return free
        if len(self._living) >= LIVING:
            if alike:
                return alike[0]
            close_env(self._living.pop(0).env)
        env = self._make(env_key)
        return Living(env_key, env, Lane(env))


class Mode(IntEnum):
    """How an actor acts. The numbers are those of `RolloutMode` in actor_pool.proto, and a part of its seed."""

    TRAIN = 1
    """It explores."""
    GREEDY = 2
    RANDOM = 3


class Rolled(NamedTuple):
    """A stretch of a lane."""

    living: Living
    """The lane; its digest is to be set once its carry is where others find it."""
    trajectory: Trajectory
    stats: EpisodeStats
    carry: bytes
    """The lane after the stretch."""


class Player:
    """Plays for actors; caches environments and lanes between tasks. Every policy is given by the agent that it acts
    for.
    """

    def __init__(self) -> None:
        self._envs: OrderedDict[EnvKey, BatchedEnv] = OrderedDict()
        self._lanes = LivingLanes(partial(_made, registry.make_carried))

    def roll_out(
        self, env_key: EnvKey, acting: Mapping[str, Acting], *, steps: int, seed: int, stopped: Stopped = never
    ) -> tuple[Trajectory, EpisodeStats]:
        """Start new episodes, and sample `steps` time steps in every copy."""
        env = self._env(env_key)
        policies = _policies(env, acting)
        return rollout(env, policies, steps=steps, seed=seed, with_state=env_key.with_state, stopped=stopped)

    def has_lane(self, env_key: EnvKey, whose: tuple[str, int], digest: str) -> bool:
        """True if a lane was left here with this carry, so that it need not be loaded."""
        return self._lanes.has(env_key, whose, digest)

    def go_on(
        self,
        env_key: EnvKey,
        acting: Mapping[str, Acting],
        *,
        whose: tuple[str, int],
        digest: str,
        loaded: bytes,
        steps: int,
        seed: int,
        stopped: Stopped = never,
    ) -> Rolled:
        """Begin a lane if it is not here, or load it if there are bytes, and roll it on.

        Args:
            whose: The lane's job, and its index there.
            digest: Of the carry that it goes on from; "" for a lane that begins.
            loaded: That carry, unless `has_lane`.
        """
        living, goes_on = self._lanes.take(env_key, whose, digest)
        lane = living.lane
        if loaded:
            lane.load(decode(loaded))
        elif not goes_on:
            lane.begin(seed)
        trajectory, stats = lane.roll(
            _policies(living.env, acting),
            steps=steps,
            seed=seed,
            with_state=env_key.with_state,
            index=whose[1],
            stopped=stopped,
        )
        return Rolled(living, trajectory, stats, encode(lane.save()))

    def play(
        self,
        env_key: EnvKey,
        acting: Mapping[str, Acting],
        *,
        sizes: Iterable[int],
        limits: PlayLimits,
        seed: int,
        stopped: Stopped = never,
    ) -> tuple[EpisodeStats, float]:
        """Play whole episodes in batches of these sizes until a limit is reached; returns their sums and the seconds.

        Actions are greedy, or random without policies.
        """
        running, played = RunningTime(), list[EpisodeStats]()
        for number, episodes in enumerate(sizes):
            if limits.reached(returns_of(played), running.seconds, episodes):
                break
            env = self._env(env_key._replace(envs=min(env_key.envs, episodes)))
            policies = _policies(env, acting) if acting else None
            at = batch_seed(seed, number)
            # An episode of a known length ends, however long it takes; another one may not.
            limit_s = limits.limit_s if env.spaces.max_steps is None else 0.0
            played.append(play(env, policies, episodes=episodes, seed=at, stopped=stopped, limit_s=limit_s))
            # No episode has ended within the time limit, and none would in another batch.
            if not played[-1].episodes:
                break
        return total(played), running.seconds

    def close(self) -> None:
        """Close all environments."""
        self._lanes.close()
        for env in self._envs.values():
            close_env(env)

    def _env(self, key: EnvKey) -> BatchedEnv:
        if key not in self._envs:
            self._envs[key] = _made(registry.make, key)
            while len(self._envs) > _CACHED_ENVS:
                close_env(self._envs.popitem(last=False)[1])
        self._envs.move_to_end(key)
        return self._envs[key]


def actor_seed(job_seed: int, mode: int, round_: int, index: int) -> int:
    """The 64-bit seed of one actor, a function of job, `Mode`, round and index only."""
    low, high = np.random.SeedSequence((job_seed, mode, round_, index)).generate_state(2)
    return int(high) << 32 | int(low)


def batch_seed(seed: int, number: int) -> int:
    """The seed of batch `number` of an actor's episodes."""
    return actor_seed(seed, 0, 0, number) if number else seed


def _made(make: Callable[..., BatchedEnv], key: EnvKey) -> BatchedEnv:
    options = documents.from_json(key.options_json, "env_options_json")
    if not isinstance(options, dict):
        raise SpecError("env_options_json: options are a JSON object")
    env = make(key.name, options, key.envs, with_state=key.with_state)
    if key.agents_crc32 and agents_checksum(env.spaces) != key.agents_crc32:
        close_env(env)
        raise SpecError(
            f"environment {key.name} has other agents here than where the job was accepted, or the same in another "
            f"order: {shown(list(env.spaces.agents))}; it must have the same agents in the same order in every "
            "process, so do not list them from a set"
        )
    return env


def _policies(env: BatchedEnv, acting: Mapping[str, Acting]) -> list[ActingPolicies]:
    return [
        ActingPolicies.from_states(agent_class, [acting[agent] for agent in agent_class.agents])
        for agent_class in env.spaces.classes
    ]
