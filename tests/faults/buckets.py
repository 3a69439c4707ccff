"""Hosts beside a bucket that has the run folder of a job: a killed coordinator is followed on the next one."""

from __future__ import annotations

import threading
from pathlib import Path

from marless.jobs.spec import JobSpec
from marless.services.coordinator.state.bucket_folder import BucketFolder
from marless.services.coordinator.state.bucket_state import BucketState
from marless.services.coordinator.state.status import JobStatus
from marless.storage.places import Address
from tests.unit.storage.bucket.memory import MemoryObjects


class Hosts:
    """Each coordinator is on the next host, whose disk is empty."""

    def __init__(self, path: Path, job: str) -> None:
        self.path = path
        self.job = job
        self.objects = MemoryObjects()
        self.place = Address("bucket", f"runs/{job}")
        self.count = 0

    def next(self) -> BucketFolder:
        self.count += 1
        path = self.path / f"host-{self.count}" / self.job
        return BucketFolder(path, BucketState(self.objects, self.place, path, lease_s=30.0), threading.Lock())

    def accepted(self, given: JobSpec) -> BucketFolder:
        folder = self.next()
        folder.create(given, JobStatus(job=self.job, state="PENDING", reason="accepted", accepted_s=1.0))
        return folder

    def followed(self) -> BucketFolder:
        """The job on another host, its owner having been silent for a lease."""
        folder = self.next()
        tag = folder.bucket_state.look()[1]
        assert folder._own_copy() and folder._own_home(lambda: folder.bucket_state.seize(tag))
        return folder
