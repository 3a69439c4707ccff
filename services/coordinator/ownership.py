"""Who runs a job: one lock file in its run folder, locked by one coordinator and touched twice a second.

A lock that is free is taken at once: its holder is dead, however it went. A lock that is held by a process that no
longer touches it (stopped, or hanging) is taken over by renaming a new lock file over it; when the old holder wakes
up, the file at the path is not its own any more, and it knows that it has lost the job.
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
"""A lock file and when it was last touched: inode, nanoseconds."""


class Ownership:
    """A job's lock, held. Nothing is written into a run folder without one that is not `lost`."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._beating: asyncio.Task[None] | None = None

    @classmethod
    def acquire(cls, folder: Path) -> Ownership | None:
        """Take the lock of a run folder if it is free; None if another holds it. Raises OSError."""
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
        """Put a new lock in the place of one that has not been touched since `seen`; None if it has been."""
        path = folder / LOCK
        with _replacing(folder) as alone:
            if not alone or beat_of(folder) != seen:
                return None
            new = folder / f"{LOCK}.{secrets.token_hex(4)}.partial"
            descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            new.rename(path)
        return cls(path, descriptor)

    @property
    def lost(self) -> bool:
        """True once another has taken the job over, or deleted it."""
        try:
            there, ours = self._path.stat(), os.fstat(self._descriptor)
        except OSError:
            return True
        return (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino)

    def beat(self) -> None:
        """Show that the holder lives."""
        os.utime(self._descriptor)

    def keep_beating(self) -> None:
        """Beat from now on, as long as this event loop runs, until `release`; twice is safe."""
        if self._beating is None:
            self._beating = asyncio.create_task(self._beat_on())

    async def _beat_on(self) -> None:
        while not self.lost:
            self.beat()
            await asyncio.sleep(BEAT_S)

    def release(self) -> None:
        """Let go of the job; twice is safe."""
        if self._beating is not None:
            self._beating.cancel()
        if self._descriptor < 0:
            return
        with suppress(FileNotFoundError), _replacing(self._path.parent) as alone:
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

    What counts is that the beat was not seen to move by this process's own clock: no two clocks are compared.
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
    """Around the removal or replacement of a lock file, so that it hits the one that was seen; False: not now."""
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
