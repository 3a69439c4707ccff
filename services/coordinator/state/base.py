"""The interface of a job's durable state, which everything that runs the job depends on.

`RunFolder` keeps it on a disk, `BucketFolder` in a bucket with a working copy on a disk. Both pass the tests of
`tests/contract/test_job_state.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from marless.core.machine import Kept
from marless.jobs.record import RoundRecord
from marless.jobs.spec import JobSpec
from marless.storage.checkpoint import Checkpoint, DiskCheckpoints
from services.coordinator.state.status import JobStatus, PendingRollout


class DurableJob(Protocol):
    """The durable state of one job, written by its owner alone.

    What a method has written is in the files of `path` when it returns, and MUST be durable when `flush` returns.
    Methods that write MUST raise FencedError unless the caller owns the job, and UnavailableError, naming the place, if
    it cannot be written. After either, the state MUST be what it was before the call.
    """

    path: Path
    """Directory of the job's files, for readers on this machine."""
    checkpoints: DiskCheckpoints

    @property
    def rounds_path(self) -> Path:
        """Path of the round records, a line each."""
        ...

    @property
    def start_path(self) -> Path:
        """Directory of the checkpoint that the job starts from; it exists only if there is one."""
        ...

    # Ownership

    def keep_beating(self) -> None:
        """Show until `release` that the owner is alive; calling it twice MUST be safe."""
        ...

    def check_owned(self) -> None:
        """Raise FencedError unless this coordinator owns the job."""
        ...

    def take_over(self) -> None:
        """Fence off an earlier owner and drop the torn line that it may have left; always the owner's first step.

        Afterwards, nothing that an earlier owner writes MUST have an effect.
        """
        ...

    def release(self) -> None:
        """Give the job up; calling it twice MUST be safe."""
        ...

    # Durability

    def flush(self) -> None:
        """Wait until all that was written is durable."""
        ...

    @property
    def settled(self) -> bool:
        """True if `flush` has nothing to wait for."""
        ...

    # Content

    def load(self) -> tuple[JobSpec, JobStatus]:
        """The spec and the status; raises NotFoundError, or CorruptError for what marless did not write."""
        ...

    def write_status(self, status: JobStatus) -> None:
        """Replace the status."""
        ...

    def write_kept(self, kept: Kept) -> None:
        """Replace what machines cost at the job's end and after it."""
        ...

    def records(self, first: int = 0) -> Iterator[RoundRecord]:
        """The recorded rounds from number `first` on."""
        ...

    def append(self, record: RoundRecord) -> None:
        """Append a round."""
        ...

    def cut(self, rounds: int) -> None:
        """Drop all but the first `rounds` records, and the checkpoints of later rounds."""
        ...

    def write_pending(self, pending: Sequence[PendingRollout]) -> None:
        """Replace the results of rollouts whose rounds are not recorded.

        They MUST survive the end of this process when this returns, and a power failure after `sync_pending`.
        """
        ...

    def sync_pending(self) -> None:
        """Make the results of rollouts durable; runs concurrently with the update."""
        ...

    def read_pending(self, first: int) -> tuple[PendingRollout, ...]:
        """The results of rollouts from round `first` on."""
        ...

    def drop_pending(self) -> None:
        """Remove the results of rollouts."""
        ...

    def save_checkpoint(self, checkpoint: Checkpoint, keep: int) -> None:
        """Save a checkpoint whole or not at all, unless its round has one, and drop all but the `keep` newest."""
        ...
