"""The harness of the table of faults: it runs the job of a cell, strikes, and checks what the cell promises."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest

from services.coordinator.state.run_folder import RunFolder
from tests.faults.buckets import Hosts
from tests.faults.jobs import spec_of
from tests.faults.promises import EVERYWHERE, PROMISES
from tests.faults.strikes import FAULTS, Struck
from tests.faults.table import SLOW, Cell, cells
from tests.integration.running import Cluster, created, running_scripted, succeeded
from tests.templates import Templates


@dataclass
class Stage:
    """Services in this process, and what jobs come to on them when nothing befalls them."""

    cluster: Cluster
    place: Path
    _undisturbed: dict[tuple[str, str], RunFolder] = field(default_factory=dict)
    _serials: count[int] = field(default_factory=count)

    async def check(self, cell: Cell) -> None:
        """Raises AssertionError if the job of the cell does not succeed, or does not keep a promise."""
        undisturbed, name = await self.undisturbed(cell.schedule, cell.job), f"struck-{next(self._serials)}"
        with pytest.MonkeyPatch.context() as patched:
            struck = Struck(self.cluster, cell, undisturbed, patched, Hosts(self.place, name))
            await FAULTS[cell.fault](struck, cell.when)
        for promise in EVERYWHERE:
            promise(struck, "")
        for word in cell.holds:
            promised, _, rest = word.partition(":")
            PROMISES[promised](struck, rest)

    async def undisturbed(self, schedule: str, job: str) -> RunFolder:
        """The run folder of a job that nothing befell."""
        if (schedule, job) not in self._undisturbed:
            folder = created(self.place / f"undisturbed-{next(self._serials)}", spec_of(schedule, job))
            await succeeded(self.cluster, folder)
            self._undisturbed[schedule, job] = folder
        return self._undisturbed[schedule, job]


async def staged(place: Path, redis_url: str, templates: Templates) -> AsyncIterator[Stage]:
    """The body of a fixture."""
    async for cluster in running_scripted(place, redis_url, templates):
        yield Stage(cluster, place / "jobs")


def cells_of(schedule: str) -> Sequence[object]:
    """The cells of a schedule as parameters of a test."""
    return [
        pytest.param(cell, id=str(cell), marks=pytest.mark.slow if cell.target == SLOW else ())
        for cell in cells(schedule)
    ]
