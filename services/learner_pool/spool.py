"""The directories of files of a learner pool and of its workers, inside the directory given by --spool.

    <home>/marless-spool-<random>/    trajectories of one pool until their update; removed with the pool. Also copies of
                                      replay files, of a worker on another host; removed with the worker
    <home>/marless-replay-<store>/    replay files; they outlive pools

The home is the given directory itself if only this user may write to it; in a shared one, such as /dev/shm, it is a
private subdirectory `marless-<uid>`. Earlier versions of marless had no home in shared directories: their files are
moved or removed.

A learner on another host than its pool reads and writes a copy of the replay file as it does a file of the pool. Before
an update, the worker fetches the rounds that the state names and the copy lacks; before it publishes the new state, it
writes the new round into the pool's file. So the pool's file holds all that published states name, and outlives the
worker and its host.
"""

from __future__ import annotations

import errno
import mmap
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from marless.core import private_files
from marless.core.errors import UnavailableError
from marless.core.private_files import Claim
from marless.learning.data.frame_file import allocate
from marless.learning.data.frames import ReplaySchema
from marless.learning.data.replay_buffer import byte_ranges
from marless.rpc.concurrency import gather
from marless.rpc.refs import Borrowed, Ref

_REPLAYS = "marless-replay-"
_TRAJECTORIES = "marless-spool-"


def memory_backed() -> str:
    """The default spool: shared memory if it can be written, else the directory for temporary files."""
    shared_memory = Path("/dev/shm")
    return str(shared_memory) if os.access(shared_memory, os.W_OK) else os.environ.get("TMPDIR", "/tmp")


def claim(place: Path) -> Claim:
    """Create a directory for the files of one process, and remove those of processes that were killed.

    Raises UnavailableError if the spool cannot be used.
    """
    with _usable(place):
        for home in homes(place):
            private_files.sweep(home, f"{_TRAJECTORIES}*")
        return Claim.make(homes(place)[0] / f"{_TRAJECTORIES}{secrets.token_hex(4)}")


def replays(place: Path, owner: str) -> Path:
    """The directory of replay files that all pools with the same `owner` use, one after another.

    Raises UnavailableError if the spool cannot be used.
    """
    name = f"{_REPLAYS}{owner}"
    with _usable(place):
        home, *earlier = homes(place)
        for before in earlier:
            with suppress(OSError):  # there is none, or it is another user's, or a link
                private_files.check(before / name)
                (before / name).rename(home / name)
        return private_files.directory(home / name)


def all_replays(place: Path) -> Iterator[Path]:
    """The replay directories of all of this user's pools, including those that have ended. Raises OSError."""
    for home in homes(place):
        for directory in home.glob(f"{_REPLAYS}*"):
            with suppress(OSError):  # another user's, or a link
                private_files.check(directory)
                yield directory


def homes(place: Path) -> list[Path]:
    """Directories that may hold this user's files in a spool; new ones go into the first. Raises OSError."""
    home = private_files.home(place)
    return [home] if home == place else [home, place]


@contextmanager
def _usable(place: Path) -> Iterator[None]:
    """Turn an OSError of the block into an UnavailableError that names the spool."""
    try:
        yield
    except OSError as error:
        raise UnavailableError(
            f"spool directory {error.filename or place}: {error.strerror}; choose another with --spool"
        ) from None


def write(path: Path, content: bytes) -> None:
    """Write a file; it is not there if that raises UnavailableError."""
    try:
        with os.fdopen(private_files.open_own(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb", 0) as file:
            # Without a buffer, a disk that becomes full takes a part, and says how much, instead of raising an error.
            if file.write(content) == len(content):
                return
        trouble = os.strerror(errno.ENOSPC)
    except OSError as error:
        trouble = str(error.strerror)
    path.unlink(missing_ok=True)
    raise _full(path, trouble)


def _full(path: Path, trouble: str) -> UnavailableError:
    return UnavailableError(f"spool {path.parent}: {trouble}; give it room or choose another --spool")


@contextmanager
def mapped(path: Path, size: int) -> Iterator[tuple[Path, memoryview]]:
    """Create a file of `size` bytes, mapped for writing; it is removed if the block raises."""
    try:
        descriptor = private_files.open_own(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            os.posix_fallocate(descriptor, 0, size)  # a full disk is an error here, not a bus error later
            mapping = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise _full(path, str(error.strerror)) from None
    buffer = memoryview(mapping)
    try:
        yield path, buffer
    except BaseException:
        path.unlink(missing_ok=True)
        raise


Arrays = Mapping[str, NDArray[np.generic]]


class Mirror:
    """A copy of one replay file. `place` is a directory of this host; raises UnavailableError if it has no room."""

    def __init__(self, borrowed: Borrowed, place: Path, schema: ReplaySchema, capacity: int) -> None:
        self._borrowed = borrowed
        self._schema = schema
        self._capacity = capacity
        self._missing: Arrays | None = None
        """A published state whose rounds the copy may lack."""
        self.path = place / secrets.token_hex(8)
        allocate(self.path, schema.file_bytes(capacity))

    def expect(self, state: Arrays) -> None:
        """Note that the learner goes on from this published state, which other workers may have written."""
        self._missing = state

    async def pull(self, ref: Ref) -> None:
        """Fetch what the expected state names; raises CorruptError for a state of another replay, UnreachableError."""
        if self._missing is None:
            return
        ranges = byte_ranges(self._schema, self._capacity, self._missing)
        content = self._mapped()
        await gather(self._borrowed.read(ref, [each], content[each]) for each in ranges)
        # Only now: if a piece could not be fetched, the next update fetches all of them again.
        self._missing = None

    async def push(self, ref: Ref, state: Arrays, round_: int) -> None:
        """Write a round of the learner's state into the pool's file; raises UnreachableError, UnavailableError."""
        ranges, content = byte_ranges(self._schema, self._capacity, state, round_), self._mapped()
        await self._borrowed.write(ref, ranges, memoryview(b"".join(content[each] for each in ranges)))

    def remove(self) -> None:
        """Remove the copy; idempotent."""
        self.path.unlink(missing_ok=True)

    def _mapped(self) -> memoryview:
        descriptor = private_files.open_own(self.path, os.O_RDWR)
        try:
            return memoryview(mmap.mmap(descriptor, 0))
        finally:
            os.close(descriptor)
