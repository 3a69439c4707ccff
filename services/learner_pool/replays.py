"""The replay files of off-policy jobs. They outlive workers and the pool: the next pool of the same store finds them.

They lie in the spool, and count against its limit. A file is removed when its job is closed, when room is needed and no
job of this pool has it open, or when it has not been used for `keep_s` seconds.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from marless.core.errors import OverloadedError, TooLargeError
from marless.core.log import structlog
from marless.core.state import REPLAY
from marless.learning.data.frame_file import allocate
from marless.services.learner_pool import spool
from marless.services.learner_pool.trajectory_buffer import TrajectoryBuffer

_OUTCOMES = ("inserted", "dropped", "lost", "drawn")
_log = structlog.get_logger("learner_pool")
Metrics = Mapping[str, Mapping[str, float]]
"""Metrics of an update by published name, then by metric."""


class Replays:
    """The replay files of one learner pool.

    `owner` is the address of the pool's store: it distinguishes the pool from others of this host, and does not change
    at a restart. The constructor raises UnavailableError if the spool cannot be written.
    """

    def __init__(self, place: Path, owner: str, buffer: TrajectoryBuffer, keep_s: float) -> None:
        self._place = place
        self._name = hashlib.sha256(f"{os.getuid()} {owner}".encode()).hexdigest()[:16]
        self._directory = spool.replays(place, self._name)
        self._buffer = buffer
        self._keep_s = keep_s
        self._open: dict[str, dict[str, Path]] = {}
        """Paths by open job, then by name of the scope."""
        self._reported: dict[Path, Mapping[str, float]] = {}
        """The last metrics of each file; there are none yet for a file of an earlier pool."""
        self.samples: Counter[str] = Counter(dict.fromkeys(_OUTCOMES, 0))
        """Env steps inserted, dropped and lost, and samples drawn, since this pool was started."""
        self._lock: int | None = None
        self._hold()
        self._sweep()

    @property
    def held_bytes(self) -> int:
        """Total bytes of all files, whether their jobs are open or not."""
        return sum(_size(path) for path in _files(self._directory))

    def open(self, job: str, sizes: Mapping[str, int]) -> None:
        """Open a job: create a replay file for each scope that has none.

        Args:
            sizes: Bytes of each file, by name of the scope.

        Raises TooLargeError if a file exceeds the spool's limit, OverloadedError if it exceeds the free room,
        UnavailableError if the disk is full.
        """
        paths = {scope: self._directory / f"{quote(job, safe='')}@{quote(scope, safe='')}" for scope in sizes}
        # Before the sweep, which removes files that were not used for long and are of no open job.
        self._open[job] = paths
        self._sweep()
        spool.replays(self._place, self._name)  # made again if another pool has removed it, empty and old
        self._hold()
        for scope, path in paths.items():
            if not path.exists():
                self._make_room(sizes[scope], f"job {job}: the replay of {scope}")
                allocate(path, sizes[scope])
                self._reported[path] = {}
                self._buffer.budget.set_aside(self.held_bytes)
            os.utime(path)

    def missing_bytes(self, job: str, sizes: Mapping[str, int]) -> int:
        """Bytes of the files of an open job that do not exist yet."""
        return sum(size for scope, size in sizes.items() if not self._open[job][scope].exists())

    def path(self, job: str, scope: str) -> Path | None:
        """The file of a scope; None if its algorithm has no replay buffer."""
        return self._open.get(job, {}).get(scope)

    def used(self, job: str, metrics: Metrics) -> None:
        """Mark a job's files as used, and count samples from an update's metrics; warns of lost ones."""
        for scope, path in self._open.get(job, {}).items():
            with suppress(OSError):
                os.utime(path)
            now = metrics.get(f"{REPLAY}.{scope}")
            if now is None:
                continue
            before = self._reported.get(path, now)
            if not before and now["lost"]:  # a new file of a job whose earlier file was lost
                before = {**now, "lost": 0.0}
            more = {name: max(0, int(now[name] - before.get(name, 0.0))) for name in _OUTCOMES}
            self.samples.update(more)
            self._reported[path] = now
            if more["lost"]:
                _log.warning("replay.lost", job=job, scope=scope, lost=more["lost"], size=int(now["size"]))

    def evict(self, job: str) -> None:
        """Close a job and keep its files, for when it is opened again."""
        for path in self._open.pop(job, {}).values():
            self._reported.pop(path, None)

    def close(self, job: str) -> None:
        """Close a job and remove its files; calling it twice is safe."""
        self.evict(job)
        for path in self._directory.glob(f"{quote(job, safe='')}@*"):
            path.unlink(missing_ok=True)
        self._buffer.budget.set_aside(self.held_bytes)

    def shutdown(self) -> None:
        """Release the directory, and remove it if it is empty; files stay."""
        self._evict()
        with suppress(OSError):
            self._directory.rmdir()

    def _hold(self) -> None:
        """Lock the directory, so that other pools do not remove its files, however old they look."""
        self._evict()
        self._lock = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_SH)

    def _evict(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _make_room(self, size: int, whose: str) -> None:
        """Remove files that no job has open, the longest unused first, until `size` bytes fit."""
        for path in sorted(self._unused(), key=_used_s):
            if self._buffer.budget.free_bytes >= size:
                break
            _log.warning("replay.removed", file=path.name, bytes=_size(path), why="its room is needed")
            path.unlink(missing_ok=True)
            self._buffer.budget.set_aside(self.held_bytes)
        budget = self._buffer.budget
        what_to_do = "lower algorithm.replay.capacity, or raise --spool-bytes (MARLESS_SPOOL_BYTES)"
        if size > budget.limit_bytes:
            raise TooLargeError(
                f"{whose} takes {size:,} bytes, and the spool holds {budget.limit_bytes:,}; {what_to_do}"
            )
        if size > budget.free_bytes:
            raise OverloadedError(
                f"no room in the learner pool: {whose} takes {size:,} bytes, and the spool has {budget.free_bytes:,} "
                f"left; {what_to_do}"
            )

    def _sweep(self) -> None:
        """Remove files unused for `keep_s`, in this pool's directory and in those of pools that have ended."""
        since_s = time.time() - self._keep_s
        for directory in spool.all_replays(self._place):
            if directory == self._directory:
                _remove_older(self._unused(), since_s)
                continue
            with suppress(OSError), _left(directory):  # another process has just removed it, or a pool uses it
                # Before files are removed, which changes the time of the directory.
                used_s = _used_s(directory)
                _remove_older(_files(directory), since_s)
                if used_s < since_s:
                    directory.rmdir()
        self._buffer.budget.set_aside(self.held_bytes)

    def _unused(self) -> list[Path]:
        used = {path for paths in self._open.values() for path in paths.values()}
        return [path for path in _files(self._directory) if path not in used]


@contextmanager
def _left(directory: Path) -> Iterator[None]:
    """Lock the directory of a pool that has ended while it is cleaned; raises BlockingIOError if the pool runs."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _remove_older(paths: Iterable[Path], since_s: float) -> None:
    for path in paths:
        if _used_s(path) < since_s:
            path.unlink(missing_ok=True)


def _files(directory: Path) -> list[Path]:
    with suppress(FileNotFoundError):  # another pool has removed it, empty and old
        return list(directory.iterdir())
    return []


def _size(path: Path) -> int:
    with suppress(FileNotFoundError):  # a learner has just put another file in its place
        return path.stat().st_size
    return 0


def _used_s(path: Path) -> float:
    with suppress(FileNotFoundError):
        return path.stat().st_mtime
    return time.time()
