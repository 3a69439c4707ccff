"""Learners of whole asynchronous jobs that never answer, answer twice, or answer when their version is gone.

Each job is computed once more from its records, in one process, and must have come to the same weights.
"""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from itertools import count

import pytest
import pytest_asyncio

from marless.fleet.dispatch import Dispatcher
from marless.services.coordinator.execution import versions
from marless.services.coordinator.execution.service_pools import ServicePools
from tests.integration.one_process_asynchronous import check_same_weights
from tests.integration.running import Cluster, created, succeeded
from tests.integration.running import spec as spec_of

pytestmark = pytest.mark.asyncio(loop_scope="module")
_serials = count()
VERSIONS = 8
TIMEOUT_S = 4.0
ONE = {"name": "stellaris", "learners": 2, "aggregation": "async"}
SEVERAL = {"name": "stellaris", "learners": 2, "data_lag": 4, "aggregation": {"rule": "softsync", "gradients": 2}}
schedules = pytest.mark.parametrize("schedule", [ONE, SEVERAL], ids=["one gradient", "several gradients"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(redis_url, tmp_path_factory, templates) -> AsyncIterator[Cluster]:
    """Services with two learner workers."""
    each = Cluster(tmp_path_factory.mktemp("learners"), redis_url, templates, learners=2)
    await each.start()
    yield each
    await each.close()


async def trained(cluster, tmp_path, schedule) -> list:
    """The records of a job; each rollout and gradient is part of one version at most, and is counted if it is lost."""
    given = spec_of(
        actors={"count": 3, "envs": 2, "steps": 5, "episodes": "fresh"},
        schedule=schedule,
        learner={"timeout_s": TIMEOUT_S},
        stop={"rounds": VERSIONS},
    )
    folder = created(tmp_path / f"learners-{next(_serials)}", given)
    await succeeded(cluster, folder)
    records = list(folder.records())
    made = [record.aggregation for record in records]
    assert [record.round for record in records] == list(range(VERSIONS))
    assert {*Counter(each.learner for one in made for each in one.gradients).values()} == {1}
    assert {*Counter(r for one in made for each in one.gradients for r in each.rollouts).values()} == {1}
    assert len([event for event in arrivals(records) if event[0] in "RG"]) == made[-1].lost
    check_same_weights(folder)
    return records


def arrivals(records) -> list[str]:
    """All events of a job."""
    return " ".join(record.aggregation.arrivals for record in records).split()


@schedules
async def test_a_learner_that_never_answers(cluster, tmp_path, monkeypatch, schedule):
    """Its task is given to another worker after learner.timeout_s, and that one's gradient counts."""
    hung, run_on, gradient, answered = [], Dispatcher._run_on, ServicePools.gradient, asyncio.Event()

    async def run(dispatcher, worker, task):
        if "/gradient-2/" in task.id and task.attempt == 1:
            os.kill(worker.hello.pid, signal.SIGSTOP)
            hung.append(task.id)
        return await run_on(dispatcher, worker, task)

    async def in_time(pools, job_id, learn, *args, **given):
        """The job must not end before gradient 2 is there."""
        if learn.learner != 2 and learn.clock >= VERSIONS // 2:
            await answered.wait()
        found = await gradient(pools, job_id, learn, *args, **given)
        if learn.learner == 2:
            answered.set()
        return found

    monkeypatch.setattr(Dispatcher, "_run_on", run)
    monkeypatch.setattr(ServicePools, "gradient", in_time)
    records = await trained(cluster, tmp_path, schedule)
    assert len(hung) == 1
    learners = [each for record in records for each in record.invocations if each.function == "learner"]
    assert max(each.attempt for each in learners) == 2  # on another worker
    assert "g2" in arrivals(records)
    assert records[-1].aggregation.lost == 0


@schedules
async def test_a_learner_that_answers_twice(cluster, tmp_path, monkeypatch, schedule):
    """Each gradient is computed, published and answered by two workers: it counts once."""
    real, twice = Dispatcher.run, 0

    async def run(dispatcher, name, *args, **given):
        nonlocal twice
        if "/gradient-" not in name:
            return await real(dispatcher, name, *args, **given)
        answers = await asyncio.gather(*(real(dispatcher, each, *args, **given) for each in (name, f"{name}/again")))
        twice += 1
        return answers[0]

    monkeypatch.setattr(Dispatcher, "run", run)
    records = await trained(cluster, tmp_path, schedule)
    assert twice >= sum(len(record.aggregation.gradients) for record in records)
    assert records[-1].aggregation.lost == 0


async def test_a_learner_whose_version_was_pruned_before_it_has_read_it(cluster, tmp_path, monkeypatch):
    """Its gradient is lost and counted, and the job goes on."""
    monkeypatch.setattr(versions, "MAX_KEPT", 2)
    gradient, published, behind = ServicePools.gradient, asyncio.Event(), []

    async def late(pools, job_id, learn, *args, **given):
        if learn.learner == 1:
            behind.append(learn.clock)
            await published.wait()
        elif learn.clock >= 4:
            published.set()
        return await gradient(pools, job_id, learn, *args, **given)

    monkeypatch.setattr(ServicePools, "gradient", late)
    records = await trained(cluster, tmp_path, ONE | {"data_lag": 8})
    assert behind[0] < 2
    assert "G1" in arrivals(records)
    assert records[-1].aggregation.lost == 1


async def test_a_learner_that_answers_after_its_version_was_pruned(cluster, tmp_path, monkeypatch):
    """Its gradient is applied to the newest version, as stale as it is."""
    monkeypatch.setattr(versions, "MAX_KEPT", 2)
    gradient, published = ServicePools.gradient, asyncio.Event()

    async def late(pools, job_id, learn, *args, **given):
        found = await gradient(pools, job_id, learn, *args, **given)
        if learn.learner == 1:
            await published.wait()
        elif learn.clock >= 4:
            published.set()
        return found

    monkeypatch.setattr(ServicePools, "gradient", late)
    records = await trained(cluster, tmp_path, ONE | {"data_lag": 8})
    [mine] = [each for record in records for each in record.aggregation.gradients if each.learner == 1]
    assert mine.staleness >= 4
    assert records[-1].aggregation.lost == 0
