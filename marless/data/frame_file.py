"""Frames in a file that several processes may map and one at a time writes; it outlives all of them.

Who writes holds a lock. A process that is killed loses it, and the next one goes on with the file. A process that is
paused or slow keeps it: then the next one goes on with a copy under the same name, so that whoever wakes up writes into
a file that nobody reads any more. A count of writers in the header tells one that was overtaken between two writes.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import weakref
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from marless import private_files
from marless.data.frames import ReplaySchema
from marless.errors import StaleError, UnavailableError


class FrameFile:
    """`capacity` frames in a memory-mapped file; without a path, in memory that goes with the process.

    Raises UnavailableError if there is no room for them.
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

    @property
    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """By name, [capacity, …]; those of before a `look` or `own` are to be forgotten."""
        return self._arrays

    def look(self) -> None:
        """Map what is under the path now; the caller knows of whatever was written until now."""
        if self._path is None:
            return
        if not self._is_current(self._path):
            self._close()
            self._open(self._path)
        self._writers = int(self._header[0])

    def own(self) -> None:
        """Be the only one who writes, until `release`.

        Raises StaleError if somebody else has begun to write since this process last looked or owned.
        """
        if self._owned or self._path is None:
            return
        locked, exists = _lock(self._descriptor), self._path.exists()
        if exists and (not self._is_current(self._path) or self._header[0] != self._writers):
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            raise StaleError(f"replay {self._path}: another learner has gone on with it; load its state again")
        if not (locked and exists):
            self._copy(self._path)
        self._owned = True
        self._header[0] += 1
        self._writers = int(self._header[0])

    def release(self) -> None:
        """Let others write; twice is safe."""
        if self._owned and self._path is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self._owned = False

    def _is_current(self, path: Path) -> bool:
        """True if the file under the path is the mapped one."""
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
        """Go on in a file of one's own, and put it under the path."""
        before = self._bytes
        new = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        try:
            allocate(new, self._size)
            self._close()
            self._map(private_files.open_own(new, os.O_RDWR))
            _lock(self._descriptor)
            self._bytes[:] = before
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
        self._arrays = self._schema.arrays(buffer, self._capacity)

    def _close(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # the mapping keeps the file open, and with it the lock
        self._owned = False
        self._closing()


def allocate(path: Path, size: int) -> bool:
    """Have a file of this size, all of it really there; returns False if there was one.

    Raises UnavailableError if there is no room: later, that would be a bus error.
    """
    new = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        with suppress(FileNotFoundError):
            if path.lstat().st_size == size:
                return False
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
