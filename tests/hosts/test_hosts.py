"""A job over four hosts, with TLS and roles: each is a network namespace, whose link is cut for a while (R8).

One host has the coordinator and the param_store, one the actor pool and its workers, one the learner pool, and one the
learner workers, which see none of the pool's files. `make test-hosts` runs this.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
import pytest_asyncio

from marless.services.coordinator.state.run_folder import RunFolder
from tests import certificates
from tests.hosts.network import Host, network, refused
from tests.integration.hosts import SERVICES, Hosts, running_hosts
from tests.integration.running import outcome
from tests.integration.test_other_hosts import ELSEWHERE

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow, pytest.mark.timeout(600)]
JOB = {
    "env": {"name": "mpe/simple_spread", "options": {"agents": 2}},
    "algorithm": {"name": "vdn", "updates": 2, "batch": 16, "warmup": 100, "replay": {"capacity": 1000}},
    "model": {"hidden": [8]},
    "actors": {"count": 2, "envs": 4, "steps": 25},
    "evaluation": {"every": 50, "episodes": 4, "random_episodes": 4},
    "checkpoint": {"every": 50},
    "stop": {"rounds": 100},
}
"""Five rounds fill the replay; from then on, each drops one."""
PLACES = ("coordinator", "actor_pool", "learner_pool", "learner workers")
LENGTHS_S = (1.0, 5.0, 30.0)
HEALED_S = 10.0
UNDER_WAY = 2
"""Rounds that may still be recorded once a link is cut: the present one, and one that needs nothing from it."""
_serials = count()


@pytest.fixture(scope="module")
def links() -> Iterator[dict[str, Host]]:
    if why := refused():
        pytest.skip(f"no network namespaces on this machine: {why}")
    with network(len(PLACES)) as hosts:
        yield dict(zip(PLACES, hosts, strict=True))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def services(links, tmp_path_factory) -> AsyncIterator[Hosts]:
    tls = certificates.made(tmp_path_factory.mktemp("tls"), *(host.address for host in links.values()))
    on = {each: links["coordinator" if each == "param_store" else each] for each in SERVICES}
    of_service = {each: {"MARLESS_ADVERTISE": host.address} for each, host in on.items()}
    apart = {"PYTHONPATH": ELSEWHERE, "ELSEWHERE": "/dev/shm", "ELSEWHERE_NETWORK": links["learner workers"].name}
    of_service["learner_pool"] |= apart
    prefixes = {each: host.command for each, host in on.items()}
    async with running_hosts(tmp_path_factory.mktemp("hosts"), tls, of_service, prefixes) as hosts:
        yield hosts


class Job:
    """A job that runs on the hosts."""

    def __init__(self, hosts: Hosts, name: str) -> None:
        self._hosts = hosts
        self.name = name
        self.folder = RunFolder(hosts.place / "runs" / name)

    async def submit(self) -> None:
        spec = self._hosts.place / f"{self.name}.yaml"
        spec.write_text(json.dumps(JOB))
        await self._hosts.marless("submit", str(spec), "--job", self.name)

    async def outcome(self) -> object:
        await self._hosts.marless("wait", self.name)
        return outcome(self.folder)

    async def rounds(self, more: int) -> None:
        """Wait until this many more rounds are recorded."""
        wanted = self.recorded() + more
        while self.recorded() < wanted:  # noqa: ASYNC110  # another process records them
            await asyncio.sleep(0.02)

    def recorded(self) -> int:
        path = Path(self.folder.path, "rounds.jsonl")
        return path.read_bytes().count(b"\n") if path.exists() else 0


New = Callable[[], Awaitable[Job]]


@pytest.fixture
def new(services) -> New:
    async def submitted() -> Job:
        job = Job(services, f"job-{next(_serials)}")
        await job.submit()
        return job

    return submitted


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def undisturbed(services) -> object:
    """What the job comes to if nothing happens."""
    job = Job(services, "undisturbed")
    await job.submit()
    return await job.outcome()


async def cut(job: Job, link: Host, length_s: float) -> float:
    """Cut a link, and make it whole again; returns the seconds until the next round is recorded."""
    await job.rounds(10)
    link.link("down")
    at_cut = job.recorded()
    await asyncio.sleep(length_s)
    assert job.recorded() <= at_cut + UNDER_WAY, "the job went on as if the link was whole"
    assert at_cut + UNDER_WAY < JOB["stop"]["rounds"], "the job is too short"
    link.link("up")
    healed_s = time.monotonic()
    await job.rounds(1)
    return time.monotonic() - healed_s


@pytest.mark.parametrize("place", PLACES)
async def test_a_job_survives_that_a_host_is_cut_off(new, links, undisturbed, place):
    job = await new()
    progress_s = [await cut(job, links[place], length_s) for length_s in LENGTHS_S]
    assert await job.outcome() == undisturbed, "a round was lost, doubled or computed otherwise"
    assert max(progress_s) <= HEALED_S, progress_s


async def test_learner_workers_see_none_of_the_pools_files(services, undisturbed):
    assert "replay.copied" in services.said
