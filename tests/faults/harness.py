"""The harness of the table of faults: it runs the job of a cell, strikes, and checks what the cell promises.

A `Stage` does so with services in this process, a `ProcessStage` with services that are processes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Self

import pytest

from marless.services.coordinator.state.run_folder import RunFolder
from tests.faults.buckets import Hosts
from tests.faults.jobs import PROCESS_JOBS, SCOPES, spec_of
from tests.faults.promises import EVERYWHERE, PROMISES
from tests.faults.results import Result, result_of
from tests.faults.rig import Rig, running_rig
from tests.faults.strikes import FAULTS, PROCESS_FAULTS
from tests.faults.struck import Struck, StruckJob, StruckRig
from tests.faults.table import FULL, SLOW, Cell, cells
from tests.faults.totals import Figures
from tests.integration.running import Cluster, created, running_scripted, succeeded
from tests.templates import Templates


@dataclass
class Stage:
    """Services in this process, and what jobs come to on them when nothing befalls them."""

    cluster: Cluster
    place: Path
    _undisturbed: dict[tuple[str, str], Result] = field(default_factory=dict)
    _serials: count[int] = field(default_factory=count)

    async def check(self, cell: Cell) -> None:
        """Raises AssertionError if the job of the cell does not succeed, or does not keep a promise."""
        undisturbed, name = await self.undisturbed(cell.schedule, cell.job), f"struck-{next(self._serials)}"
        with pytest.MonkeyPatch.context() as patched:
            struck = Struck(self.cluster, cell, undisturbed, patched, Hosts(self.place, name))
            await FAULTS[cell.fault](struck, cell.when)
        _check_promises(struck.ended())

    async def undisturbed(self, schedule: str, job: str) -> Result:
        """What a job comes to that nothing befalls."""
        if (schedule, job) not in self._undisturbed:
            folder = created(self.place / f"undisturbed-{next(self._serials)}", spec_of(schedule, job))
            await succeeded(self.cluster, folder)
            self._undisturbed[schedule, job] = result_of(folder)
        return self._undisturbed[schedule, job]


async def staged(place: Path, redis_url: str, templates: Templates) -> AsyncIterator[Stage]:
    """The body of a fixture."""
    async for cluster in running_scripted(place, redis_url, templates):
        yield Stage(cluster, place / "jobs")


Undisturbed = dict[tuple[str, str, int], Result]
"""What jobs come to that nothing befalls, by schedule, job and rounds."""


@dataclass
class ProcessStage:
    """An async context manager: services that are processes, started when first asked for."""

    place: Path
    known: Undisturbed = field(default_factory=dict)
    """What other stages have found out; this one adds to it."""
    _rig: Rig | None = None
    _held: AsyncExitStack = field(default_factory=AsyncExitStack)
    _serials: count[int] = field(default_factory=count)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._held.aclose()

    async def check(self, cell: Cell, seed: int = 0) -> Figures:
        """Raises AssertionError if a job of the cell does not succeed, or does not keep a promise; returns figures."""
        strikes, rounds = cell.when.split("/")
        if not self._rig:
            self._rig = await self._held.enter_async_context(running_rig(self.place / "rig"))
        rig = dataclasses.replace(self._rig, document=PROCESS_JOBS[cell.schedule][cell.job])
        struck = StruckRig(
            rig=rig,
            place=self.place / f"struck-{next(self._serials)}",
            cell=cell,
            rounds=int(rounds),
            seed=seed,
            undisturbed=await self._undisturbed(rig, cell, int(rounds)) if "same" in cell.holds else None,
        )
        figures = await PROCESS_FAULTS[cell.fault](struck, strikes)
        for job in struck.ended():
            _check_promises(job)
        return figures

    async def _undisturbed(self, rig: Rig, cell: Cell, rounds: int) -> Result:
        key = cell.schedule, cell.job, rounds
        if key not in self.known:
            job = await rig.submit(f"undisturbed-{rounds}", rounds)
            await job.succeeded()
            assert set(job.trainings().values()) == {SCOPES.get(cell.job, 1)}
            self.known[key] = result_of(RunFolder(job.folder))
        return self.known[key]


def _check_promises(struck: StruckJob) -> None:
    for promise in EVERYWHERE:
        promise(struck, "")
    for word in struck.cell.holds:
        promised, _, rest = word.partition(":")
        PROMISES[promised](struck, rest)


def cells_of(schedule: str, faults: Mapping[str, object] = FAULTS) -> Sequence[object]:
    """The cells of a schedule with these faults as parameters of a test; without those that `make faults` takes."""
    return [
        pytest.param(cell, id=str(cell), marks=pytest.mark.slow if cell.target == SLOW else ())
        for cell in cells(schedule)
        if cell.fault in faults and cell.target != FULL
    ]
