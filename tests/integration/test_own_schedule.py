"""Schedules of other packages run on the services as those of marless do: to the end, after a kill, and once more."""

import pytest

from marless.core.errors import SpecError
from marless.jobs.schedules.base import made
from marless.jobs.schedules.contract import check_schedule
from tests.integration.running import KilledError, check_replay, created, go_on, succeeded
from tests.integration.running import spec as spec_of
from tests.integration.test_asynchronous import EVERYTHING, ROUNDS, check

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_versions_are_made_as_it_says_and_it_is_followed_after_a_kill(cluster, tmp_path, kill_at):
    given = spec_of(**EVERYTHING | {"schedule": {"name": "warm"}})
    check_schedule(made(given.schedule))
    folder = created(tmp_path / "warm", given)
    kill_at("coordinator.record.after", 4)
    with pytest.raises(KilledError):
        await go_on(folder, cluster.pools)
    await succeeded(cluster, folder)
    records = check(folder)
    gradients = [len(record.aggregation.gradients) for record in records]
    assert gradients[:2] == [3, 3]  # of three actors each
    assert len(records) == ROUNDS
    assert min(gradients[2:]) < 3
    await check_replay(cluster, folder, tmp_path / "again")


async def test_an_algorithm_whose_learner_makes_versions_by_itself_is_refused(cluster):
    with pytest.raises(SpecError, match="warm makes versions of gradients, and the learner of algorithm vdn"):
        spec_of(**EVERYTHING | {"algorithm": {"name": "vdn"}, "schedule": {"name": "warm"}})
