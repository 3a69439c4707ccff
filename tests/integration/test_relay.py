"""Jobs whose actors get their tasks, and upload, through a relay, and go on without it when it has gone."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from marless.rpc.server import serving
from marless.services.relay.__main__ import build, parse
from tests.integration.running import Cluster, created, outcome, ready, spec, succeeded


@pytest.fixture
async def cluster(tmp_path, redis_url, templates):
    cluster = Cluster(tmp_path, redis_url, templates, relay=f"unix:{tmp_path}/relay.sock")
    yield cluster
    await cluster.close()


@asynccontextmanager
async def relay_of(cluster: Cluster):
    """A relay at the address that the workers know; yields its metrics."""
    pools = [("--actor-pool", cluster.peers["actor_pool"]), ("--learner-pool", cluster.peers["learner_pool"])]
    options = parse(["--listen", cluster.relay, *(word for flag, peer in pools for word in (flag, peer.address))])
    services = []

    @asynccontextmanager
    async def noted(address: str):
        async with build(options, address) as service:
            services.append(service)
            yield service

    async with serving(options.server, noted):
        yield lambda: {each.name: each.samples[0].value for each in services[0].figures()}


SCHEDULES = pytest.mark.parametrize("schedule", ["synchronous", "pipelined"])


@SCHEDULES
async def test_a_job_comes_to_the_same_through_a_relay_and_after_its_death(cluster, tmp_path, schedule):
    async with relay_of(cluster) as figures:
        await cluster.start()
        through = created(tmp_path / "runs" / "through", spec(schedule=schedule))
        await succeeded(cluster, through)
        assert figures()["marless_relay_workers"] >= 1
        assert figures()["marless_relay_uploads"] == spec().stop.rounds * spec().actors.count
    without = created(tmp_path / "runs" / "without", spec(schedule=schedule))
    await succeeded(cluster, without)
    assert outcome(without) == outcome(through)


@SCHEDULES
async def test_a_relay_that_ends_in_the_middle_of_a_job_costs_no_round_and_changes_nothing(cluster, tmp_path, schedule):
    folder, begun = created(tmp_path / "runs" / "cut", spec(schedule=schedule)), asyncio.Event()
    async with relay_of(cluster) as figures:
        await cluster.start()
        run = ready(folder, cluster.pools, changed=lambda record: begun.set() if record else None)
        running = asyncio.create_task(run.run())
        await begun.wait()
        assert figures()["marless_relay_uploads"] >= 1
    await running
    assert (run.status.state, len(list(folder.records()))) == ("SUCCEEDED", spec().stop.rounds)
    whole = created(tmp_path / "runs" / "whole", spec(schedule=schedule))
    await succeeded(cluster, whole)
    assert outcome(whole) == outcome(folder)
