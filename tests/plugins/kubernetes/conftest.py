"""A stand-in for a cluster, and the launcher on it."""

from __future__ import annotations

import asyncio
import json

import pytest

from marless.core import process_environment
from marless.fleet.launchers.base import WorkerProgram
from marless_kubernetes import launcher as kubernetes
from marless_kubernetes import settings
from tests.plugins.kubernetes.api_fake import api_server

PATIENCE_S = 10.0
MODULE = "tests.unit.fleet.container_worker"


@pytest.fixture
def server(tmp_path, monkeypatch):
    # Containers are processes of this machine, and reach what listens on loopback.
    monkeypatch.setattr(settings, "_check_reach", lambda arguments: None)
    with api_server(tmp_path) as running:
        yield running


@pytest.fixture
def options(server):
    return {"image": "registry.test/workers:1", "kubeconfig": str(server.kubeconfig), "place_s": "5"}


@pytest.fixture
def place(tmp_path):
    made = tmp_path / "noted"
    made.mkdir()
    return made


@pytest.fixture
def program(place):
    return WorkerProgram(
        MODULE,
        ("--place", str(place)),
        {"SECRET": "of the pool"},
        lambda: "token of the role",
        process_environment.ACTOR,
    )


@pytest.fixture
async def launcher(server, program, options):
    made = kubernetes.make(program, options)
    yield made
    server.faults.clear()
    await made.close()
    assert server.pods == server.secrets == {}


async def facts(place, worker):
    """What a worker has noted of its handover."""
    async with asyncio.timeout(PATIENCE_S):
        while not (place / worker).exists():  # noqa: ASYNC110  # a process tells nobody
            await asyncio.sleep(0.01)
    return json.loads((place / worker).read_text())


async def seen(condition):
    """Wait until something of the server's is so."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  # the server has its own thread
            await asyncio.sleep(0.01)
