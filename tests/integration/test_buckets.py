"""A job whose run folder is in a bucket; the table of faults has those whose coordinators are killed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
import pytest_asyncio

from marless.core.errors import UnreachableError
from marless.services.coordinator.state.bucket_state import BucketState
from marless.storage.bucket.reading import read_head
from tests.faults.buckets import Hosts
from tests.integration.running import created, go_on, outcome, ready, spec
from tests.unit.coordinator.test_bucket_folder import kill
from tests.unit.storage.bucket.memory import MemoryObjects

pytestmark = pytest.mark.asyncio(loop_scope="module")
JOB = "kept"


@pytest.fixture
def hosts(tmp_path, monkeypatch) -> Hosts:
    monkeypatch.setattr(BucketState, "release", lambda home: None)  # a killed process gives nothing back
    return Hosts(tmp_path, JOB)


@dataclass(frozen=True)
class Undisturbed:
    """A job on a disk, under the same name, to which nothing happened."""

    schedule: str
    outcome: object


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["synchronous", "pipelined"])
async def undisturbed(cluster, tmp_path_factory, request) -> Undisturbed:
    folder = created(tmp_path_factory.mktemp("runs") / JOB, spec(schedule=request.param))
    await go_on(folder, cluster.pools)
    return Undisturbed(request.param, outcome(folder))


async def test_a_job_in_a_bucket_comes_to_the_same(cluster, undisturbed, hosts):
    folder = hosts.accepted(spec(schedule=undisturbed.schedule))
    run = await go_on(folder, cluster.pools)
    assert run.status.state == "SUCCEEDED"
    assert outcome(folder) == undisturbed.outcome
    elsewhere = hosts.next()
    elsewhere.refresh(lambda paths: paths)
    assert outcome(elsewhere) == undisturbed.outcome
    assert elsewhere.read_status() == run.status
    assert not (elsewhere.path / "pending.json").exists()


async def test_watchers_see_only_what_is_in_the_bucket(cluster, hosts):
    folder, seen = hosts.accepted(spec()), []

    def changed(record):
        if record:
            seen.append((record.round, read_head(hosts.objects, hosts.place).rounds))

    await ready(folder, cluster.pools, changed=changed).run()
    assert [round_ for round_, _ in seen] == [0, 1, 2, 3, 4]
    assert all(held > round_ for round_, held in seen)


async def test_a_job_waits_while_the_bucket_does_not_answer_and_goes_on(cluster, undisturbed, hosts):
    folder, reasons = hosts.accepted(spec(schedule=undisturbed.schedule)), []
    left = 12

    def refuse(method: str, key: str) -> None:
        nonlocal left
        if method == "replace" and read_head(MemoryView(hosts.objects), hosts.place).rounds >= 2 and left:
            left -= 1
            raise UnreachableError(f"s3://bucket/{key}: PutObject was refused (SlowDown): it was tried 4 times")

    run = ready(folder, cluster.pools, changed=lambda record: reasons.append(run.status.reason))
    hosts.objects.before = refuse
    await run.run()
    assert not left
    assert any(reason.startswith("tries again: s3://bucket/runs/kept/head.json: PutObject") for reason in reasons)
    assert run.status.state == "SUCCEEDED"
    assert outcome(folder) == undisturbed.outcome


class MemoryView(MemoryObjects):
    """The same objects, without faults."""

    def __init__(self, objects: MemoryObjects) -> None:
        super().__init__()
        self.held = objects.held


async def test_a_replaced_coordinator_ends_nothing(cluster, undisturbed, hosts):
    """Split brain: the first one goes on while the second has taken over."""
    first = hosts.accepted(spec(schedule=undisturbed.schedule))
    begun = asyncio.Event()
    run = ready(first, cluster.pools, changed=lambda record: begun.set() if record else None)
    running = asyncio.create_task(run.run())
    await begun.wait()
    second = hosts.followed()
    await running
    assert run.status.state == "RUNNING"
    assert (await go_on(second, cluster.pools)).status.state == "SUCCEEDED"
    assert outcome(second) == undisturbed.outcome
    kill(first)
