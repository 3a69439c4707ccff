"""The run folders of a coordinator, in a directory or in a bucket, and an index of all their jobs in memory.

The index has the jobs of all coordinators of this directory, for listing them.
"""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from weakref import WeakValueDictionary

from marless.core import private_files
from marless.core.errors import CorruptError, NotFoundError, SpecError, UnavailableError, shown
from marless.core.limits import check_id, is_id
from marless.core.log import structlog
from marless.services.coordinator.state.bucket_folder import BucketFolder
from marless.services.coordinator.state.bucket_state import BucketState
from marless.services.coordinator.state.run_folder import DELETED, RunFolder
from marless.services.coordinator.state.status import ENDED, JobStatus
from marless.storage.bucket.objects import Objects, check_conditions
from marless.storage.checkpoint import make_directory
from marless.storage.places import Address


class Runs:
    """The run folders of one directory."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.place = str(self.path)
        """Where the run folders are, for people."""

    def prepare(self) -> None:
        """Create the directory; raises OSError, UntrustedPathError if another user could replace it."""
        private_files.check_way(self.path)
        make_directory(self.path)

    def folder(self, job: str) -> RunFolder:
        """The run folder of a job, whether or not there is one."""
        return RunFolder(self.path / job)

    def names(self) -> set[str]:
        """Names of all run folders, and possibly others; raises OSError."""
        return {path.name for path in self.path.iterdir()}


class BucketRuns(Runs):
    """The run folders of a place in a bucket, with working copies in the directory `path`."""

    def __init__(self, path: Path, objects: Objects, place: Address, lease_s: float) -> None:
        super().__init__(path)
        self._objects = objects
        self._place, self.place = place, str(place)
        self._lease_s = lease_s
        self._copying: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()
        self._alone = threading.Lock()

    def prepare(self) -> None:
        """Create the directory; raises SpecError if the bucket does not honour conditions, and what `objects` lists."""
        super().prepare()
        check_conditions(self._objects, self._place)

    def folder(self, job: str) -> RunFolder:
        home = BucketState(self._objects, self._place.below(job), self.path / job, self._lease_s)
        # Called on the event loop and in threads of scans, which must come by the same lock.
        with self._alone:
            copying = self._copying.setdefault(job, threading.Lock())
        return BucketFolder(self.path / job, home, copying)

    def names(self) -> set[str]:
        """Names of all run folders, and possibly others."""
        start = f"{self._place.prefix}/" if self._place.prefix else ""
        return set(filter(is_id, self._objects.folders(start)))


PAGE = 100
LARGEST_PAGE = 1000
_LONGEST_TOKEN = 1000
_log = structlog.get_logger("coordinator")


class Known(NamedTuple):
    """The index entry of a job. A job accepted later compares as greater."""

    accepted_s: float
    job: str
    state: str


class Index:
    """Ids, acceptance times and states of the jobs of one runs directory; all else is read from their folders."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._known: dict[str, Known] = {}
        self._unreadable: set[str] = set()

    def note(self, status: JobStatus) -> None:
        """Add a job, or update its state."""
        self._known[status.job] = Known(status.accepted_s, status.job, status.state)

    def discard(self, job: str) -> None:
        """Remove a deleted job."""
        self._known.pop(job, None)

    def prepare(self) -> None:
        """Create the runs directory; raises UnavailableError if that fails or another user could replace it, and what
        `Runs.prepare` raises."""
        with self._disk("made"):
            self._runs.prepare()

    async def look(self, is_ours: Callable[[str], bool]) -> list[JobStatus]:
        """Scan the directory; returns the unfinished jobs that this coordinator does not run, oldest first.

        Jobs for which `is_ours` is true are skipped: `note` is called for them with newer states than those on disk.
        Jobs that have ended are read only once. Raises UnavailableError if the directory cannot be read.
        """
        names, found = await asyncio.to_thread(self._read)
        for job in [job for job in self._known if job not in names and not is_ours(job)]:
            self.discard(job)
        others = [status for status in found if not is_ours(status.job)]
        for status in others:
            self.note(status)
        return sorted((status for status in others if not status.ended), key=lambda status: status.accepted_s)

    def _read(self) -> tuple[set[str], list[JobStatus]]:
        """All names in the directory, and the statuses of the jobs that are not known to have ended."""
        with self._disk("read"):
            names = self._runs.names()
        known = (self._known.get(name) for name in names)
        unsure = [name for name, before in zip(names, known, strict=True) if not before or before.state not in ENDED]
        return names, [status for name in unsure if (status := self._status(name))]

    def states(self) -> Counter[str]:
        """Number of jobs by state."""
        return Counter(known.state for known in self._known.values())

    def clear_away(self) -> None:
        """Remove the folders of jobs whose deletion was interrupted."""
        for path in self._runs.path.glob(f"{DELETED}*"):
            shutil.rmtree(path, ignore_errors=True)

    def page(self, size: int, token: str, states: Collection[str]) -> tuple[list[str], str]:
        """Job ids, newest first, and the token of the next page ("": there is none).

        A token names the last job of the page before, so jobs that are added or deleted between pages neither hide
        nor repeat others. Raises SpecError for an invalid size or token.
        """
        if not 0 <= size <= LARGEST_PAGE:
            raise SpecError(f"page_size {size}: give 1 to {LARGEST_PAGE}, or 0 for {PAGE}")
        size, before = size or PAGE, _read_token(token) if token else None
        jobs = (known for known in self._known.values() if not states or known.state in states)
        rest = sorted((known for known in jobs if before is None or known[:2] < before), reverse=True)
        page = rest[:size]
        after = base64.urlsafe_b64encode(json.dumps(page[-1][:2]).encode()).decode() if len(rest) > size else ""
        return [known.job for known in page], after

    @contextmanager
    def _disk(self, verb: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UnavailableError(f"the runs directory {self._runs.path} cannot be {verb}: {error.strerror}") from None

    def _status(self, name: str) -> JobStatus | None:
        try:
            check_id(name)
            folder = self._runs.folder(name)
            # Before anything in it is opened: in a shared directory, another user may have put it there.
            folder.check_ours()
            folder.refresh()
            return folder.read_status()
        except (SpecError, NotFoundError):
            return None
        except (CorruptError, UnavailableError) as error:
            if name not in self._unreadable:
                self._unreadable.add(name)
                _log.warning("job.unreadable", job=name, error=str(error))
            return None


def _read_token(token: str) -> tuple[float, str]:
    try:
        if len(token) > _LONGEST_TOKEN:
            raise ValueError("longer than any of ours")
        accepted_s, job = json.loads(base64.b64decode(token, altchars=b"-_", validate=True))
        return float(accepted_s), str(job)
    except (ValueError, TypeError, ArithmeticError, RecursionError):
        raise SpecError(f"page_token {shown(token)} is not valid; use the one of the last page") from None
