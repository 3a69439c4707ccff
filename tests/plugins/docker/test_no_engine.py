"""A job whose actors run in containers, while no container engine answers."""

import asyncio
import re
from collections.abc import Callable
from functools import partial

import pytest
import pytest_asyncio

from marless.fleet import fleet
from marless.services.actor_pool import __main__ as actor_pool
from marless.services.coordinator.state.status import JobStatus
from marless_docker import launcher as docker
from tests.integration.running import Cluster, created, go_on, outcome, ready, spec
from tests.plugins.docker.engine_server import engine

PATIENCE_S = 30.0
SAID = (
    "waits for actor workers: cannot {call}: no container engine answers at unix://{place}/engine.sock; start it "
    "(`systemctl start docker`), or set DOCKER_HOST to its address"
)


class Watched:
    """A job that runs, and what it shows meanwhile."""

    def __init__(self, cluster, folder):
        self.rounds = 0
        self._changed = asyncio.Event()
        self._run = ready(folder, cluster.pools, patience_s=PATIENCE_S, changed=self._note)
        self.ended = asyncio.create_task(self._run.run())

    async def cancel(self) -> None:
        self._run.cancel()
        await self.ended

    @property
    def status(self) -> JobStatus:
        return self._run.status

    def _note(self, record) -> None:
        self.rounds += record is not None
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await self._changed.wait()
                self._changed.clear()


@pytest_asyncio.fixture
async def cluster(redis_url, tmp_path, templates, monkeypatch):
    """Its actor pool starts containers through `engine.sock`, where there is no engine at first."""
    monkeypatch.setattr(fleet, "REFUSED_S", 0.05)
    options = {"image": "workers", "network": "host", "user": "1000", "engine": f"unix://{tmp_path}/engine.sock"}
    sockets, spool = tmp_path / "sockets", tmp_path / "spool"
    sockets.mkdir()
    spool.mkdir()
    cluster = Cluster(sockets, redis_url, templates, spool=spool)
    services = cluster._services()
    build = partial(actor_pool.build, make=lambda program, _: docker.make(program, options))
    monkeypatch.setattr(cluster, "_services", lambda: services | {"actor_pool": (services["actor_pool"][0], build)})
    await cluster.start()
    yield cluster
    await cluster.close()


async def test_a_job_waits_for_an_engine_and_says_so(cluster, tmp_path):
    job = Watched(cluster, created(tmp_path / "job", spec()))
    await job.until(lambda: "no container engine" in job.status.reason)
    assert job.status.reason == SAID.format(call="inspect image workers", place=tmp_path)
    await job.cancel()
    assert job.status.state == "CANCELLED"


async def test_a_job_waits_for_an_image_and_says_so(cluster, tmp_path):
    with engine(tmp_path) as server:
        server.images.clear()
        job = Watched(cluster, created(tmp_path / "job", spec()))
        await job.until(lambda: "image" in job.status.reason)
        assert job.status.reason == (
            "waits for actor workers: cannot inspect image workers: No such image: workers; build the image, or pull "
            "it, or give another one with image="
        )
        await job.cancel()


@pytest.mark.slow
async def test_a_job_goes_on_when_an_engine_is_back(cluster, tmp_path):
    """It also waits in the middle of a round whose workers have ended with their engine."""
    folder = created(tmp_path / "job", spec(stop={"rounds": 4}))
    job = Watched(cluster, folder)
    await job.until(lambda: "no container engine" in job.status.reason)
    with engine(tmp_path):
        await job.until(lambda: job.rounds == 2)
        assert job.status.reason == "training"
    await job.until(lambda: "no container engine" in job.status.reason)
    [call] = re.findall(r"cannot (\w+ container marless-\w+-actor-\d):", job.status.reason)
    assert job.status.reason == SAID.format(call=call, place=tmp_path)
    (tmp_path / "engine.sock").unlink()
    with engine(tmp_path):
        await job.ended
        assert (job.status.state, job.status.reason) == ("SUCCEEDED", "4 rounds done")
        undisturbed = created(tmp_path / "undisturbed", spec(stop={"rounds": 4}))
        await go_on(undisturbed, cluster.pools)
    assert outcome(folder) == outcome(undisturbed)
