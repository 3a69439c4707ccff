"""The dashboard on a real coordinator, whose job trains meanwhile: every page has what the job did."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from aiohttp.test_utils import TestClient, TestServer

from marless.app.client import AsyncClient
from marless.app.dashboard.guard import Guard, hosts_of
from marless.app.dashboard.server import application
from marless.app.dashboard.sources import CoordinatorSource
from marless.rpc.security import Security
from marless.rpc.server import ServerOptions, serving
from marless.services.coordinator import __main__ as coordinator
from marless.services.coordinator.config import CoordinatorConfig
from marless.services.coordinator.jobs.jobs import JobsOptions
from tests.integration.running import Cluster, running, spec

pytestmark = pytest.mark.asyncio(loop_scope="module")
TOKEN = "a-token-of-this-test"
PATIENCE_S = 60.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(redis_url, tmp_path_factory, templates) -> AsyncIterator[Cluster]:
    async for each in running(tmp_path_factory.mktemp("cluster"), redis_url, templates):
        yield each


@pytest_asyncio.fixture(loop_scope="module")
async def pages(cluster, tmp_path) -> AsyncIterator[TestClient]:
    peers = {name: peer.address for name, peer in cluster.peers.items()}
    server = ServerOptions(f"unix:{tmp_path}/coordinator.sock", Security())
    config = CoordinatorConfig(server=server, peers=peers, runs=tmp_path / "runs", jobs=JobsOptions(lease_s=0.4))
    guards: list[Guard] = []
    async with serving(server, lambda at: coordinator.build(config, at)) as address:
        source = CoordinatorSource(AsyncClient(address))
        site = TestServer(application(source, lambda: guards[0], Security()))
        async with TestClient(site, headers={"Authorization": f"Bearer {TOKEN}"}) as client:
            guards.append(Guard(token=TOKEN, hosts=hosts_of("127.0.0.1:0", site.port), scheme="http"))
            yield client
        await source.close()


async def got(pages, path):
    async with pages.get(path) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


async def until(pages, job, state) -> list[int]:
    """Follow a job as a page does until it is in a state; returns the rounds that came."""
    rounds: list[int] = []
    name = b""
    async with asyncio.timeout(PATIENCE_S), pages.get(f"/api/jobs/{job}/events") as answer:
        async for line in answer.content:
            if line.startswith(b"event: "):
                name = line[7:-1]
            elif line.startswith(b"data: ") and name == b"rounds":
                rounds += [row["rows"][0]["round"] for row in json.loads(line[6:])]
            elif line.startswith(b"data: ") and name == b"state":
                found = json.loads(line[6:])["job"]
                if found and found["state"] == state:
                    break
    return rounds


async def test_a_job_is_submitted_followed_and_shown_whole(pages):
    async with pages.post("/api/jobs", json={"text": spec(stop={"rounds": 6}).to_json(), "job": "shown"}) as answer:
        assert answer.status == 200, await answer.text()
    rounds = await until(pages, "shown", "SUCCEEDED")
    assert rounds == list(range(6 - len(rounds), 6))
    found = await got(pages, "/api/jobs/shown")
    assert found["rounds"] == 6 and found["job"]["random_return"] is not None and found["problem"] == ""
    curves = await got(pages, "/api/jobs/shown/series?name=return/greedy&name=metric/entropy&x=env-steps")
    assert len(curves["x"]) == 6 and curves["x"][-1] == found["job"]["env_steps"]
    greedy = [value for value in curves["columns"]["return/greedy"] if value is not None]
    assert greedy[-1] == pytest.approx(found["job"]["greedy_return"])
    line = await got(pages, "/api/jobs/shown/timeline?first=0&count=6")
    assert {bar["function"] for bar in line["bars"]} >= {"actor", "learner"} and len(line["rounds"]) == 6
    async with asyncio.timeout(PATIENCE_S):
        while (bills := await got(pages, "/api/jobs/shown/bills"))["priced"] < 6:
            assert bills["problem"] == ""
    assert bills["totals"]["cost/billed"] == pytest.approx(found["summary"]["cost_usd"], rel=1e-6)
    files = {each["path"] for each in (await got(pages, "/api/jobs/shown/files"))["files"]}
    assert {"job.json", "spec.yaml", "rounds.jsonl"} <= files
    async with pages.get("/api/jobs/shown/file?path=rounds.jsonl") as answer:
        assert (await answer.read()).count(b"\n") == 6
    async with asyncio.timeout(PATIENCE_S):  # the background worker has the lowest priority, and starts last
        fleet = await got(pages, "/api/fleet")
        while not any(each["background"] for each in fleet["workers"]):
            fleet = await got(pages, "/api/fleet")
    assert {each["name"] for each in fleet["services"]} >= {"actor_pool", "learner_pool"}
    assert fleet["problems"] == []
    pools = {each["name"]: each for each in fleet["pools"]}
    for name, pool in pools.items():
        listed = [each for each in fleet["workers"] if f"{each['pool']}_pool" == name and not each["background"]]
        assert len(listed) == pool["workers"] > 0 and pool["limit"] >= pool["workers"] and pool["draining"] == 0
        assert all(each["host"] and each["launcher"] and each["memory_bytes"] > 2**20 for each in listed)
    assert set(pools) == {"actor_pool", "learner_pool"}
    assert {each["pool"] for each in fleet["machines"]} == {"actor", "learner"}
    assert all(each["workers"] > 0 and not each["held"] and not each["released"] for each in fleet["machines"])


async def test_a_job_is_cancelled_and_resumed_from_the_page(pages):
    text = spec(stop={"rounds": 500}).to_json()
    async with pages.post("/api/jobs", json={"text": text, "job": "long"}) as answer:
        assert answer.status == 200
    async with pages.post("/api/jobs/long/cancel", json={}) as answer:
        assert answer.status == 200
    await until(pages, "long", "CANCELLED")
    rounds = (await got(pages, "/api/jobs/long"))["job"]["rounds"]
    async with pages.post("/api/jobs/long/resume", json={"stop": {"rounds": rounds + 2}}) as answer:
        assert answer.status == 200, await answer.text()
    await until(pages, "long", "SUCCEEDED")
    assert (await got(pages, "/api/jobs/long"))["job"]["rounds"] == rounds + 2


async def test_an_episode_is_filmed(pages):
    async with pages.post("/api/jobs", json={"text": spec(stop={"rounds": 2}).to_json(), "job": "acted"}) as answer:
        assert answer.status == 200
    await until(pages, "acted", "SUCCEEDED")
    async with pages.post("/api/jobs/acted/film", json={"seed": 3}) as answer:
        assert answer.status == 200, await answer.text()
        assert (await answer.read()).startswith(b"GIF8") and answer.content_type == "image/gif"
