"""The four services as they run on different hosts: TCP with TLS and tokens, told of one another by variables."""

import os
import subprocess
import sys

import pytest

from marless.core.errors import PermissionDeniedError, UnauthenticatedError
from marless.jobs import spec as specs
from marless.rpc.client import Peer
from marless.rpc.roles import Role
from marless.rpc.security import Security
from marless.rpc.v1 import coordinator_pb2
from marless.rpc.v1.coordinator_pb2_grpc import CoordinatorServiceStub
from tests import tokens
from tests.integration.hosts import SERVICES, running_hosts

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


async def final_state(peer: Peer) -> coordinator_pb2.Job:
    stub = CoordinatorServiceStub(peer.channel)
    request = coordinator_pb2.SubmitJobRequest(job="remote", spec_json=SPEC.to_json())
    await peer.call(stub.SubmitJob, request)
    events = [event async for event in peer.stream(stub.WatchJob, coordinator_pb2.WatchJobRequest(job="remote"))]
    assert [event.cursor for event in events if event.HasField("record_json")] == [1, 2, 3]
    return events[-1].state


@pytest.mark.slow  # tests/security/test_secrets.py runs another, with workers that have a certificate of their own
async def test_a_job_runs_over_tls_with_tokens(tmp_path, tls):
    async with running_hosts(tmp_path, tls) as hosts:
        peer = Peer(hosts.address("coordinator"), tokens.client(Role.CLIENT, tls_ca=tls["ca.pem"]))
        job = await final_state(peer)
        assert job.state == coordinator_pb2.JOB_STATE_SUCCEEDED, job.reason
        await peer.close()
        strangers = {UnauthenticatedError: Security("a guess", tls_ca=tls["ca.pem"])}
        strangers[PermissionDeniedError] = tokens.client(Role.SERVICE, tls_ca=tls["ca.pem"])
        for error, security in strangers.items():
            stranger = Peer(hosts.address("coordinator"), security)
            with pytest.raises(error):
                await final_state(stranger)
            await stranger.close()


TRIED = """
import importlib, sys
for service in sys.argv[1:]:
    try:
        importlib.import_module(f"marless.services.{service}.__main__").main(["--listen", "0.0.0.0:0"])
    except SystemExit as end:
        print(f"exit code {end.code}", file=sys.stderr)
"""
"""Starts one service after the other in one process."""


def test_no_service_listens_beyond_this_machine_in_plaintext():
    peers = {f"MARLESS_{service.upper()}": "unix:/nowhere" for service in SERVICES}
    command = [sys.executable, "-c", TRIED, *SERVICES]
    done = subprocess.run(command, env=os.environ | peers, capture_output=True, text=True, check=False)
    said = done.stderr.splitlines()
    assert said[1::2] == ["exit code 1"] * len(SERVICES)
    for service, sentence in zip(SERVICES, said[::2], strict=True):
        assert sentence.startswith(f"{service}: 0.0.0.0:0 is not a loopback address")
