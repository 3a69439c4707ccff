"""Copies checkpoints between the store and the disk, as bytes that the coordinator does not interpret."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from marless.core.errors import CorruptError, NotFoundError
from marless.core.failpoint import failpoint
from marless.core.group import Versions
from marless.core.lanes import LaneRecord
from marless.rpc import carries
from marless.rpc.concurrency import to_the_end
from marless.rpc.param_store import PolicyStore, PolicyWrite, StoredVersion
from marless.storage.checkpoint import EARLIER, PARTS, Checkpoint, CheckpointProgress, SavedLane, SavedPolicy
from services.coordinator.state.base import DurableJob
from services.coordinator.state.job_log import JobLog


class Snapshots:
    """Saves the versions of one job to disk, and restores them."""

    def __init__(self, job_id: str, folder: DurableJob, store: PolicyStore, log: JobLog) -> None:
        self._id = job_id
        self._folder = folder
        self._store = store
        self._log = log

    async def save(
        self, progress: CheckpointProgress, versions: Versions, acting: Versions, lanes: Sequence[LaneRecord], keep: int
    ) -> None:
        """Copy these versions and lanes to disk, unless the round has a checkpoint; drop all but the `keep` newest.

        Of policies that act in the next round with an earlier version, `acting`, that one is saved, too.
        """
        # After a restart, the checkpoint of the newest round is due once more.
        if await asyncio.to_thread(self._folder.checkpoints.has, progress.round):
            return
        stored = await self._store.get(self._id, dict(versions), PARTS)
        earlier = {name: version for name, version in acting.items() if version < versions[name]}
        acts = await self._store.get(self._id, earlier, ("acting",)) if earlier else {}
        policies = {
            name: SavedPolicy(version=each.version, blobs={**each.blobs, **_earlier(acts.get(name))})
            for name, each in stored.items()
        }
        held = [SavedLane(lane, data) for lane, data in await carries.fetch_all(self._store, self._id, lanes)]
        checkpoint = Checkpoint(progress=progress, policies=policies, lanes=tuple(held))
        await to_the_end(self._folder.save_checkpoint, checkpoint, keep)
        self._log.info("checkpoint.saved", round=progress.round)

    def newest(self, rounds: int) -> Checkpoint | None:
        """The newest readable checkpoint of the first `rounds` rounds; None if there are no checkpoints.

        Raises CorruptError if there are some and none is readable.
        """
        problem = ""
        for round_ in reversed(self._folder.checkpoints.rounds()):
            if round_ > rounds:
                continue
            try:
                return self._folder.checkpoints.load(round_, (*PARTS, EARLIER), lanes=True)
            except (CorruptError, NotFoundError) as error:
                self._log.error("checkpoint.unreadable", round=round_, error=str(error))
                problem = problem or str(error)
        if problem:
            raise CorruptError(f"the store has lost the job's versions, and no checkpoint can be read: {problem}")
        return None

    async def restore(self, checkpoint: Checkpoint, epoch: int) -> None:
        """Publish a checkpoint's policies and carries under their original versions.

        The store must hold no version of the job.
        """
        failpoint("coordinator.restore.before")
        round_ = checkpoint.progress.round
        for name, saved in checkpoint.policies.items():
            await self._restore(epoch, round_, name, saved)
        for held in checkpoint.lanes:
            await carries.restore(self._store, self._id, epoch, round_, held.lane, held.data)
        failpoint("coordinator.restore.after")

    async def start_from(self, checkpoint: Checkpoint, epoch: int) -> None:
        """Publish another job's checkpoint as the first versions of this one; idempotent."""
        for name, saved in checkpoint.policies.items():
            await self._publish(epoch, 0, name, saved, "init", 1)

    async def _restore(self, epoch: int, round_: int, name: str, saved: SavedPolicy) -> None:
        """Publish a policy under its version, after the earlier one that acts in the next round, if there is one."""
        what, version = f"restore-{round_}", saved.version
        if EARLIER not in saved.blobs:
            await self._publish(epoch, round_, name, saved, what, version)
            return
        earlier = SavedPolicy(version=version - 1, blobs={"acting": saved.blobs[EARLIER]})
        await self._publish(epoch, round_, name, earlier, f"{what}/earlier", version - 1)
        newest = {part: blob for part, blob in saved.blobs.items() if part != EARLIER}
        write = PolicyWrite(name, version - 1, f"{self._id}/{what}/{name}", newest)
        await self._store.publish(self._id, epoch, round_, [write])

    async def _publish(self, epoch: int, round_: int, name: str, saved: SavedPolicy, what: str, version: int) -> None:
        write = PolicyWrite(
            policy=name,
            expected=0,
            req_id=f"{self._id}/{what}/{name}",
            blobs=saved.blobs,
            first_version=version,
        )
        await self._store.publish(self._id, epoch, round_, [write])


def _earlier(acts: StoredVersion | None) -> dict[str, memoryview]:
    return {EARLIER: acts.blobs["acting"]} if acts else {}
