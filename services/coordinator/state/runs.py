"""Where a coordinator's run folders are: in a directory, or in a bucket with working copies in a directory."""

from __future__ import annotations

import threading
from pathlib import Path
from weakref import WeakValueDictionary

from marless.core import private_files
from marless.core.job_id import is_id
from marless.storage.bucket.address import Address
from marless.storage.bucket.objects import Objects, check_conditions
from marless.storage.checkpoint import make_directory
from services.coordinator.state.bucket_folder import BucketFolder
from services.coordinator.state.bucket_state import BucketState
from services.coordinator.state.run_folder import RunFolder


class Runs:
    """The run folders of one directory."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()

    @property
    def place(self) -> str:
        """Where the run folders are, for people."""
        return str(self.path)

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
        self._place = place
        self._lease_s = lease_s
        self._copying: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()
        self._alone = threading.Lock()

    @property
    def place(self) -> str:
        """Where the run folders are, for people."""
        return str(self._place)

    def prepare(self) -> None:
        """Create the directory; raises SpecError if the bucket does not honour conditions, and what `objects` lists."""
        super().prepare()
        check_conditions(self._objects, self._place)

    def folder(self, job: str) -> RunFolder:
        """The run folder of a job, whether or not there is one."""
        home = BucketState(self._objects, self._place.below(job), self.path / job, self._lease_s)
        # Called on the event loop and in threads of scans, which must come by the same lock.
        with self._alone:
            copying = self._copying.setdefault(job, threading.Lock())
        return BucketFolder(self.path / job, home, copying)

    def names(self) -> set[str]:
        """Names of all run folders, and possibly others."""
        start = f"{self._place.prefix}/" if self._place.prefix else ""
        return set(filter(is_id, self._objects.folders(start)))
