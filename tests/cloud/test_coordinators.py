"""Coordinator processes whose run folders are in a bucket, killed, paused and followed on hosts with empty disks."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio

import marless
from marless.app.client import AsyncClient
from marless.services.coordinator.state.run_folder import RunFolder
from marless.storage.bucket import reading
from tests.cloud.conftest import REGION
from tests.integration.running import Cluster, created, go_on, outcome, running_scripted, spec

pytestmark = [pytest.mark.cloud, pytest.mark.asyncio(loop_scope="module")]
BUCKET, JOB = "marless-runs", "kept"
WITHOUT_DELETION = ("localstack",)
"""Servers that do not delete on a condition: the head of a deleted job stays, and says so."""
LEASE_S = 2.0
DEADLINE_S = 60.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(redis_url, tmp_path_factory, templates) -> AsyncIterator[Cluster]:
    """The other services, which outlive every coordinator."""
    async for each in running_scripted(tmp_path_factory.mktemp("cluster"), redis_url, templates):
        yield each


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def undisturbed(cluster, tmp_path_factory):
    """On a disk, under the same name."""
    folder = created(tmp_path_factory.mktemp("runs") / JOB, spec())
    await go_on(folder, cluster.pools)
    return outcome(folder)


@dataclass
class Coordinators:
    """Each is on a host of its own."""

    cluster: Cluster
    path: Path
    count: int = 0
    processes: list[asyncio.subprocess.Process] = field(default_factory=list)

    async def start(
        self, runs: str = f"s3://{BUCKET}/runs", **environment: str
    ) -> tuple[asyncio.subprocess.Process, str]:
        self.count += 1
        address = f"unix:{self.path}/{self.count}.sock"
        peers = {name.replace("_", "-"): peer.address for name, peer in self.cluster.peers.items()}
        with (self.path / f"{self.count}.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "marless.services.coordinator",
                "--listen",
                address,
                "--runs",
                runs,
                "--working-copies",
                str(self.path / f"host-{self.count}"),
                "--lease-s",
                str(LEASE_S),
                *(word for name, at in peers.items() for word in (f"--{name}", at)),
                env={**os.environ, **environment},
                stderr=log,
                stdout=log,
            )
        self.processes.append(process)
        return process, address

    def log(self, number: int) -> str:
        return (self.path / f"{number}.log").read_text()


@pytest_asyncio.fixture(loop_scope="module")
async def coordinators(s3, cluster, tmp_path) -> AsyncIterator[Coordinators]:
    import boto3

    boto3.client("s3").create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
    made = Coordinators(cluster, tmp_path)
    yield made
    for process in made.processes:
        if process.returncode is None:
            process.kill()
        await process.wait()
    await cluster.store.delete_job(JOB)


@asynccontextmanager
async def client(address: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(address, contact_s=DEADLINE_S) as connected:
        yield connected


async def ended(address: str) -> str:
    async with client(address) as connected, asyncio.timeout(DEADLINE_S):
        return str((await connected.wait(JOB)).state)


def in_bucket():
    with reading.local_copy(f"s3://{BUCKET}/runs/{JOB}", reading.everything) as copy:
        return outcome(RunFolder(copy))


def written() -> dict[str, int]:
    """All objects, but for what the second coordinator still notes of machines after the job's end."""
    found = reading.S3Objects(BUCKET).listing("")
    return {each.key: each.bytes for each in found if not each.key.endswith(("machines.json", "head.json"))}


@pytest.mark.parametrize("place", ["pending.after:3", "record.after:3", "checkpoint.after"])
async def test_a_killed_coordinator_is_followed_on_another_host(coordinators, undisturbed, place, s3):
    first, address = await coordinators.start(MARLESS_FAILPOINT=f"coordinator.{place}")
    async with client(address) as connected:
        await connected.submit(spec(), job=JOB)
    assert await asyncio.wait_for(first.wait(), DEADLINE_S) == -signal.SIGKILL
    _, address = await coordinators.start()
    assert await ended(address) == "SUCCEEDED"
    assert in_bucket() == undisturbed
    team = marless.load_policy(f"s3://{BUCKET}/runs/{JOB}")
    assert (team.origin.job, team.origin.round) == (JOB, 5)
    async with client(address) as connected:
        await connected.delete(JOB)
        assert [job.job for job in await connected.list()] == []
    left = [each.key for each in reading.S3Objects(BUCKET).listing("")]
    assert left == ([f"runs/{JOB}/head.json"] if s3 in WITHOUT_DELETION else [])


async def test_a_paused_coordinator_is_replaced_and_writes_nothing_more(coordinators, undisturbed):
    first, address = await coordinators.start()
    async with client(address) as connected:
        await connected.submit(spec(), job=JOB)
        async for event in connected.watch(JOB):
            if event.record:
                break
    first.send_signal(signal.SIGSTOP)
    _, second = await coordinators.start()
    assert await ended(second) == "SUCCEEDED"
    held = written()
    first.send_signal(signal.SIGCONT)
    assert await ended(address) == "SUCCEEDED"  # it notices, and reads what the other one has written
    first.terminate()
    await first.wait()
    assert written() == held
    assert in_bucket() == undisturbed
    assert "job.taken_over" in coordinators.log(1)


async def test_a_stopped_coordinator_is_followed_at_once(coordinators, undisturbed):
    first, address = await coordinators.start()
    async with client(address) as connected:
        await connected.submit(spec(), job=JOB)
        async for event in connected.watch(JOB):
            if event.record:
                break
    first.terminate()
    await first.wait()
    head = reading.read_head(reading.S3Objects(BUCKET), reading.Address(BUCKET, f"runs/{JOB}"))
    assert head and not head.owner
    _, second = await coordinators.start()
    assert await ended(second) == "SUCCEEDED"
    assert in_bucket() == undisturbed


@pytest.mark.parametrize(
    ("runs", "told"),
    [
        ("s3://no-such-bucket/runs", "there is no bucket no-such-bucket; create it, or correct its name"),
        ("s3://NO/runs", "'s3://NO/runs' names no bucket"),
    ],
)
async def test_a_coordinator_says_what_is_wrong_with_its_bucket(coordinators, runs, told):
    process, _ = await coordinators.start(runs)
    assert await asyncio.wait_for(process.wait(), DEADLINE_S) in (1, 2)
    assert told in coordinators.log(1)
    assert "Traceback" not in coordinators.log(1)
