"""A run folder that is kept in a bucket, with a working copy on this machine.

Everything is written to the working copy first, where all readers find it, and then to the bucket by `flush`. The lock
of the working copy keeps other processes of this machine away, the head in the bucket all others.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

from marless.core import regular_files
from marless.core.errors import AlreadyExistsError, FencedError, MarlessError, NotFoundError
from marless.core.limits import MAX_STATUS_BYTES
from marless.core.log import structlog
from marless.jobs.record import RoundRecord
from marless.jobs.spec import JobSpec
from marless.rpc.concurrency import to_the_end
from marless.services.coordinator.state.bucket_state import BucketState
from marless.services.coordinator.state.ownership import LOCK
from marless.services.coordinator.state.run_folder import RunFolder
from marless.services.coordinator.state.status import JobStatus, PendingRollout, pending_lines
from marless.storage.bucket.reading import Choice
from marless.storage.checkpoint import Checkpoint, make_directory

LOOKS = 3
"""How often in a lease an owner renews it, and others look at it."""
_log = structlog.get_logger("coordinator")


class BucketFolder(RunFolder):
    """See `RunFolder`. Methods that talk to the bucket also raise what `marless.storage.bucket.objects` lists: `own`,
    `inherit`, `refresh`, `create`, `flush`, `sync_pending` and `delete`.
    """

    def __init__(self, path: Path, bucket_state: BucketState, copying: threading.Lock) -> None:
        """`copying` is one for all folders of this path: who updates the working copy locks it, and is no owner."""
        super().__init__(path)
        self.bucket_state = bucket_state
        self._copying = copying
        self._renewing: asyncio.Task[None] | None = None

    # Ownership

    def own(self) -> bool:
        """Become the owner if there is none; returns whether that is so. The working copy is updated."""
        return self._own_by(self.bucket_state.acquire)

    def _own_by(self, take: Callable[[], bool]) -> bool:
        with self._copying:
            # The copy first: while another process of this machine has it, nothing in it may be brought up to date.
            return self._own_copy() and self._own_home(take)

    def _own_copy(self) -> bool:
        self.check_ours()
        with self._disk:
            make_directory(self.path)
        return super().own()

    def _own_home(self, take: Callable[[], bool]) -> bool:
        """Own the job in the bucket, having locked its working copy, which is unlocked if that fails."""
        try:
            with self._disk:
                taken = take()
        except NotFoundError:
            shutil.rmtree(self.path, ignore_errors=True)  # of a job that was deleted elsewhere
            self.release()
            raise
        except BaseException:
            self.release()
            raise
        if not taken:
            self.release()
        return taken

    async def inherit(self, lease_s: float) -> None:
        """Wait until the job has no owner, or its owner has been silent for `lease_s` seconds; then become the owner.

        The lease is measured by this process's monotonic clock, between two looks at the head.
        """
        tag, since_s = "", time.monotonic()
        while True:
            # The answer to a look at a head that has not changed has no content, so that waiting costs little.
            found = await asyncio.to_thread(self.bucket_state.look, unless=tag)
            if found:
                tag, since_s = found[1], time.monotonic()
            free = (found and not found[0].owner) or time.monotonic() - since_s >= lease_s
            if free:
                try:
                    if await to_the_end(self._own_by, partial(self.bucket_state.seize, tag)):
                        return
                except BaseException:
                    self.release()  # a caller that was cancelled meanwhile never hears that the job is its own
                    raise
            await asyncio.sleep(lease_s / LOOKS)

    def keep_beating(self) -> None:
        super().keep_beating()
        if self._renewing is None:
            self._renewing = asyncio.create_task(_renew(self.bucket_state))

    def release(self) -> None:
        if self._renewing:
            self._renewing.cancel()
            self._renewing = None
        self.bucket_state.release()
        super().release()

    def check_owned(self) -> None:
        super().check_owned()
        if self.bucket_state.lost:
            raise FencedError(f"another coordinator has taken {self.bucket_state.place} over")

    def refresh(self, choice: Choice | None = None) -> None:
        """Update the working copy, unless a coordinator on this machine runs the job; raises NotFoundError."""
        with self._copying:
            if not self._own_copy():
                return
            try:
                with self._disk:
                    self.bucket_state.refresh(choice)
            except NotFoundError:
                shutil.rmtree(self.path, ignore_errors=True)
                raise
            finally:
                super().release()

    # What is durable

    def flush(self) -> None:
        """Wait until all that was written is in the bucket; raises FencedError."""
        with self._disk:
            self.bucket_state.flush()

    @property
    def settled(self) -> bool:
        """True if all that was written is in the bucket."""
        return self.bucket_state.settled

    def create(self, spec: JobSpec, status: JobStatus, start: Path | None = None) -> None:
        """Create and own a new job. Raises AlreadyExistsError."""
        try:
            super().create(spec, status, start)
        except FencedError:
            raise AlreadyExistsError(
                f"{self.bucket_state.place} has just been created elsewhere; choose another id"
            ) from None

    def _own_new(self) -> bool:
        if not self._own_by(self.bucket_state.begin):
            return False
        with self._disk:
            for path in self.path.iterdir():  # an earlier job's
                if not path.name.startswith(LOCK):
                    if path.is_dir() and not path.is_symlink():
                        shutil.rmtree(path)
                    else:
                        path.unlink()
        return True

    def _replace(self, name: str, text: str, *, at: str) -> None:
        super()._replace(name, text, at=at)
        if name == "job.json":
            self.bucket_state.note(status=regular_files.text(self.path / name, MAX_STATUS_BYTES))
        else:
            started = self.start_path.glob("*") if name == "spec.yaml" else ()
            self.bucket_state.note_files([name, *(str(path.relative_to(self.path)) for path in started)])

    def append(self, record: RoundRecord) -> None:
        super().append(record)
        self.bucket_state.note_round(record.to_json())

    def cut(self, rounds: int) -> None:
        super().cut(rounds)
        with self._disk:
            self.bucket_state.note_cut(rounds)
            self.bucket_state.note_checkpoints(self.checkpoints.rounds())

    def write_pending(self, pending: Sequence[PendingRollout]) -> None:
        super().write_pending(pending)
        self.bucket_state.note(pending=pending_lines(pending).decode())

    def sync_pending(self) -> None:
        super().sync_pending()
        self.flush()

    def drop_pending(self) -> None:
        super().drop_pending()
        self.bucket_state.note(pending="")

    def save_checkpoint(self, checkpoint: Checkpoint, keep: int, spared: Collection[int] = ()) -> None:
        super().save_checkpoint(checkpoint, keep, spared)
        with self._disk:
            self.bucket_state.note_checkpoints(self.checkpoints.rounds())
        self.bucket_state.note_files([self.log_path.name])

    def delete(self) -> None:
        """Remove the job from the bucket, and its working copy."""
        self.check_owned()
        # The bucket first: a working copy that is left behind is removed when it is next looked at, a job is not.
        self.bucket_state.delete()
        super().delete()


async def _renew(bucket_state: BucketState) -> None:
    trouble = ""
    while not bucket_state.lost:
        await asyncio.sleep(bucket_state.lease_s / LOOKS)
        try:
            await asyncio.to_thread(bucket_state.renew)
            trouble = ""
        except MarlessError as error:  # the next `flush` raises it; of a queued job, nobody else speaks
            if trouble != (trouble := str(error)):
                _log.warning("job.lease_not_renewed", error=trouble)
