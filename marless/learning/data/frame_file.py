"""A persistent file of replay frames, memory-mapped by several processes, of which one at a time writes.

The writer holds a lock. If it is killed, the lock is released and the next writer continues with the file. If it is
only paused or slow, it keeps the lock: then the next writer continues with a copy under the same path, so that the old
one writes into a file that is no longer read. The header counts the writers; by it, a process notices that another one
has written in between.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from marless.core import private_files
from marless.core.errors import SpecError, StaleError, UnavailableError
from marless.learning.data.frames import ALIGNMENT, ReplaySchema


class FrameFile:
    """`capacity` frames in a memory-mapped file; without a path, in memory of this process.

    Raises UnavailableError if there is not enough disk space.
    """

    def __init__(self, schema: ReplaySchema, capacity: int, path: Path | None) -> None:
        self._schema = schema
        self._capacity = capacity
        self._path = path
        self._size = schema.file_bytes(capacity)
        self._owned = path is None
        if path is None:
            self._show(mmap.mmap(-1, self._size))
        else:
            self._open(path)

    def look(self) -> None:
        """Map the file that is at the path now, and note its writer count, which `own` compares."""
        if self._path is None:
            return
        if not self._is_current(self._path):
            self._close()
            self._open(self._path)
        self._writers = int(self._header[0])

    def own(self) -> None:
        """Become the only writer until `release`.

        Raises StaleError if another process has begun to write since this one last called `look` or `own`.
        """
        if self._owned or self._path is None:
            return
        locked, exists = _lock(self._descriptor), self._path.exists()
        # Holds without the lock, too: a writer counts itself before it writes, so an equal count means that nothing was
        # written since, although a paused writer may still hold the lock.
        if exists and (not self._is_current(self._path) or self._header[0] != self._writers):
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            raise StaleError(f"replay {self._path}: another learner has gone on with it; load its state again")
        if not (locked and exists):
            self._copy(self._path)
        self._owned = True
        # Before the first byte is written, so that whoever has looked at the file before notices.
        self._header[0] += 1
        self._writers = int(self._header[0])

    def release(self) -> None:
        """Release the write lock; idempotent."""
        if self._owned and self._path is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self._owned = False

    def put(self, ranges: Sequence[slice], content: memoryview) -> None:
        """Write these ranges of bytes, which are one after another in `content`, as the only writer meanwhile.

        Raises SpecError for ranges outside of the frames, StaleError as `own`.
        """
        if any(not ALIGNMENT <= each.start <= each.stop <= self._size for each in ranges):
            raise SpecError(f"frames are in bytes {ALIGNMENT} to {self._size:,} of a replay")
        self.look()
        self.own()
        try:
            at = 0
            for each in ranges:
                stop = at + each.stop - each.start
                self._bytes[each] = np.frombuffer(content[at:stop], np.uint8)
                at = stop
        finally:
            self.release()

    def _is_current(self, path: Path) -> bool:
        """True if the file at the path is the mapped one."""
        with suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(self._descriptor), path.lstat())
        return False

    def _open(self, path: Path) -> None:
        allocate(path, self._size)
        try:
            self._map(private_files.open_own(path, os.O_RDWR))
        except OSError as error:
            raise _no_room(path, error) from None

    def _copy(self, path: Path) -> None:
        """Continue with a locked copy of the file, and move it to the path."""
        before = self._bytes
        new = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        try:
            allocate(new, self._size)
            self._close()
            self._map(private_files.open_own(new, os.O_RDWR))
            _lock(self._descriptor)
            self._bytes[:] = before
            # Locked and complete before it takes the path, so that nobody finds a part of it, or writes to it first.
            new.replace(path)
        except OSError as error:
            new.unlink(missing_ok=True)
            raise _no_room(path, error) from None

    def _map(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._closing = weakref.finalize(self, os.close, descriptor)
        self._show(mmap.mmap(descriptor, self._size))
        self._writers = int(self._header[0])

    def _show(self, mapping: mmap.mmap) -> None:
        buffer = memoryview(mapping)
        self._bytes = np.frombuffer(buffer, np.uint8)
        self._header = np.frombuffer(buffer, np.int64, 1)
        self.arrays = self._schema.arrays(buffer, self._capacity)
        """Arrays by name, [capacity, …]. Invalidated by `look` and `own`: do not keep them."""

    def _close(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # the mapping keeps the file open, and with it the lock
        self._owned = False
        self._closing()


def allocate(path: Path, size: int) -> bool:
    """Create a file of this size with all its blocks allocated; returns False if there was one of this size.

    Raises UnavailableError if there is not enough space; without allocation, writing would cause a bus error later.
    """
    new = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        with suppress(FileNotFoundError):
            if path.lstat().st_size == size:
                return False
        # Under another name until its blocks are allocated: a file of this size at the path has all of them.
        descriptor = private_files.open_own(new, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            os.posix_fallocate(descriptor, 0, size)
        finally:
            os.close(descriptor)
        new.replace(path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise _no_room(path, error) from None
    return True


def _no_room(path: Path, error: OSError) -> UnavailableError:
    return UnavailableError(
        f"replay {path}: {error.strerror}; give it room, choose another --spool, or lower algorithm.replay.capacity"
    )


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
