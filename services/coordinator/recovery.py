"""Where a job stands: what its run folder, the store and the learner pool know of it, brought to agree.

One path serves a new job, one whose coordinator was killed or stopped, one that is resumed, and a round that met
trouble: what has been recorded is never done again as long as the store has its versions. If it has not, the newest
checkpoint is put back under the version numbers that it had, and the rounds after it are run again; in synchronous
mode to the same bits.
"""

from __future__ import annotations

import asyncio
import secrets

from marless.errors import SpecError
from marless.failpoint import reach
from marless.job import Job
from marless.rpc.concurrency import to_the_end
from marless.rpc.param_store import Listing
from services.coordinator.journal import Journal
from services.coordinator.logs import JobLog
from services.coordinator.pools import Pools, Versions
from services.coordinator.run_folder import RunFolder
from services.coordinator.snapshots import Snapshots
from services.coordinator.start import load

FIRST_VERSION = 1
"""Of every policy that no checkpoint has put back."""


class Recovery:
    """Brings one job's parts to agree, and holds its epoch."""

    def __init__(
        self, *, job_id: str, job: Job, folder: RunFolder, pools: Pools, journal: Journal, log: JobLog
    ) -> None:
        self._id = job_id
        self._job = job
        self._folder = folder
        self._pools = pools
        self._journal = journal
        self._log = log
        self.snapshots = Snapshots(job_id, folder, pools.store, log)
        self.epoch = 0
        """Of everything this coordinator publishes; 0 before the first."""
        self._opened = False

    async def stand(self, *, rolled_out: bool) -> Versions:
        """Agree on where the job stands and open it to the learner pool; returns the versions that its next round
        starts from. `rolled_out`: that round's rollout is done, its trajectories were in the learner pool.

        Raises what may pass (see `Patience`), and SpecError if what the job starts from does not fit.
        """
        if not self.epoch:
            await self._begin_epoch()
        present, last = await self._pools.store.list(self._id), self._journal.last
        if last and not _has(present, last.versions):
            await self._restore(present)
        elif not last and not rolled_out and not self._opened:
            await self._forget(present)  # of an earlier job of this name, or this one's first moments: done again
        opened = await self._open()
        self._opened = True
        return self._journal.last.versions if self._journal.last else dict.fromkeys(opened, FIRST_VERSION)

    async def end(self) -> None:
        """Let the pools and the store forget a job that has ended and whose checkpoint holds what it came to."""
        await self._pools.close_job(self._id, epoch=self.epoch)
        await self._drop()

    async def leave(self) -> None:
        """Let the learner pool forget a job that has ended and may be resumed, but for what it remembers of rounds."""
        await self._pools.close_job(self._id, epoch=self.epoch, keep_replay=True)

    async def _open(self) -> Versions:
        fresh = not self._journal.rounds and self._folder.start_path.exists()
        start = await asyncio.to_thread(load, self._folder.start_path, self._job) if fresh else None
        if start:
            await self.snapshots.start_from(start, self.epoch)
        groups = self._job.sharing.decide(self._journal.history).groups
        opened = await self._pools.open_job(self._id, self._job, self.epoch, groups, round_=self._journal.rounds)
        if start and (strangers := sorted(start.policies.keys() - opened.keys())):  # joint critics
            raise SpecError(f"start.checkpoint holds {', '.join(strangers)}, which this job has no use for")
        return opened

    async def _restore(self, present: Listing) -> None:
        """Put the newest checkpoint back and forget the rounds after it; without one, begin anew."""
        rounds = self._journal.rounds
        checkpoint = await asyncio.to_thread(self.snapshots.newest, rounds)
        back_to = checkpoint.progress.round if checkpoint else 0
        self._log.warning("job.versions_lost", rounds=rounds, goes_back_to=back_to)
        if back_to < rounds:
            await self._forget(present, keep_replay=bool(checkpoint))
        elif present.policies:
            await self._drop()
            await self._begin_epoch()
        if checkpoint:
            await self.snapshots.restore(checkpoint, self.epoch)
        await to_the_end(self._journal.cut, back_to)

    async def _forget(self, present: Listing, *, keep_replay: bool = False) -> None:
        """Have neither the learner pool nor the store know anything of the job, but for rounds it may need again."""
        await self._pools.close_job(self._id, epoch=self.epoch, keep_replay=keep_replay)
        if present.policies:
            await self._drop()
            await self._begin_epoch()

    async def _drop(self) -> None:
        """Delete the job's versions, which ends its epoch."""
        self._folder.check_owned()
        reach("coordinator.drop.before")
        await self._pools.store.delete_job(self._id, self.epoch)
        reach("coordinator.drop.after")

    async def _begin_epoch(self) -> None:
        """Shut out whoever publishes for this job: from here on only this coordinator may."""
        self._folder.check_owned()
        reach("coordinator.epoch.before")
        self.epoch = await self._pools.store.acquire_epoch(self._id, f"{self._id}/{secrets.token_hex(8)}")
        reach("coordinator.epoch.after")


def _has(present: Listing, versions: Versions) -> bool:
    policies = present.policies
    return all(name in policies and version in policies[name].versions for name, version in versions.items())
