"""Recovery of a job: brings its run folder, the store and the learner pool into a consistent state.

The same path serves a new job, a job whose coordinator was killed or stopped, a resumed job, and a round that failed
with a transient error. Recorded rounds are not run again as long as the store has their versions. If it has lost them,
the newest checkpoint is restored under its original version numbers, and the rounds after it are run again, with
bit-identical results in synchronous mode.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from marless.core.errors import CorruptError, SpecError
from marless.core.failpoint import failpoint
from marless.core.group import Versions
from marless.jobs.job import PreparedJob
from marless.jobs.record import RoundRecord
from marless.rpc import carries
from marless.rpc.concurrency import to_the_end
from marless.rpc.param_store import Listing
from marless.services.coordinator.execution.planning import FIRST_VERSION
from marless.services.coordinator.execution.pools import Pools
from marless.services.coordinator.state.checkpoints import Snapshots, load_start
from marless.services.coordinator.state.job_log import JobLog
from marless.services.coordinator.state.journal import Journal
from marless.services.coordinator.state.run_folder import RunFolder
from marless.storage.checkpoint import EARLIER


@dataclass(frozen=True)
class SavedEpoch:
    """The newest epoch under which an asynchronous job was worked on, in its durable state."""

    newest: int
    """0 if there is none, or the job was last worked on by a coordinator that did not save it."""
    save: Callable[[int], Awaitable[None]]
    """Makes an epoch durable, before anything is done under it."""


class Recovery:
    """Recovers one job, and holds its epoch."""

    def __init__(
        self,
        *,
        job_id: str,
        job: PreparedJob,
        folder: RunFolder,
        pools: Pools,
        journal: Journal,
        log: JobLog,
        saved: SavedEpoch,
    ) -> None:
        self._id = job_id
        self._job = job
        self._folder = folder
        self._pools = pools
        self._journal = journal
        self._log = log
        self.snapshots = Snapshots(job_id, folder, pools.store, log)
        self.epoch = 0
        """The epoch under which this coordinator publishes; 0 before it has acquired one."""
        self._saved = saved
        self._newest = saved.newest
        self._epoch_id = ""
        self._openings = 0
        self._opened = False
        self._restored = False
        self._goes_back = False

    def go_back(self) -> None:
        """Restore the newest checkpoint at the next recovery, whatever the store has."""
        self._goes_back = True

    async def recover(self, *, rolled_out: bool, acting: Versions) -> Versions:
        """Recover the job and declare it to the learner pool; returns the versions that its next round starts from.

        Args:
            rolled_out: That round's rollout is done, and its trajectories were in the learner pool.
            acting: The versions that act in that round if they are older than those it starts from.

        Raises transient errors (see `interruptions.PASSING`), and SpecError if the checkpoint it starts from does not
        fit.
        """
        if not self.epoch or (self._opened and self._job.spec.schedule.overlapping):
            # Events that were not recorded are forgotten, and the numbers of their rollouts are given again, for other
            # versions. Trajectories of a newer epoch replace those.
            await self._begin_epoch()
        # Looked at after the epoch has begun: whoever worked on the job before can publish nothing more meanwhile.
        present, last = await self._pools.store.list(self._id), self._journal.last
        if present.risk and not self._opened:
            self._log.warning("store.may_lose_data", advice=present.risk)
        if self._goes_back:
            await (self._restore(present) if last else self._discard_job(present))
            self._goes_back, self._restored = False, True
        # Older versions that act in the next round matter only if its actors have to run again.
        elif last and not (_has(present, last) and (rolled_out or _has_versions(present, acting))):
            await self._restore(present)
        elif not last and not rolled_out and not self._opened:
            await self._discard_job(present)  # left by an earlier job of this id, or by this one before its first round
        opened = await self._open()
        self._opened = True
        return self._journal.last.versions if self._journal.last else dict.fromkeys(opened, FIRST_VERSION)

    @property
    def restored(self) -> bool:
        """True if versions have come from a checkpoint since `forgotten` was called: what was under way is lost."""
        return self._restored

    def forgotten(self) -> None:
        """What was under way before versions were restored is forgotten, durably."""
        self._restored = False

    async def end(self) -> None:
        """Drop a job that has ended from the learner pool and the store; its final checkpoint is on disk."""
        await self._pools.close_job(self._id, epoch=self.epoch)
        await self._delete_versions()

    async def release(self) -> None:
        """Drop a job that has ended from the learner pool except for its replay buffers, so that it can be resumed."""
        await self._pools.close_job(self._id, epoch=self.epoch, keep_replay=True)

    async def _open(self) -> Versions:
        fresh = not self._journal.rounds and self._folder.start_path.exists()
        start = await asyncio.to_thread(load_start, self._folder.start_path, self._job) if fresh else None
        # Before the job is opened: then the learner pool publishes random weights for each policy that has no version.
        if start:
            await self.snapshots.start_from(start, self.epoch)
        groups = self._job.sharing.decide(self._journal.history).groups
        round_ = 0 if self._job.spec.schedule.overlapping else self._journal.rounds  # else rollouts have other numbers
        self._openings += 1
        opened = await self._pools.open_job(
            self._id,
            job=self._job,
            epoch=self.epoch,
            groups=groups,
            round_=round_,
            opener=self._epoch_id,
            opening=self._openings,
        )
        if start and (strangers := sorted(start.policies.keys() - opened.keys())):  # joint critics
            raise SpecError(f"start.checkpoint holds {', '.join(strangers)}, which this job does not use")
        return opened

    async def _restore(self, present: Listing) -> None:
        """Restore the newest checkpoint and drop the rounds after it; without a checkpoint, start from round 0."""
        self._restored = True
        rounds = self._journal.rounds
        try:
            checkpoint = await asyncio.to_thread(self.snapshots.newest, rounds)
        except CorruptError as error:
            raise CorruptError(f"{error}{'; ' * bool(present.risk)}{present.risk}") from None
        back_to = checkpoint.progress.round if checkpoint else 0
        why = {"advice": present.risk} if present.risk else {}
        self._log.warning("job.versions_lost", rounds=rounds, goes_back_to=back_to, **why)
        if (
            checkpoint
            and self._job.schedule.ahead
            and not any(EARLIER in p.blobs for p in checkpoint.policies.values())
        ):
            raise SpecError(
                f"the checkpoint of round {back_to} has no versions that act beside an update: this job was trained "
                f"under another schedule than {self._job.spec.schedule.name}; set that one in its spec.yaml"
            )
        # The replay's file stays: the restored state has a checksum for each of its rounds, and counts others as lost.
        if back_to < rounds:
            await self._discard_job(present, keep_replay=bool(checkpoint))
        elif present.policies:
            await self._delete_versions()
            await self._begin_epoch()
        if checkpoint:
            await self.snapshots.restore(checkpoint, self.epoch)
        # Last: as long as the later records are there, a coordinator that takes over finds their versions missing, and
        # restores once more.
        await to_the_end(self._journal.cut, back_to)

    async def _discard_job(self, present: Listing, *, keep_replay: bool = False) -> None:
        """Drop the job from the learner pool (with `keep_replay`, not its replay buffers) and from the store."""
        await self._pools.close_job(self._id, epoch=self.epoch, keep_replay=keep_replay)
        if present.policies:
            await self._delete_versions()
            await self._begin_epoch()

    async def _delete_versions(self) -> None:
        """Delete the job's versions from the store, which ends its epoch."""
        # Whoever has lost the folder must not delete what its successor works with.
        self._folder.check_owned()
        failpoint("coordinator.drop.before")
        await self._pools.store.delete_job(self._id, self.epoch)
        failpoint("coordinator.drop.after")

    async def _begin_epoch(self) -> None:
        """Acquire a new epoch: from here on, only this coordinator can publish for the job.

        A store that has lost its data counts epochs anew. But workers keep versions by epoch, and versions of an
        asynchronous job do not follow from its seed. So no epoch of such a job is used twice, by any coordinator.
        """
        # Whoever has lost the folder must not begin an epoch: it would fence its successor off.
        self._folder.check_owned()
        failpoint("coordinator.epoch.before")
        # The call is repeated under this id if its answer is lost, and then gets the same epoch. Another coordinator
        # of the job never has the same id, so that it gets a newer epoch.
        self._epoch_id = f"{self._id}/{secrets.token_hex(8)}"
        self.epoch = await self._pools.store.acquire_epoch(self._id, self._epoch_id, self._newest + 1)
        self._newest = self.epoch
        if self._job.spec.schedule.overlapping:
            await self._saved.save(self.epoch)
        failpoint("coordinator.epoch.after")


def _has(present: Listing, last: RoundRecord) -> bool:
    """True if the store has the versions of all policies and the carries of all lanes after this round."""
    lanes = all(carries.is_among(present.policies, lane) for lane in last.lanes)
    return lanes and _has_versions(present, last.versions)


def _has_versions(present: Listing, versions: Versions) -> bool:
    policies = present.policies
    return all(name in policies and version in policies[name].versions for name, version in versions.items())
