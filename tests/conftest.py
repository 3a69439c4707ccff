"""Fixtures for tests that need a parameter store: a real Redis, and real gRPC on a unix socket."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from marless.rpc.client import Peer
from marless.rpc.param_store import ParamStore
from marless.rpc.security import Security
from marless.rpc.server import ServerOptions, serving
from services.param_store import redis_server
from services.param_store.__main__ import build
from services.param_store.config import Config
from services.param_store.redis_server import RedisOptions

KEEP = 3


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One Redis for all tests; they keep apart by their job names."""
    options = RedisOptions(data_dir=str(tmp_path_factory.mktemp("redis")))
    with asyncio.Runner() as runner:
        provided = redis_server.provided(options)
        yield runner.run(provided.__aenter__()).url
        runner.run(provided.__aexit__(None, None, None))


@pytest.fixture
def job(request: pytest.FixtureRequest) -> str:
    """A job name of this test's own."""
    return "job-" + hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:12]


@pytest.fixture
def store_config(redis_url: str, tmp_path: Path) -> Config:
    """How the store of this test is run."""
    server = ServerOptions(f"unix:{tmp_path}/store.sock", Security())
    return Config(server, RedisOptions(url=redis_url), keep=KEEP, intake_bytes=2**26)


@pytest.fixture
async def store_address(store_config: Config) -> AsyncIterator[str]:
    """Address of a parameter store in this process."""
    async with serving(store_config.server, lambda address: build(store_config, address)) as address:
        yield address


@pytest.fixture
async def store(store_address: str) -> AsyncIterator[ParamStore]:
    """A client of it, which gives up at once."""
    peer = Peer(store_address, Security())
    yield ParamStore(peer, patience_s=0.0)
    await peer.close()
