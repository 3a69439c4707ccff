"""A spec that arrives over the wire names no path: the coordinator reads no file for whoever submits a job."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from marless import spec as specs
from marless.client import AsyncClient
from marless.errors import MarlessError, SpecError
from marless.rpc.client import Peer
from marless.rpc.security import Security
from marless.rpc.server import serving
from marless.rpc.v1 import coordinator_pb2 as pb
from marless.rpc.v1.coordinator_pb2_grpc import CoordinatorServiceStub
from services.coordinator import __main__ as coordinator
from services.coordinator.config import parse
from tests.integration.running import DOCUMENT

CANARY = "canary-9f8e7d6c5b4a"


@pytest.fixture
def secret(tmp_path) -> Path:
    """A file that the coordinator can read and its callers may not."""
    path = tmp_path / "secret.yaml"
    path.write_text(f"password: {CANARY}\nlambda: {CANARY}\n", "utf-8")
    return path


@pytest.fixture
async def address(tmp_path) -> AsyncIterator[str]:
    """A real coordinator, with nothing behind it."""
    peers = (f"--{name}=unix:{tmp_path}/no.sock" for name in ("actor-pool", "learner-pool", "param-store"))
    config = parse(["--listen", f"unix:{tmp_path}/c.sock", "--runs", str(tmp_path / "runs"), *peers])
    async with serving(config.server, lambda at: coordinator.build(config, at)) as at:
        yield at


async def refused(address: str, document: object) -> str:
    """What the coordinator says to a spec that must not work."""
    peer = Peer(address, Security())
    request = pb.SubmitJobRequest(job="job", spec_json=json.dumps(document))
    try:
        with pytest.raises(MarlessError) as caught:
            await peer.call(CoordinatorServiceStub(peer.channel).SubmitJob, request)
    finally:
        await peer.close()
    assert isinstance(caught.value, SpecError), caught.value
    assert CANARY not in str(caught.value) + caught.value.detail
    return str(caught.value)


async def test_prices_by_path_are_refused_unread(address, secret):
    for stop in (DOCUMENT["stop"], {"cost_usd": 1}):
        said = await refused(address, DOCUMENT | {"bill": {"prices": str(secret)}, "stop": stop})
        assert "bill.prices: got" in said


async def test_the_client_sends_the_contents_of_a_price_file(address, tmp_path):
    prices = tmp_path / "mine.yaml"
    prices.write_text("backend: fargate\nredis: {date: 2026-01-02, nodes: {mine: 0.5}}\n", "utf-8")
    held = {"backend": "fargate", "redis": {"date": "2026-01-02", "nodes": {"mine": 0.5}}}
    job = tmp_path / "job.yaml"
    job.write_text(yaml.safe_dump(DOCUMENT), "utf-8")
    async with AsyncClient(address, token="", tls_ca="") as client:
        by_path = DOCUMENT | {"bill": {"prices": str(prices)}}
        for name, given in (("by-path", by_path), ("by-contents", DOCUMENT | {"bill": {"prices": held}})):
            await client.submit(given, job=name)
        await client.submit(job, job="by-file", overrides=[f"bill.prices={prices}"])
        for name in ("by-path", "by-contents", "by-file"):
            accepted = yaml.safe_load((tmp_path / "runs" / name / "spec.yaml").read_text("utf-8"))
            assert accepted["bill"]["prices"] == held


@pytest.mark.parametrize("number", ["1E+999999999", "1E-999999999", "9" * 50, "NaN", "-1", 1e300, float("inf")])
def test_a_price_is_a_number_that_can_be_written_out(number):
    with pytest.raises(SpecError, match=r"bill\.prices.*redis.*nodes.*x"):
        specs.parse(DOCUMENT | {"bill": {"prices": {"redis": {"nodes": {"x": number}}}}}, "spec")


def test_a_recorded_spec_reads_no_file(tmp_path, secret):
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(DOCUMENT | {"bill": {"prices": str(secret)}}), "utf-8")
    with pytest.raises(SpecError) as caught:
        specs.load_resolved(path)
    assert CANARY not in str(caught.value)
