"""A cluster whose autoscaler adds nodes while a job needs them, and removes them when it has ended."""

from __future__ import annotations

import asyncio
import os
from functools import partial

import pytest
import pytest_asyncio

from marless.core import process_environment
from marless.fleet.launchers.base import ACCEPTED, LaunchOrder, WorkerProgram
from marless.services.actor_pool import __main__ as actor_pool
from marless.services.actor_pool.__main__ import ActorPoolConfig
from marless_ray import launcher as ray_launcher
from tests.integration.running import Cluster, created, go_on, outcome, ready, spec
from tests.plugins.ray.clusters.autoscaling import IDLE_S, autoscaled
from tests.plugins.ray.clusters.cluster import PATIENCE_S, WORKER, eventually, processes
from tests.plugins.ray.clusters.test_launcher import MODULE, ROOT

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600), pytest.mark.usefixtures("nothing_left")]
NODES = 3
KEEP_ALIVE_S = 3.0
ROUNDS = 20
JOB = {"actors": {"count": NODES, "envs": 8, "steps": 2000}, "stop": {"rounds": ROUNDS}}
"""On one node, rounds take about a second each; the autoscaler looks once a second."""


@pytest.fixture(scope="module")
def cluster():
    """A cluster of one node, which may have up to three."""
    with autoscaled(NODES) as cluster:
        yield cluster


@pytest_asyncio.fixture
async def services(cluster, redis_url, tmp_path, templates, monkeypatch):
    """The services of a job, whose idle actors are stopped soon."""
    running = Cluster(tmp_path, redis_url, templates)
    known = running._services()
    config = known["actor_pool"][0]
    actors = ActorPoolConfig(config.server, config.param_store, workers=NODES, warm=0, keep_alive_s=KEEP_ALIVE_S)
    options = {"address": cluster.address, "connect_s": "120", "place_s": "3"}
    build = partial(actor_pool.build, make=lambda program, _: ray_launcher.make(program, options))
    monkeypatch.setattr(running, "_services", lambda: known | {"actor_pool": (actors, build)})
    await running.start()
    yield running
    await running.close()


async def test_a_job_grows_the_cluster_to_three_nodes_and_it_shrinks_after_the_job(
    cluster, services, redis_url, tmp_path, templates
):
    assert cluster.nodes() == 1
    folder, most = created(tmp_path / "scaled", spec(**JOB)), 0
    run = ready(folder, services.pools, patience_s=PATIENCE_S)
    async with asyncio.timeout(4 * PATIENCE_S):
        ended = asyncio.create_task(run.run())
        while not ended.done():
            most = max(most, await asyncio.to_thread(cluster.nodes))
            await asyncio.sleep(0.2)
    assert (run.status.state, run.status.reason) == ("SUCCEEDED", f"{ROUNDS} rounds done")
    assert most == NODES
    *_, last = folder.records()
    assert len({each.worker for each in last.invocations if each.function == "actor"}) == NODES
    assert not [each for record in folder.records() for each in record.invocations if each.attempt > 1]
    await asyncio.to_thread(eventually, lambda: cluster.nodes() == 1, "the cluster shrinks", PATIENCE_S + IDLE_S)
    plain = Cluster(tmp_path / "plain", redis_url, templates)
    plain.folder.mkdir()
    await plain.start()
    alone = created(tmp_path / "alone", spec(**JOB))
    await go_on(alone, plain.pools)
    await plain.close()
    assert outcome(folder) == outcome(alone)


async def test_workers_start_and_end_through_rays_client(cluster, tmp_path):
    """`ray://`: the pool's host is no node of the cluster."""
    given = ("--place", str(tmp_path))
    settings = process_environment.ACTOR | {"PYTHONPATH": str(ROOT)}
    program = WorkerProgram(MODULE, given, process_environment.inherited(os.environ), lambda: "token", settings)
    launcher = ray_launcher.make(program, {"address": cluster.client})
    assert (await launcher.check()).found.startswith("Ray ")
    assert await launcher.launch([LaunchOrder("one", "ticket")]) == [ACCEPTED]
    await asyncio.to_thread(eventually, (tmp_path / "one").exists, "the worker starts")
    assert len(processes(WORKER)) == 1
    await launcher.drain("one", 0.5)
    assert processes(WORKER) == []
    await launcher.close()
