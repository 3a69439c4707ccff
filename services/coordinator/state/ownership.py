"""Ownership of a job: a lock file in its run folder, locked by one coordinator and touched twice a second.

A free lock is taken at once: its holder has released it, or has exited, in whatever way. A lock whose holder no longer
touches it (the process is stopped or hangs) is taken over by renaming a new lock file over it. When the old holder
continues, the file at the path is not its own, and so it knows that it has lost the job.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOCK = "owner.lock"
BEAT_S = 0.5
Beat = tuple[int, int]
"""A lock file's inode, and when it was last touched, in Unix nanoseconds."""


class Ownership:
    """The held lock of a job. A coordinator writes into a run folder only while it holds one that is not `lost`."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._beating: asyncio.Task[None] | None = None

    @classmethod
    def acquire(cls, folder: Path) -> Ownership | None:
        """Take the lock of a run folder if it is free; returns None if it is held. Raises OSError."""
        path = folder / LOCK
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            held = cls(path, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return None
            if not held.lost:
                held.beat()
                return held
            os.close(descriptor)  # it was replaced or removed before we had locked it

    @classmethod
    def seize(cls, folder: Path, seen: Beat) -> Ownership | None:
        """Replace a lock that has not been touched since `seen` by a new one; returns None if it has been touched."""
        path = folder / LOCK
        with _replacing(folder) as alone:
            if not alone or beat_of(folder) != seen:
                return None
            new = folder / f"{LOCK}.{secrets.token_hex(4)}.partial"
            descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
            # Locked before it gets its name, so that nobody else can lock it first.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            new.rename(path)
        return cls(path, descriptor)

    @property
    def lost(self) -> bool:
        """True once another coordinator has taken the job over or deleted it."""
        try:
            there, ours = self._path.stat(), os.fstat(self._descriptor)
        except OSError:
            return True
        return (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino)

    @property
    def released(self) -> bool:
        """True after `release`."""
        return self._descriptor < 0

    def beat(self) -> None:
        """Touch the lock file, which shows that its holder is alive."""
        # By its descriptor: a holder that was replaced must not touch the lock of its successor.
        os.utime(self._descriptor)

    def keep_beating(self) -> None:
        """Touch the lock file every BEAT_S in a task of its own until `release`; calling it twice is safe."""
        if self._beating is None:
            self._beating = asyncio.create_task(self._beat_on())

    async def _beat_on(self) -> None:
        while not self.lost:
            self.beat()
            await asyncio.sleep(BEAT_S)

    def release(self) -> None:
        """Release the lock; calling it twice is safe."""
        if self._beating is not None:
            self._beating.cancel()
        if self.released:
            return
        with suppress(FileNotFoundError), _replacing(self._path.parent) as alone:
            # Removed while it is locked: whoever has opened it meanwhile sees, once it has the lock, that it has no
            # path any more.
            if alone and not self.lost:
                self._path.unlink()
        os.close(self._descriptor)
        self._descriptor = -1


def beat_of(folder: Path) -> Beat | None:
    """The present beat of a folder's lock; None if there is no lock."""
    try:
        status = (folder / LOCK).stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


async def inherit(folder: Path, lease_s: float) -> Ownership:
    """Wait until the lock of a folder is free, or has not been touched for `lease_s`, and take it.

    The lease is measured by this process's monotonic clock between two looks at the file, so that clocks of different
    machines are never compared.
    """
    seen, since_s = beat_of(folder), time.monotonic()
    while True:
        if held := Ownership.acquire(folder):
            return held
        beat = beat_of(folder)
        if beat != seen:
            seen, since_s = beat, time.monotonic()
        elif beat and time.monotonic() - since_s >= lease_s and (held := Ownership.seize(folder, beat)):
            return held
        await asyncio.sleep(min(BEAT_S, lease_s) / 4)


@contextmanager
def _replacing(folder: Path) -> Iterator[bool]:
    """Lock the folder while its lock file is removed or replaced, so that no other process does so; yields False if
    another process has the folder locked."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        alone = True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            alone = False
        yield alone
    finally:
        os.close(descriptor)
