"""What the table of faults strikes: a job on services in this process, or jobs on services that are processes.

Faults are given a `Struck` or a `StruckRig`; promises see of either a `StruckJob`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from marless.services.coordinator.state.bucket_state import BucketState
from marless.services.coordinator.state.journal import Journal
from marless.services.coordinator.state.run_folder import RunFolder
from tests.faults.buckets import Hosts
from tests.faults.jobs import spec_of
from tests.faults.results import Result
from tests.faults.rig import Disturbed, Rig
from tests.faults.table import Cell
from tests.integration.interruptions import Interruptions
from tests.integration.running import Cluster, KilledError, created, go_on, succeeded

BUCKET = " bucket"
"""How the names of jobs end whose run folders are in a bucket."""


@dataclass(frozen=True, kw_only=True)
class StruckJob:
    """A job that was struck and has ended, and what was seen of it."""

    cell: Cell
    folder: RunFolder
    rounds: int
    undisturbed: Result | None
    """What it comes to when nothing befalls it; None if that differs from run to run."""
    trained: Sequence[int]
    """The rounds that were computed, in order: each as often as learners computed it."""
    excused: AbstractSet[int] = frozenset()
    """Rounds of which a fault cut off all before anything was published, and which may be computed again."""
    sampled: Sequence[int] = ()
    """The rounds that were sampled, in order. Only services in this process let tests see these, and the next."""
    restored: Sequence[int] = ()
    """From how many rounds on it went on, each time that a checkpoint was restored."""


@dataclass
class Struck:
    """The job of a cell on services in this process."""

    cluster: Cluster
    cell: Cell
    undisturbed: Result
    patched: pytest.MonkeyPatch
    hosts: Hosts
    """Where its run folder is, if that is in a bucket."""
    folder: RunFolder = field(init=False)
    interruptions: Interruptions = field(init=False)
    _trained: list[int] = field(init=False)
    _sampled: list[int] = field(init=False)
    _restored: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.interruptions = Interruptions(self.patched)
        self._trained, self._sampled = self.interruptions.trained(), self.interruptions.sampled()
        self._restored = []
        real = Journal.cut

        def cut(journal: Journal, rounds: int) -> None:
            self._restored.append(rounds)
            real(journal, rounds)

        self.patched.setattr(Journal, "cut", cut)
        given = spec_of(self.cell.schedule, self.cell.job)
        if self.cell.job.endswith(BUCKET):
            self.patched.setattr(BucketState, "release", lambda state: None)  # a killed process gives nothing back
            self.folder = self.hosts.accepted(given)
        else:
            self.folder = created(self.hosts.path / self.hosts.job, given)

    async def killed(self, place: str, passes: int = 1) -> None:
        """Run the job until its coordinator is killed at this failpoint; a bucket is left to another host."""
        self.interruptions.kill_at(f"coordinator.{place}", passes)
        with pytest.raises(KilledError):
            await go_on(self.folder, self.cluster.pools)
        if self.cell.job.endswith(BUCKET):
            self.folder = self.hosts.followed()

    async def succeeded(self) -> None:
        await succeeded(self.cluster, self.folder)

    @property
    def rounds(self) -> int:
        return len(self.undisturbed.records)

    def ended(self) -> StruckJob:
        """As promises see it."""
        return StruckJob(
            cell=self.cell,
            folder=self.folder,
            rounds=self.rounds,
            undisturbed=self.undisturbed,
            trained=self._trained,
            sampled=self._sampled,
            restored=self._restored,
        )


@dataclass(kw_only=True)
class StruckRig:
    """Services that are processes, for one cell; its fault has jobs run on them."""

    rig: Rig
    """With the job of the cell as its document."""
    place: Path
    """A directory of this cell's own, which is not there yet."""
    cell: Cell
    rounds: int
    seed: int
    undisturbed: Result | None
    jobs: list[Disturbed] = field(default_factory=list)
    excused: set[int] = field(default_factory=set)
    """See `StruckJob`; the faults add them."""
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    async def submit(self, rig: Rig | None = None) -> Disturbed:
        """Have the job run on the cell's services, or on others."""
        job = await (rig or self.rig).submit(f"{self.place.name}-{len(self.jobs)}", self.rounds)
        self.jobs.append(job)
        return job

    def ended(self) -> Sequence[StruckJob]:
        """Its jobs, as promises see them. `trained` is right for the newest job only: each job begins a new list."""
        return [
            StruckJob(
                cell=self.cell,
                folder=RunFolder(job.folder),
                rounds=self.rounds,
                undisturbed=self.undisturbed,
                trained=sorted(job.trainings().elements()),
                excused=self.excused,
            )
            for job in self.jobs
        ]
