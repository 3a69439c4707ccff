"""Jobs whose actors run on several nodes of Ray: a node is killed, nodes come and go, workers leave."""

from __future__ import annotations

import asyncio
import os
from functools import partial

import pytest
import pytest_asyncio

from marless.fleet.launchers.registry import Choice
from marless.rpc.v1.actor_pool_pb2_grpc import ActorPoolServiceStub
from marless.rpc.v1.common_pb2 import ListWorkersRequest
from marless.services.actor_pool import __main__ as actor_pool
from marless.services.actor_pool.__main__ import ActorPoolConfig
from marless_ray import launcher as ray_launcher
from tests.faults import scale_down
from tests.faults.rig import WITNESS
from tests.integration.running import Cluster, created, go_on, outcome, ready, spec
from tests.plugins.ray.clusters.cluster import PATIENCE_S, ray_cluster

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600), pytest.mark.usefixtures("nothing_left")]
ROUNDS = 6
WORKERS = int(os.environ.get("MARLESS_RAY_WORKERS", "8"))
"""Of whom all but two leave at once."""
JOB = {"actors": {"count": 4, "envs": 8, "steps": 2000}, "stop": {"rounds": ROUNDS}}
"""Rounds take about a second: a node is killed in the middle of one."""


@pytest.fixture
def nodes(monkeypatch):
    """A head without room for workers, and two nodes for two each, whose workers know the environments of a test."""
    monkeypatch.setenv("PYTHONPATH", str(WITNESS))
    with ray_cluster(0, 2, 2) as cluster:
        yield cluster


@pytest_asyncio.fixture
async def services(nodes, redis_url, tmp_path, templates, monkeypatch):
    """The services of a job; its actors run on the nodes."""
    running = Cluster(tmp_path, redis_url, templates)
    known = running._services()
    config = known["actor_pool"][0]
    actors = ActorPoolConfig(config.server, config.param_store, workers=4, warm=4, keep_alive_s=600)
    options = {"address": nodes.address, "connect_s": "240", "place_s": "240"}
    build = partial(actor_pool.build, make=lambda program, _: ray_launcher.make(program, options))
    monkeypatch.setattr(running, "_services", lambda: known | {"actor_pool": (actors, build)})
    await running.start()
    yield running
    await running.close()


async def workers(running) -> list:
    stub = ActorPoolServiceStub(running.peers["actor_pool"].channel)
    return list((await running.peers["actor_pool"].call(stub.ListWorkers, ListWorkersRequest())).workers)


async def test_a_node_that_is_killed_in_mid_round_changes_no_weight(nodes, services, redis_url, tmp_path, templates):
    folder = created(tmp_path / "disturbed", spec(**JOB))
    rounds = asyncio.Event()
    run = ready(folder, services.pools, patience_s=PATIENCE_S, changed=lambda record: rounds.set())
    async with asyncio.timeout(4 * PATIENCE_S):
        while len(await workers(services)) < 4:  # noqa: ASYNC110  # a pool tells nobody
            await asyncio.sleep(0.05)
        ended = asyncio.create_task(run.run())
        await rounds.wait()
        while not all(each.busy for each in await workers(services)):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        lost = next(iter(nodes.worker_nodes))
        await asyncio.to_thread(nodes.remove_node, lost, allow_graceful=False)
        await ended
    assert (run.status.state, run.status.reason) == ("SUCCEEDED", f"{ROUNDS} rounds done")
    repeated = [each for record in folder.records() for each in record.invocations if each.attempt > 1]
    assert repeated, "the node had workers in mid-task"
    plain = Cluster(tmp_path / "plain", redis_url, templates)
    plain.folder.mkdir()
    await plain.start()
    undisturbed = created(tmp_path / "undisturbed", spec(**JOB))
    await go_on(undisturbed, plain.pools)
    await plain.close()
    assert outcome(folder) == outcome(undisturbed)


async def test_workers_that_leave_all_at_once_lose_nothing(nodes, tmp_path):
    options = Choice(
        "ray", {"address": nodes.address, "cpus": f"{3.2 / WORKERS:.3f}", "connect_s": "240", "place_s": "240"}
    )
    figures = await scale_down.at_once(tmp_path, options, workers=WORKERS, remaining=2)
    assert (figures["left"], figures["lost"], figures["actors run again"]) == (WORKERS - 2, 0, 0)
