"""What executes one job: all its parts, assembled once. Commands and the job's loop share them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from marless.jobs.job import PreparedJob
from marless.learning.data.returns import EpisodeReturns
from services.coordinator.execution.backoff import Backoff
from services.coordinator.execution.cancellation import Cancellation, Steps
from services.coordinator.execution.evaluations import Baseline, Evaluations
from services.coordinator.execution.machines import PoolMachines
from services.coordinator.execution.planning import Planner
from services.coordinator.execution.pools import Pools
from services.coordinator.execution.recovery import Recovery, SavedEpoch
from services.coordinator.execution.reservations import JobReservations, Prewarming
from services.coordinator.execution.timing import Timing
from services.coordinator.state.job_log import JobLog
from services.coordinator.state.journal import Costs, Flusher, Journal
from services.coordinator.state.pending_rollouts import LanePublisher, PendingRollouts
from services.coordinator.state.run_folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of one job's execution."""

    job_id: str
    job: PreparedJob
    folder: RunFolder
    pools: Pools
    log: JobLog
    costs: Costs
    journal: Journal
    planner: Planner
    recovery: Recovery
    cancellation: Cancellation
    backoff: Backoff
    steps: Steps
    reservations: JobReservations
    lanes: LanePublisher
    rolled_out: PendingRollouts
    evaluations: Evaluations
    baseline: Baseline
    machines: PoolMachines
    warming: Prewarming
    flusher: Flusher
    timing: Timing


@dataclass(frozen=True, kw_only=True)
class StatusAccess:
    """What the parts read and change of the job's status."""

    show: Callable[[str], None]
    """Called with the job's new `reason`."""
    show_baseline: Callable[[EpisodeReturns], None]
    """Called with the random baseline as far as it is measured."""
    epoch: SavedEpoch


def assemble(
    *,
    job_id: str,
    job: PreparedJob,
    folder: RunFolder,
    pools: Pools,
    log: JobLog,
    patience_s: float,
    status: StatusAccess,
) -> Parts:
    """The parts of a job's execution; nothing runs yet.

    Args:
        patience_s: Seconds that the job waits for a service that is down.
    """
    costs = Costs(job.spec, folder)
    journal, cancellation = Journal(folder, costs), Cancellation()
    return Parts(
        job_id=job_id,
        job=job,
        folder=folder,
        pools=pools,
        log=log,
        costs=costs,
        journal=journal,
        planner=Planner(job, journal),
        recovery=Recovery(
            job_id=job_id,
            job=job,
            folder=folder,
            pools=pools,
            journal=journal,
            log=log,
            saved=status.epoch,
        ),
        cancellation=cancellation,
        backoff=Backoff(patience_s, cancellation.asked),
        steps=Steps(cancellation, status.show),
        reservations=JobReservations(
            job_id=job_id, job=job, pools=pools, cancelled=cancellation.asked, show=status.show
        ),
        lanes=LanePublisher(job_id, pools.store),
        rolled_out=PendingRollouts(folder, journal),
        evaluations=Evaluations(job_id=job_id, job=job, pools=pools, log=log),
        baseline=Baseline(job_id=job_id, job=job, pools=pools, log=log, progressed=status.show_baseline),
        machines=PoolMachines(job_id, pools),
        warming=Prewarming(pools, job_id, wanted=job.spec.functions.prewarm),
        flusher=Flusher(folder),
        timing=Timing(),
    )
