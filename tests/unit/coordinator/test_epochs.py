"""The epochs that coordinators begin, also at a store that has lost its data."""

import asyncio
from types import SimpleNamespace

import pytest

from marless.services.coordinator.execution.recovery import Recovery, SavedEpoch


@pytest.mark.parametrize(("overlapping", "saved"), [(True, [6, 7]), (False, [])])
def test_no_epoch_is_begun_twice(overlapping, saved):
    """Workers keep versions by epoch, and only where rounds follow from the seed is a version twice the same."""
    asked, durable = [], []

    async def acquire_epoch(job, name, at_least):
        asked.append((name, at_least))
        return at_least  # what a store does that has lost its data

    async def save(epoch):
        durable.append(epoch)

    job = SimpleNamespace(spec=SimpleNamespace(schedule=SimpleNamespace(overlapping=overlapping)))
    folder = SimpleNamespace(check_owned=lambda: None)
    pools = SimpleNamespace(store=SimpleNamespace(acquire_epoch=acquire_epoch))
    about = {"job": job, "folder": folder, "pools": pools, "journal": None, "log": None}
    recovery = Recovery(job_id="job", saved=SavedEpoch(5, save), **about)
    found = []
    for _ in range(2):
        asyncio.run(recovery._begin_epoch())
        found.append(recovery.epoch)
    assert found == [6, 7]
    assert durable == saved
    assert len({name for name, _ in asked}) == len(asked)
