"""The epochs that a coordinator begins, also at a store that has lost its data."""

import asyncio
from types import SimpleNamespace

import pytest

from services.coordinator.execution.recovery import Recovery


@pytest.mark.parametrize(("overlapping", "begun"), [(True, [3, 4]), (False, [3, 1])])
def test_an_asynchronous_job_has_no_epoch_twice(overlapping, begun):
    """Caches of versions go by epochs, and only where rounds follow from the seed is a version twice the same."""
    given, names = iter((3, 1, 2, 3, 4)), []

    async def acquire_epoch(job, name):
        names.append(name)
        return next(given)

    job = SimpleNamespace(spec=SimpleNamespace(schedule=SimpleNamespace(overlapping=overlapping)))
    folder = SimpleNamespace(check_owned=lambda: None)
    pools = SimpleNamespace(store=SimpleNamespace(acquire_epoch=acquire_epoch))
    recovery = Recovery(job_id="job", job=job, folder=folder, pools=pools, journal=None, log=None)
    found = []
    for _ in begun:
        asyncio.run(recovery._begin_epoch())
        found.append(recovery.epoch)
    assert found == begun
    assert len(set(names)) == len(names)
