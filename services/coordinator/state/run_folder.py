"""A job's run folder, its durable state: everything that has been acknowledged is in here, fsynced.

spec.yaml            the resolved spec, every default written out
job.json             state, reason, random baseline
rounds.jsonl         one RoundRecord per line, appended before the next round starts
machines.json        what machines cost at the job's end and after it, see `marless.core.machine.Kept`
pending.json         the results of rollouts whose rounds are not recorded, each written before its round's update
start/               the checkpoint that the job starts from, if there is one
checkpoints/round-N/ the versions of all policies after N rounds, see `marless.storage.checkpoint`
log.jsonl            the job's log, see `job_log.py`
owner.lock           the owner's lock, see `ownership.py`

Only the owner writes. An owner that has lost the job may notice it late, between any two of its steps. Its late writes
have no effect: files are replaced by renaming a partial file, and the new owner first removes all partial files and
replaces the two files that are kept open, rounds.jsonl and pending.json. So a late rename finds no file, and a late
line goes to a file that has been unlinked.

`bucket_folder.py` has the run folders that are kept in a bucket. What is written to them is durable only after `flush`,
which does nothing here.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO

import yaml
from pydantic import ValidationError

from marless.core import private_files, regular_files
from marless.core.errors import (
    AlreadyExistsError,
    CorruptError,
    FencedError,
    NotFoundError,
    SpecError,
    UnavailableError,
)
from marless.core.failpoint import failpoint
from marless.core.limits import MAX_MACHINES_BYTES, MAX_PENDING_BYTES, MAX_SPEC_BYTES, MAX_STATUS_BYTES
from marless.core.machine import MACHINES, Kept, kept_from_json
from marless.core.private_files import UntrustedPathError
from marless.jobs import spec as specs
from marless.jobs.record import RoundRecord
from marless.jobs.spec import JobSpec
from marless.services.coordinator.state.ownership import Ownership, inherit
from marless.services.coordinator.state.status import STATUS, JobStatus, PendingRollout, pending_lines, pending_of
from marless.storage.bucket.reading import Choice
from marless.storage.checkpoint import Checkpoint, DiskCheckpoints, fsync, make_directory
from marless.storage.round_file import complete_bytes, read

DELETED = ".deleted-"
"""Prefix of the names of folders whose deletion is under way or was interrupted."""


class RunFolder:
    """The durable state of one job, written by its owner alone, on a disk; `BucketFolder` keeps it in a bucket.

    What a method has written is in the files of `path` when it returns, and MUST be durable when `flush` returns.
    Methods that write MUST raise FencedError unless the caller owns the job, and UnavailableError, naming the place, if
    it cannot be written. After either, the state MUST be what it was before the call. Both kinds pass the tests of
    `tests/contract/test_job_state.py`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rounds_path = path / "rounds.jsonl"
        self.log_path = path / "log.jsonl"
        self.start_path = path / "start"
        """Directory of the checkpoint that the job starts from; it exists only if there is one."""
        self._pending_path = path / "pending.json"
        self._disk = _DiskErrors(path)
        self.checkpoints = DiskCheckpoints(path / "checkpoints")
        self.ownership: Ownership | None = None
        self._rounds: IO[bytes] | None = None
        self._pending: IO[bytes] | None = None
        """This and `_rounds` are opened only by `take_over`, see the module's docstring."""

    # Ownership

    def check_ours(self) -> None:
        """Raise UnavailableError if the folder is another user's, in a directory that all users may write to."""
        with self._disk:
            private_files.check_way(self.path)

    def own(self) -> bool:
        """Become the owner if the lock is free; returns whether it was. Raises NotFoundError without a folder."""
        self.check_ours()
        with self._disk:
            try:
                self.ownership = Ownership.acquire(self.path)
            except FileNotFoundError:
                raise NotFoundError(f"there is no run folder {self.path}") from None
        return self.ownership is not None

    def keep_beating(self) -> None:
        """Show until `release` that the owner is alive; calling it twice is safe."""
        if self.ownership:
            self.ownership.keep_beating()

    async def inherit(self, lease_s: float) -> None:
        """Wait until the owner has exited, or has not touched its lock for `lease_s` seconds; then become the owner."""
        self.check_ours()
        with self._disk:
            try:
                self.ownership = await inherit(self.path, lease_s)
            except FileNotFoundError:
                raise NotFoundError(f"there is no run folder {self.path}") from None

    def release(self) -> None:
        """Release the lock and close the files; calling it twice is safe."""
        for file in (self._rounds, self._pending):
            if file:
                file.close()
        self._rounds = self._pending = None
        if self.ownership:
            self.ownership.release()

    def flush(self) -> None:
        """Wait until all that was written is durable."""

    @property
    def settled(self) -> bool:
        """True if `flush` has nothing to wait for."""
        return True

    def refresh(self, choice: Choice | None = None) -> None:
        """Update what is known of a job that another coordinator runs: its records, or what is chosen."""

    def take_over(self) -> None:
        """Fence off an earlier owner and drop the torn line that it may have left; always the owner's first step.

        Afterwards, nothing that an earlier owner writes MUST have an effect.
        """
        self.check_owned()
        with self._disk:
            failpoint("coordinator.take_over.before")
            for partial in self.path.glob("*.partial"):
                if partial.is_symlink() or not partial.is_dir():  # a directory is none of an owner's files
                    partial.unlink()
            self._rounds = self._renew(self.rounds_path, complete_bytes(self.rounds_path))
            self._pending = self._renew(self._pending_path, complete_bytes(self._pending_path))
            failpoint("coordinator.take_over.after")

    # The job

    def create(self, spec: JobSpec, status: JobStatus, start: Path | None = None) -> None:
        """Create and own the folder of a new job; `start` is the directory of a checkpoint to copy into it.

        Raises AlreadyExistsError if it holds a job, or one is being created there.
        """
        self.check_ours()
        with self._disk:
            make_directory(self.path)
        if not self._own_new():
            self.release()
            raise AlreadyExistsError(f"{self.path} contains a job already; choose another job id")
        try:
            with self._disk:
                if start:
                    _copy_directory(start, self.start_path)
            # The status comes last: a folder without one holds no job, so that a kill in between leaves nothing to be
            # taken up.
            self.write_spec(spec)
            self.write_status(status)
            self.flush()
        except BaseException:
            self.release()
            raise

    def _own_new(self) -> bool:
        """Become the owner of a folder that holds no job yet; returns whether that is so."""
        # Owned first: else another process could create its job between the look and the lock.
        return self.own() and not regular_files.is_there(self.path / "job.json")

    def load(self) -> tuple[JobSpec, JobStatus]:
        """Read spec.yaml and job.json; raises NotFoundError, CorruptError for what marless did not write, and
        UnavailableError if the system refuses to read them."""
        status = self.read_status()
        path = self.path / "spec.yaml"
        try:
            document = yaml.safe_load(regular_files.text(path, MAX_SPEC_BYTES))
            return specs.parse(document, str(path)), status
        except NotFoundError:
            raise NotFoundError(f"there is no job in {self.path}: {path} is missing") from None
        except (SpecError, yaml.YAMLError) as error:
            raise CorruptError(f"{self.path}: {' '.join(str(error).split())}") from None

    def read_status(self) -> JobStatus:
        """The content of job.json; raises NotFoundError, CorruptError or UnavailableError, as `load`."""
        path = self.path / "job.json"
        try:
            return STATUS.validate_json(regular_files.read(path, MAX_STATUS_BYTES))
        except NotFoundError:
            raise NotFoundError(f"there is no job in {self.path}: {path} is missing") from None
        except ValidationError:
            raise CorruptError(f"{path}: not a file that marless wrote, or one of another version") from None

    def write_spec(self, spec: JobSpec) -> None:
        """Replace spec.yaml."""
        self._replace("spec.yaml", spec.to_yaml(), at="spec")

    def write_status(self, status: JobStatus) -> None:
        """Replace job.json."""
        self._replace("job.json", json.dumps(asdict(status), indent=1), at="status")

    def read_kept(self) -> Kept | None:
        """The content of machines.json; None if there is none, or it is damaged."""
        try:
            return kept_from_json(regular_files.text(self.path / MACHINES, MAX_MACHINES_BYTES))
        except (NotFoundError, CorruptError, UnavailableError):
            return None

    def write_kept(self, kept: Kept) -> None:
        """Replace machines.json."""
        self._replace(MACHINES, kept.to_json(), at="machines")

    def delete(self) -> None:
        """Remove the folder; it is renamed first, so that an interrupted deletion leaves no half of a job."""
        self.check_owned()
        aside = self.path.with_name(f"{DELETED}{self.path.name}.{secrets.token_hex(4)}")
        with self._disk:
            self.path.rename(aside)
            fsync(aside.parent)
            shutil.rmtree(aside)
        self.release()

    # Rounds

    def append(self, record: RoundRecord) -> None:
        """Append a round durably; if this fails, the file is unchanged."""
        line, file = record.to_json().encode() + b"\n", self._rounds
        self.check_owned()
        assert file is not None  # opened by take_over
        failpoint("coordinator.record.before")
        with self._disk:
            before = file.seek(0, os.SEEK_END)
            try:
                _write(file, line, before)
                # The new size is synced with the data; only times are left out.
                os.fdatasync(file.fileno())
            except OSError:
                file.truncate(before)
                raise
        failpoint("coordinator.record.after")

    def records(self, first: int = 0) -> Iterator[RoundRecord]:
        """The recorded rounds from number `first` on; see `marless.storage.round_file.read`."""
        return read(self.rounds_path, first)

    def cut(self, rounds: int) -> None:
        """Drop all but the first `rounds` records, durably, and the checkpoints of later rounds."""
        self.check_owned()
        with self._disk:
            failpoint("coordinator.cut.before")
            with regular_files.opened(self.rounds_path) as file:
                kept = sum(len(line) for _, line in zip(range(rounds), file, strict=False))
            before, self._rounds = self._rounds, self._renew(self.rounds_path, kept)
            if before:
                before.close()
            # After the records: checkpoints that a kill leaves here are of rounds that are not recorded, and are passed
            # over.
            for later in self.checkpoints.rounds():
                if later > rounds and self.checkpoints.has(later):  # else it is a copy of another one
                    self.checkpoints.remove(later)
            failpoint("coordinator.cut.after")

    def write_pending(self, pending: Sequence[PendingRollout]) -> None:
        """Replace pending.json: a line for each round that is rolled out and not recorded, in order.

        It survives the end of this process at once, and a power failure after `sync_pending`. It is written in place,
        in microseconds, because the update waits for it: a torn line means that there was no update of its round yet,
        and that the rollout can be run again.
        """
        lines, file = pending_lines(pending), self._pending
        self.check_owned()
        assert file is not None  # opened by take_over
        failpoint("coordinator.pending.before")
        with self._disk:
            _write(file, lines, 0)
            file.truncate(len(lines))
        failpoint("coordinator.pending.after")

    def sync_pending(self) -> None:
        """Sync pending.json to the disk; runs concurrently with the update."""
        assert self._pending is not None  # opened by take_over
        with self._disk:
            os.fdatasync(self._pending.fileno())

    def read_pending(self, first: int) -> tuple[PendingRollout, ...]:
        """The results of rollouts from round `first` on; see `pending_of`."""
        try:
            return pending_of(regular_files.read(self._pending_path, MAX_PENDING_BYTES), first)
        except NotFoundError:
            return ()

    def drop_pending(self) -> None:
        """Remove pending.json."""
        self.check_owned()
        with self._disk:
            self._pending_path.unlink(missing_ok=True)

    # Checkpoints

    def save_checkpoint(self, checkpoint: Checkpoint, keep: int, spared: Collection[int] = ()) -> None:
        """Write a checkpoint atomically, unless its round has one; drop all but the `keep` newest and the `spared`."""
        self.check_owned()
        if self.checkpoints.has(checkpoint.progress.round):
            return
        with self._disk:
            failpoint("coordinator.checkpoint.before")
            self.checkpoints.save(checkpoint, keep, spared)
            failpoint("coordinator.checkpoint.after")

    def _replace(self, name: str, text: str, *, at: str) -> None:
        target = self.path / name
        partial = target.with_suffix(f".{secrets.token_hex(4)}.partial")
        self.check_owned()
        with self._disk:
            try:
                partial.write_text(text, encoding="utf-8")
                fsync(partial)
                self.check_owned()  # a coordinator that takes over from here on removes the partial file first
                failpoint(f"coordinator.{at}.before")
                partial.replace(target)
            except FileNotFoundError:
                raise FencedError(f"another coordinator has taken {self.path} over") from None
            except (FencedError, OSError):
                partial.unlink(missing_ok=True)
                raise
            # Without this, the old file may have the name again after a power failure.
            fsync(self.path)
            failpoint(f"coordinator.{at}.after")

    def _renew(self, path: Path, size_bytes: int) -> IO[bytes]:
        """Replace a file that is kept open by a copy of its first `size_bytes` bytes; returns the copy, open."""
        partial = path.with_suffix(f".{secrets.token_hex(4)}.partial")
        with partial.open("xb") as copy:
            if size_bytes:
                with regular_files.opened(path) as file:
                    shutil.copyfileobj(file, copy)
                copy.truncate(size_bytes)
            copy.flush()
            os.fsync(copy.fileno())
        renewed = partial.open("r+b", buffering=0)  # opened before it gets its name, which a later owner may replace
        self.check_owned()
        partial.replace(path)
        fsync(self.path)
        return renewed

    def check_owned(self) -> None:
        """Raise FencedError unless this coordinator owns the folder."""
        if self.ownership is None or self.ownership.lost:
            raise FencedError(f"another coordinator has taken {self.path} over")

    @property
    def replaced(self) -> bool:
        """True once another coordinator has taken the job, which this one had not released, over or deleted it."""
        return self.ownership is not None and not self.ownership.released and self.ownership.lost


class _DiskErrors:
    """Turns an OSError of its block into an UnavailableError that names the folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            advice = "choose another" if isinstance(error, UntrustedPathError) else "make room or choose another"
            raise UnavailableError(f"run folder {self._path}: {error.strerror}; {advice}") from None


def _write(file: IO[bytes], line: bytes, at_byte: int) -> None:
    """Write a whole line at an offset; raises OSError (ENOSPC) if the disk takes only a part of it."""
    if os.pwrite(file.fileno(), line, at_byte) < len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _copy_directory(source: Path, target: Path) -> None:
    # An acceptance that was killed may have copied a part of another checkpoint.
    shutil.rmtree(target, ignore_errors=True)
    # Directories and links are none of a checkpoint's files.
    shutil.copytree(
        source, target, ignore=lambda place, names: [name for name in names if not Path(place, name).is_file()]
    )
    for path in (*target.iterdir(), target):
        fsync(path)
