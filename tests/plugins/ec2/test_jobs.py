"""Jobs whose actors run on machines of a group: one is interrupted with notice, one without, in mid-round."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
import pytest_asyncio

from marless.fleet import fleet
from marless.rpc.v1.actor_pool_pb2_grpc import ActorPoolServiceStub
from marless.rpc.v1.common_pb2 import ListWorkersRequest, WorkerInfo
from marless.services.actor_pool import __main__ as actor_pool
from marless.services.actor_pool.__main__ import ActorPoolConfig
from marless_ec2 import launcher as ec2
from tests.integration.running import Cluster, created, go_on, outcome, ready, spec
from tests.plugins.ec2.machines import group, instances, machines

pytestmark = [pytest.mark.cloud, pytest.mark.timeout(900), pytest.mark.usefixtures("aws")]
ROUNDS = 6
JOB = {"actors": {"count": 4, "envs": 8, "steps": 1500}, "stop": {"rounds": ROUNDS}}
PATIENCE_S = 200.0
SPOT_USD_H = 0.00001
"""Of every type in moto."""
DRAIN_S = 110.0
"""A machine that is announced to end in two minutes has no worker any more by then, also if this machine is busy."""


@pytest_asyncio.fixture
async def services(redis_url, tmp_path, templates, monkeypatch):
    """The services of a job; its actors run on machines with room for two each."""
    monkeypatch.setattr(fleet, "REFUSED_S", 0.2)
    group(most=4)
    running = Cluster(tmp_path, redis_url, templates)
    known = running._services()
    config = known["actor_pool"][0]
    actors = ActorPoolConfig(config.server, config.param_store, workers=4, warm=4, keep_alive_s=600)
    options = {"group": "actors", "poll_s": "0.5"}
    build = partial(actor_pool.build, make=lambda program, _: ec2.make(program, options))
    monkeypatch.setattr(running, "_services", lambda: known | {"actor_pool": (actors, build)})
    with machines(running._address("actor_pool")) as following:
        await running.start()
        yield running, following
        await running.close()
    assert instances() == []


async def workers(running: Cluster) -> list[WorkerInfo]:
    stub = ActorPoolServiceStub(running.peers["actor_pool"].channel)
    return list((await running.peers["actor_pool"].call(stub.ListWorkers, ListWorkersRequest())).workers)


def notice(machine) -> None:
    """As AWS announces that it interrupts a spot instance in two minutes."""
    end = (datetime.now(UTC) + timedelta(seconds=120)).strftime("%Y-%m-%dT%H:%M:%SZ")
    machine.metadata.texts["meta-data/spot/instance-action"] = json.dumps({"action": "terminate", "time": end})


def no_notice(machine) -> None:
    machine.process.kill()


@pytest.mark.parametrize("interrupt", [notice, no_notice])
async def test_an_interrupted_machine_changes_no_weight(
    services, redis_url, tmp_path, templates, interrupt, record_property
):
    running, following = services
    folder = created(tmp_path / "disturbed", spec(**JOB))
    rounds = asyncio.Event()
    run = ready(folder, running.pools, patience_s=PATIENCE_S, changed=lambda record: rounds.set())
    async with asyncio.timeout(3 * PATIENCE_S):
        while len(await workers(running)) < 4:  # noqa: ASYNC110  # a pool tells nobody
            await asyncio.sleep(0.05)
        assert len(instances()) == 2
        ended = asyncio.create_task(run.run())
        await rounds.wait()
        while not all(each.busy for each in await workers(running)):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        lost = instances()[0]
        interrupt(following.running[lost])
        began_s = time.monotonic()
        while lost in instances() and interrupt is notice:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        drained_s = time.monotonic() - began_s
        await ended
        while len(await workers(running)) < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert (run.status.state, run.status.reason) == ("SUCCEEDED", f"{ROUNDS} rounds done")
    used = [each for record in folder.records() for each in record.machines if each.pool == "actor"]
    assert {each.id for each in used if each.usd_h == SPOT_USD_H} == {each.id for each in used}, "as AWS was asked"
    repeated = [each for record in folder.records() for each in record.invocations if each.attempt > 1]
    assert drained_s <= DRAIN_S
    record_property("machine free after, s", round(drained_s, 1))
    record_property("tasks run again", len(repeated))
    assert bool(repeated) == (interrupt is no_notice), "with notice nothing is run twice, without something is"
    assert len(repeated) <= 2
    plain = Cluster(tmp_path / "plain", redis_url, templates)
    plain.folder.mkdir()
    await plain.start()
    undisturbed = created(tmp_path / "undisturbed", spec(**JOB))
    await go_on(undisturbed, plain.pools)
    await plain.close()
    assert outcome(folder) == outcome(undisturbed)
