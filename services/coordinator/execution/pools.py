"""What a job needs of the functions that act and learn for it: the protocol of pools, and what their calls return.

`ServicePools` calls the services over gRPC; `InProcessPools` runs the functions in the coordinator's own process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from marless.core.group import Group, LaneRecord, Versions
from marless.core.machine import MachineRecord
from marless.core.settings import Measure
from marless.jobs.job import PreparedJob
from marless.jobs.record import Distances, InvocationRecord
from marless.jobs.schedules.base import Learn
from marless.learning.data.returns import EpisodeReturns, EpisodeSums
from marless.rpc.param_store import PolicyStore
from marless.services.coordinator.state.job_log import JobLog
from marless.services.coordinator.state.run_folder import RunFolder


@dataclass(frozen=True)
class Rollout:
    """The result of a rollout: of a round's actors, or of an evaluation."""

    env_steps: int
    returns: EpisodeReturns | None
    invocations: tuple[InvocationRecord, ...]
    lanes: tuple[LaneRecord, ...] = ()
    """How a round's actors leave their lanes, if episodes are carried."""
    carries: Mapping[LaneRecord, bytes] = field(default_factory=dict)
    """The carries of those lanes that are not published yet."""
    broken_episodes: int = 0
    """As in the round's record."""


@dataclass(frozen=True)
class Played:
    """The result of a batch of the random baseline's episodes."""

    sums: EpisodeSums
    played_s: float
    """Seconds that the episodes took, less those in which the worker waited for a CPU."""


@dataclass(frozen=True)
class Update:
    """The result of an update."""

    versions: Versions
    metrics: Mapping[str, Mapping[str, float]]
    invocations: tuple[InvocationRecord, ...]
    distances: tuple[Distances, ...]
    room: int = 0
    """Number of actors of the next round for which the learner pool has reserved room already."""
    computed_by: tuple[str, ...] = ()
    """As in the round's record, also where nothing has changed."""


@dataclass(frozen=True)
class RolloutResult:
    """The result of one rollout of an asynchronous job."""

    env_steps: int
    sums: EpisodeSums
    invocations: tuple[InvocationRecord, ...]


@dataclass(frozen=True)
class GradientResult:
    """A gradient that a learner has put into the store, or a version that it has made of it by itself."""

    parts: Mapping[str, int]
    """Names and versions in the store, one of each scope."""
    metrics: Mapping[str, Mapping[str, float]]
    invocations: tuple[InvocationRecord, ...]
    distances: tuple[Distances, ...] = ()
    """Of the agents of each class, if asked for."""
    versions: Versions = field(default_factory=dict)
    """Of all that it has published by itself."""
    computed_by: tuple[str, ...] = ()
    """As of an `Update`; () if it was in the store already."""


class Pools(Protocol):
    """The actor pool and the learner pool, as a job's execution sees them."""

    @property
    def store(self) -> PolicyStore:
        """Where the job's versions are."""
        ...

    async def open_job(
        self,
        job_id: str,
        job: PreparedJob,
        epoch: int,
        groups: Sequence[Group],
        *,
        round_: int,
        opener: str = "",
        opening: int = 0,
    ) -> Versions:
        """Declare a job to the learner pool; returns the newest version of every policy and joint critic.

        Args:
            round_: The job's next round.
            opener: Names the epoch uniquely; "" if this call is not numbered.
            opening: The number of this call among its opener's: of two that arrive out of order, the later one counts.
        """
        ...

    async def close_job(self, job_id: str, *, epoch: int = 0, keep_replay: bool = False) -> None:
        """Make the learner pool drop a job; with `keep_replay`, all but its replay buffers.

        Raises FencedError if a newer epoch has begun; epoch 0 is for a job that no coordinator runs.
        """
        ...

    async def reserve(self, job_id: str, job: PreparedJob, round_: int, actors: int, *, epoch: int) -> None:
        """Reserve room for a round's trajectories in the learner pool; returns once there is room."""
        ...

    async def prewarm(self, job_id: str, actors: int) -> None:
        """Ask the actor pool to start workers for `actors` actors of a job; returns before they are ready."""
        ...

    async def machines(self, job_id: str) -> tuple[MachineRecord, ...]:
        """What the machines of both pools did for a job so far; those of a pool that does not answer are missing."""
        ...

    async def train(
        self,
        job_id: str,
        job: PreparedJob,
        round_: int,
        actors: int,
        groups: Sequence[Group],
        versions: Versions,
        lanes: Sequence[LaneRecord] = (),
        *,
        epoch: int,
    ) -> Rollout:
        """Run the actors of a round; when this returns, their trajectories are in the learner pool.

        Args:
            lanes: Those that have begun, as earlier rounds have left them, if episodes are carried.
        """
        ...

    async def evaluate(
        self, job_id: str, job: PreparedJob, round_: int, groups: Sequence[Group], versions: Versions, *, epoch: int
    ) -> Rollout:
        """Run greedy episodes, bounded by the spec's `evaluation`: their number, time and standard error."""
        ...

    async def play_randomly(
        self, job_id: str, job: PreparedJob, batch: int, episodes: int, *, background: bool = True
    ) -> Played:
        """Run one batch of the random baseline's episodes; with `background` at low priority, with a longer timeout."""
        ...

    async def update(  # noqa: PLR0913  # the fields of one request
        self,
        job_id: str,
        *,
        round_: int,
        epoch: int,
        env_steps: int,
        actors: int = 0,
        groups: Sequence[Group],
        versions: Versions,
        measure: Measure,
        rollouts: Sequence[int] = (),
        oldest: int = 0,
        keep: int = 0,
    ) -> Update:
        """Update every policy once: from the round's `actors` actors, or from these rollouts of one actor each.

        Args:
            oldest: No rollout before this one is needed any more.
            keep: Newest versions of each policy that are kept, if that is more than the store keeps.
        """
        ...

    async def sample(
        self, job_id: str, job: PreparedJob, rollout: int, groups: Sequence[Group], versions: Versions, *, epoch: int
    ) -> RolloutResult:
        """Run one rollout of an asynchronous job; when this returns, its trajectory is in the learner pool."""
        ...

    async def gradient(
        self,
        job_id: str,
        learn: Learn,
        groups: Sequence[Group],
        versions: Versions,
        peers: Sequence[Versions],
        *,
        measure: Measure,
        oldest: int,
        epoch: int,
    ) -> GradientResult:
        """Compute one gradient of every policy at these versions, and put it into the store.

        Args:
            peers: The versions that other learners compute from now.
            oldest: No trajectory of an earlier rollout is needed any more.
        """
        ...


@dataclass(frozen=True)
class JobContext:
    """One job, and what its execution reaches: its folder, the pools and its log."""

    job_id: str
    job: PreparedJob
    folder: RunFolder
    pools: Pools
    log: JobLog
