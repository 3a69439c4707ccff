"""The four services as they run on different hosts: TCP with TLS and a token, told of one another by variables."""

import asyncio
import json
import os
import sys
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from marless import spec as specs
from marless.errors import UnauthenticatedError
from marless.rpc.client import Peer
from marless.rpc.roles import Role
from marless.rpc.security import Security
from marless.rpc.v1 import coordinator_pb2
from marless.rpc.v1.coordinator_pb2_grpc import CoordinatorServiceStub
from tests import tokens

SPEC = specs.parse(
    {
        "env": {"name": "mpe/simple_adversary"},
        "algorithm": {"name": "mappo", "epochs": 1, "minibatches": 1},
        "model": {"hidden": [8]},
        "actors": {"count": 2, "envs": 2},
        "evaluation": {"every": 0, "episodes": 4, "random_episodes": 4},
        "stop": {"rounds": 3},
    },
    "spec",
)


@asynccontextmanager
async def running(service: str, environment: dict[str, str]):
    """A service as a process on a free port; yields its address and, once it has ended, leaves its log in `log`."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", f"services.{service}", "--listen", "127.0.0.1:0", "--exit-with-stdin"),
        stdin=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | environment,
    )
    log: list[str] = []
    try:
        while True:
            line = (await process.stderr.readline()).decode()
            log.append(line)
            assert line, f"{service} ended before it served: {log}"
            if line.startswith("{") and json.loads(line).get("event") == "serving":
                break
        yield json.loads(line)["address"], log
    finally:
        process.stdin.close()
        log.append((await process.stderr.read()).decode())
        await process.wait()


@pytest.fixture
async def cluster(tls, tmp_path):
    """Addresses and logs of the four services, started in the order in which they need one another."""
    tokens.made(tmp_path / "tokens")
    environment = {
        "MARLESS_TOKENS": str(tmp_path / "tokens"),
        "MARLESS_TLS_CERT": tls["server.pem"],
        "MARLESS_TLS_KEY": tls["server.key"],
        "MARLESS_TLS_CA": tls["ca.pem"],
        "MARLESS_RUNS": str(tmp_path),
    }
    logs: list[list[str]] = []
    async with AsyncExitStack() as stack:
        for service in ("param_store", "learner_pool", "actor_pool", "coordinator"):
            address, log = await stack.enter_async_context(running(service, environment))
            environment[f"MARLESS_{service.upper()}"] = address
            logs.append(log)
        yield environment, logs


async def final_state(peer: Peer) -> coordinator_pb2.Job:
    stub = CoordinatorServiceStub(peer.channel)
    request = coordinator_pb2.SubmitJobRequest(job="remote", spec_json=SPEC.to_json())
    await peer.call(stub.SubmitJob, request)
    events = [event async for event in peer.stream(stub.WatchJob, coordinator_pb2.WatchJobRequest(job="remote"))]
    assert [event.cursor for event in events if event.HasField("record_json")] == [1, 2, 3]
    return events[-1].state


async def test_a_job_runs_over_tls_with_a_token(cluster, tls):
    environment, logs = cluster
    peer = Peer(environment["MARLESS_COORDINATOR"], tokens.client(Role.CLIENT, tls_ca=tls["ca.pem"]))
    job = await final_state(peer)
    assert job.state == coordinator_pb2.JOB_STATE_SUCCEEDED, job.reason
    await peer.close()
    stranger = Peer(environment["MARLESS_COORDINATOR"], Security("a guess", tls_ca=tls["ca.pem"]))
    with pytest.raises(UnauthenticatedError):
        await final_state(stranger)
    await stranger.close()
    assert "canary" not in str(logs)


async def test_no_service_listens_beyond_this_machine_in_plaintext():
    for service in ("param_store", "learner_pool", "actor_pool", "coordinator"):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", f"services.{service}", "--listen", "0.0.0.0:0"), stderr=asyncio.subprocess.PIPE
        )
        _, said = await process.communicate()
        assert process.returncode == 1
        assert said.decode().strip().splitlines()[-1].startswith(f"{service}: 0.0.0.0:0 is not a loopback address")
