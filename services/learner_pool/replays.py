"""Files in which learners of off-policy jobs remember past rounds. They outlive workers, and the pool itself: the next
pool of the same store finds them under the same names.

They lie in the spool, and count against its limit. One goes when its job is closed; when room is needed and no job of
this pool has it open; or when it was not used for `keep_s`.
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

import structlog

from marless.algos.base import REPLAY
from marless.data.frame_file import allocate
from marless.errors import OverloadedError, TooLargeError
from services.learner_pool import spool
from services.learner_pool.intake import Intake

_OUTCOMES = ("inserted", "dropped", "lost", "drawn")
_log = structlog.get_logger("learner_pool")
Metrics = Mapping[str, Mapping[str, float]]
"""By published name."""


class Replays:
    """The replay files of one learner pool.

    `owner` tells this pool from others of the host, and stays when it is started again: its store's address. Raises
    UnavailableError if the spool cannot be written.
    """

    def __init__(self, place: Path, owner: str, intake: Intake, keep_s: float) -> None:
        self._place = place
        self._name = hashlib.sha256(f"{os.getuid()} {owner}".encode()).hexdigest()[:16]
        self._directory = spool.replays(place, self._name)
        self._intake = intake
        self._keep_s = keep_s
        self._open: dict[str, dict[str, Path]] = {}
        """Job → scope → its file."""
        self._reported: dict[Path, Mapping[str, float]] = {}
        """The last report on a file; none yet on one that an earlier pool has left."""
        self.samples: Counter[str] = Counter(dict.fromkeys(_OUTCOMES, 0))
        """What became of env steps, and how many samples were drawn, since this pool was started."""
        self._lock: int | None = None
        self._hold()
        self._sweep()

    @property
    def held_bytes(self) -> int:
        """Bytes of all files, of jobs that are open here and of others."""
        return sum(_size(path) for path in _files(self._directory))

    def open(self, job: str, sizes: Mapping[str, int]) -> None:
        """Have a file of so many bytes for each scope of a job; one that is there already stays as it is.

        Raises TooLargeError if they exceed the spool's limit, OverloadedError if they exceed what others leave of it,
        UnavailableError if its disk is full.
        """
        paths = {scope: self._directory / f"{quote(job, safe='')}@{quote(scope, safe='')}" for scope in sizes}
        self._open[job] = paths
        self._sweep()
        spool.replays(self._place, self._name)  # another pool may have found it empty, and old
        self._hold()
        for scope, path in paths.items():
            if not path.exists():
                self._make_room(sizes[scope], f"job {job}: the replay of {scope}")
                allocate(path, sizes[scope])
                self._reported[path] = {}
                self._account()
            os.utime(path)

    def missing_bytes(self, job: str, sizes: Mapping[str, int]) -> int:
        """Bytes of those scopes of an open job that have no file yet."""
        return sum(size for scope, size in sizes.items() if not self._open[job][scope].exists())

    def path(self, job: str, scope: str) -> Path | None:
        """The file of a scope; None if its algorithm remembers nothing."""
        return self._open.get(job, {}).get(scope)

    def used(self, job: str, metrics: Metrics) -> None:
        """An update has reported these metrics: count samples, and warn of lost ones."""
        for scope, path in self._open.get(job, {}).items():
            with suppress(OSError):
                os.utime(path)
            now = metrics.get(f"{REPLAY}.{scope}")
            if now is None:
                continue
            before = self._reported.get(path, now)
            if not before and now["lost"]:  # a new file, of a job that had another
                before = {**now, "lost": 0.0}
            more = {name: max(0, int(now[name] - before.get(name, 0.0))) for name in _OUTCOMES}
            self.samples.update(more)
            self._reported[path] = now
            if more["lost"]:
                _log.warning("replay.lost", job=job, scope=scope, lost=more["lost"], size=int(now["size"]))

    def forget(self, job: str) -> None:
        """A job is not open here any more; its files stay for when it comes back."""
        for path in self._open.pop(job, {}).values():
            self._reported.pop(path, None)

    def close(self, job: str) -> None:
        """Remove the files of a job; twice is safe."""
        self.forget(job)
        for path in self._directory.glob(f"{quote(job, safe='')}@*"):
            path.unlink(missing_ok=True)
        self._account()

    def shutdown(self) -> None:
        """Leave nothing that is of no use: files stay, a directory without any does not."""
        self._let_go()
        with suppress(OSError):
            self._directory.rmdir()

    def _hold(self) -> None:
        """Show other pools that this one lives: they leave its files alone, whatever the clock says of their age."""
        self._let_go()
        self._lock = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_SH)

    def _let_go(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _make_room(self, size: int, whose: str) -> None:
        """Remove files that no job has open, the longest unused first, until so many bytes fit."""
        for path in sorted(self._unused(), key=_used_s):
            if self._intake.room.free_bytes >= size:
                break
            _log.warning("replay.removed", file=path.name, bytes=_size(path), why="its room is needed")
            path.unlink(missing_ok=True)
            self._account()
        room = self._intake.room
        what_to_do = "lower algorithm.replay.capacity, or raise --spool-bytes (MARLESS_SPOOL_BYTES)"
        if size > room.limit_bytes:
            raise TooLargeError(f"{whose} takes {size:,} bytes, and the spool holds {room.limit_bytes:,}; {what_to_do}")
        if size > room.free_bytes:
            raise OverloadedError(
                f"no room in the learner pool: {whose} takes {size:,} bytes, and the spool has {room.free_bytes:,} "
                f"left; {what_to_do}"
            )

    def _sweep(self) -> None:
        """Remove what nobody has used for long, here and where pools that are gone have left it."""
        since_s = time.time() - self._keep_s
        for directory in spool.all_replays(self._place):
            if directory == self._directory:
                _remove_older(self._unused(), since_s)
                continue
            with suppress(OSError), _left(directory):  # somebody else has just removed it, or has a pool there
                used_s = _used_s(directory)
                _remove_older(_files(directory), since_s)
                if used_s < since_s:
                    directory.rmdir()
        self._account()

    def _unused(self) -> list[Path]:
        used = {path for paths in self._open.values() for path in paths.values()}
        return [path for path in _files(self._directory) if path not in used]

    def _account(self) -> None:
        self._intake.room.set_aside(self.held_bytes)


@contextmanager
def _left(directory: Path) -> Iterator[None]:
    """Around the removal of what is in the directory of a pool that is gone; raises BlockingIOError if it lives."""
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
    with suppress(FileNotFoundError):  # another pool has found it empty, and old
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
