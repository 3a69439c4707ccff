"""One task of an actor: what it plays under which policies, and what comes of it."""

from __future__ import annotations

import hashlib
import resource
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from marless.core.errors import MarlessError
from marless.core.stopwatch import Stopwatch
from marless.learning.data.episodes import EpisodeStats
from marless.learning.data.player import EnvKey, Mode, Player, actor_seed
from marless.learning.data.returns import PlayLimits, batches
from marless.learning.data.trajectory import Trajectory
from marless.learning.envs import registry
from marless.learning.nets.acting import Acting

HERE = "in-process"
"""The name of this process as a worker, in records."""


@dataclass(frozen=True, kw_only=True)
class ActorTask:
    """What one actor is to do; plain values only, so that it can be sent to another process as JSON."""

    job: str
    mode: Mode
    round: int
    index: int
    env: EnvKey
    seed: int
    """The job's."""
    acting: Mapping[str, tuple[str, int]]
    """Policy and version by agent; {} to act at random."""
    steps: int = 0
    """Time steps of a rollout."""
    digest: str | None = None
    """Of the carry from which a lane goes on, "" if it begins; None for episodes that are not carried."""
    episodes: int = 0
    """Episodes to play, for an evaluation."""
    limit_s: float = 0.0
    relative_error: float = 0.0
    actors: int = 1
    """Actors that share the evaluation."""
    timeout_s: float
    """Seconds that it may take in a worker; a plain call has no limit, because it may stand in a debugger."""

    @property
    def actor_seed(self) -> int:
        """The seed of this actor alone."""
        return actor_seed(self.seed, self.mode, self.round, self.index)


@dataclass(frozen=True, kw_only=True)
class ActorResult:
    """What one actor has done, and what it has used."""

    worker: str = HERE
    attempt: int = 1
    stats: EpisodeStats
    trajectory: Trajectory | None = None
    carry: bytes = b""
    """The state in which it leaves its lane, if episodes are carried."""
    played_s: float = 0.0
    """Seconds that an evaluation's episodes took."""
    start_s: float
    end_s: float
    vcpu_s: float
    memory_bytes: int


def perform(task: ActorTask, player: Player, acting: Mapping[str, Acting], loaded: bytes = b"") -> ActorResult:
    """Do a task in this process.

    Args:
        acting: The policy of each agent.
        loaded: The carry of `task.digest`, unless the player has the lane.

    What is raised for a fault of the environment has the traceback in its `detail`.
    """
    try:
        return _performed(task, player, acting, loaded)
    except MarlessError as error:
        if error.__context__ is not None and not error.detail:
            error.detail = "".join(traceback.format_exception(error.__context__))
        raise


def _performed(task: ActorTask, player: Player, acting: Mapping[str, Acting], loaded: bytes) -> ActorResult:
    running, cpu_s = Stopwatch.start(), time.process_time()
    trajectory, carry, played_s = None, b"", 0.0
    if task.mode is not Mode.TRAIN:
        stats, played_s = player.play(task.env, acting, sizes=_sizes(task), limits=_limits(task), seed=task.actor_seed)
    elif task.digest is None:
        trajectory, stats = player.roll_out(task.env, acting, steps=task.steps, seed=task.actor_seed)
    else:
        rolled = player.go_on(
            task.env,
            acting,
            whose=(task.job, task.index),
            digest=task.digest,
            loaded=loaded,
            steps=task.steps,
            seed=task.actor_seed,
        )
        trajectory, stats, carry = rolled.trajectory, rolled.stats, rolled.carry
        rolled.living.digest = hashlib.sha256(carry).hexdigest()
    return ActorResult(
        stats=stats,
        trajectory=trajectory,
        carry=carry,
        played_s=played_s,
        start_s=running.started_s,
        end_s=running.now_s,
        vcpu_s=time.process_time() - cpu_s,
        memory_bytes=memory_bytes(),
    )


def memory_bytes() -> int:
    """The most memory that this process has used so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _sizes(task: ActorTask) -> Iterator[int]:
    """The number of episodes of each batch; those of the random baseline are single batches."""
    if task.mode is Mode.RANDOM:
        return iter((task.episodes,))
    return batches(task.episodes, task.env.envs, one_by_one=registry.one_by_one(task.env.name))


def _limits(task: ActorTask) -> PlayLimits:
    return PlayLimits(
        episodes=task.episodes, limit_s=task.limit_s, relative_error=task.relative_error, parts=max(task.actors, 1)
    )
