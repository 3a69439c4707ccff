"""A job whose run folder is in a bucket: a killed coordinator is followed on another host, with the same weights."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from marless.core.errors import UnreachableError
from marless.storage.bucket.address import Address
from marless.storage.bucket.reading import read_head
from services.coordinator.state.bucket_folder import BucketFolder
from services.coordinator.state.bucket_state import BucketState
from services.coordinator.state.status import JobStatus
from tests.integration.running import KilledError, created, go_on, outcome, ready, spec
from tests.unit.coordinator.test_bucket_folder import kill
from tests.unit.storage.bucket.memory import MemoryObjects

pytestmark = pytest.mark.asyncio(loop_scope="module")
JOB = "kept"


class Hosts:
    """Hosts beside a bucket; each coordinator is on the next one, whose disk is empty."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.objects = MemoryObjects()
        self.place = Address("bucket", f"runs/{JOB}")
        self.count = 0

    def next(self) -> BucketFolder:
        self.count += 1
        path = self.path / f"host-{self.count}" / JOB
        return BucketFolder(path, BucketState(self.objects, self.place, path, lease_s=30.0), threading.Lock())

    def accepted(self, **changes) -> BucketFolder:
        folder = self.next()
        folder.create(spec(**changes), JobStatus(job=JOB, state="PENDING", reason="accepted", accepted_s=1.0))
        return folder

    def followed(self) -> BucketFolder:
        """The job on another host, its owner having been silent for a lease."""
        folder = self.next()
        tag = folder.bucket_state.look()[1]
        assert folder._own_copy() and folder._own_home(lambda: folder.bucket_state.seize(tag))
        return folder


@pytest.fixture
def hosts(tmp_path, monkeypatch) -> Hosts:
    monkeypatch.setattr(BucketState, "release", lambda home: None)  # a killed process gives nothing back
    return Hosts(tmp_path)


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
    folder = hosts.accepted(schedule=undisturbed.schedule)
    run = await go_on(folder, cluster.pools)
    assert run.status.state == "SUCCEEDED"
    assert outcome(folder) == undisturbed.outcome
    elsewhere = hosts.next()
    elsewhere.refresh(lambda paths: paths)
    assert outcome(elsewhere) == undisturbed.outcome
    assert elsewhere.read_status() == run.status
    assert not (elsewhere.path / "pending.json").exists()


@pytest.mark.parametrize(
    ("place", "passes"),
    [
        ("take_over.after", 1),
        ("pending.before", 2),
        ("pending.after", 2),
        ("record.before", 3),
        ("record.after", 3),
        ("checkpoint.after", 1),
        ("drop.before", 1),
        ("drop.after", 1),
        ("status.after", 3),
    ],
)
async def test_another_host_goes_on_bit_for_bit(cluster, undisturbed, hosts, kill_at, place, passes):
    kill_at(f"coordinator.{place}", passes)
    with pytest.raises(KilledError):
        await go_on(hosts.accepted(schedule=undisturbed.schedule), cluster.pools)
    folder = hosts.followed()
    run = await go_on(folder, cluster.pools)
    assert run.status.state == "SUCCEEDED"
    assert outcome(folder) == undisturbed.outcome


async def test_the_store_is_lost_too(cluster, undisturbed, hosts, kill_at):
    """Then the newest checkpoint is read from the bucket."""
    kill_at("coordinator.record.after", 4)
    with pytest.raises(KilledError):
        await go_on(hosts.accepted(schedule=undisturbed.schedule), cluster.pools)
    await cluster.store.delete_job(JOB)
    folder = hosts.followed()
    assert folder.checkpoints.rounds() == (2,)
    assert (await go_on(folder, cluster.pools)).status.state == "SUCCEEDED"
    assert outcome(folder) == undisturbed.outcome


async def test_watchers_see_only_what_is_in_the_bucket(cluster, hosts):
    folder, seen = hosts.accepted(), []

    def changed(record):
        if record:
            seen.append((record.round, read_head(hosts.objects, hosts.place).rounds))

    await ready(folder, cluster.pools, changed=changed).run()
    assert [round_ for round_, _ in seen] == [0, 1, 2, 3, 4]
    assert all(held > round_ for round_, held in seen)


async def test_a_job_waits_while_the_bucket_does_not_answer_and_goes_on(cluster, undisturbed, hosts):
    folder, reasons = hosts.accepted(schedule=undisturbed.schedule), []
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
    first = hosts.accepted(schedule=undisturbed.schedule)
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
