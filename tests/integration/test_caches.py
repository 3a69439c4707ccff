"""Jobs whose actors read weights through a cache of the store, and go on without it when it has gone."""

from contextlib import asynccontextmanager

import pytest

from marless.rpc.security import Security
from marless.rpc.server import ServedService, ServerOptions, serving
from marless.services.param_store.cache import cache
from tests.integration.running import Cluster, created, outcome, spec, succeeded


@pytest.fixture
async def cluster(tmp_path, redis_url, templates):
    cluster = Cluster(tmp_path, redis_url, templates, caches=(f"unix:{tmp_path}/cache.sock",))
    await cluster.start()
    yield cluster
    await cluster.close()


@asynccontextmanager
async def cached(cluster: Cluster):
    """A cache at the address that the workers know; yields its servicer."""
    [address] = cluster.caches
    async with cache(cluster.peers["param_store"].address, Security(), 2**20) as servicer:

        @asynccontextmanager
        async def build(_address: str):
            yield ServedService(servicer.register)

        async with serving(ServerOptions(address, Security()), build):
            yield servicer


async def test_a_job_comes_to_the_same_with_a_cache_and_after_its_death(cluster, tmp_path):
    rounds = spec().stop.rounds
    async with cached(cluster) as servicer:
        with_cache = created(tmp_path / "runs" / "with-cache", spec())
        await succeeded(cluster, with_cache)
        reads = {each.name: each.samples[0].value for each in servicer.figures()}
        assert reads["marless_cache_reads"] >= rounds, "actors read every round's versions"
        assert reads["marless_cache_upstream_reads"] <= rounds + 1, "each version is read from the store once"
    without = created(tmp_path / "runs" / "without", spec())
    await succeeded(cluster, without)
    assert outcome(without) == outcome(with_cache)
