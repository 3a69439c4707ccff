"""The coordinator's RPCs over a real connection: what is said of jobs, their logs and their files, and how soon."""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from itertools import count, groupby

import pytest
import pytest_asyncio

from marless.core.errors import NotFoundError, SpecError, UnavailableError
from marless.rpc.client import Peer
from marless.rpc.health import is_serving
from marless.rpc.security import Security
from marless.rpc.server import ServerOptions, serving
from marless.rpc.v1 import coordinator_pb2 as pb
from marless.rpc.v1.coordinator_pb2_grpc import CoordinatorServiceStub
from marless.services.coordinator import __main__ as coordinator
from marless.services.coordinator.config import CoordinatorConfig
from marless.services.coordinator.jobs.jobs import JobsOptions
from marless.storage.round_file import read
from tests.integration.running import Cluster, running, spec

pytestmark = pytest.mark.asyncio(loop_scope="module")
PATIENCE_S = 60.0
SUBMIT_S = 0.3
WATCH_S = 0.2
_serials = count()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(redis_url, tmp_path_factory, templates) -> AsyncIterator[Cluster]:
    async for each in running(tmp_path_factory.mktemp("cluster"), redis_url, templates):
        yield each


class Client:
    """A peer of the coordinator, and the directory of its run folders."""

    def __init__(self, peer: Peer, runs) -> None:
        self.peer = peer
        self.runs = runs
        self.stub = CoordinatorServiceStub(peer.channel)

    async def submit(self, **changes) -> str:
        job = f"api-{next(_serials)}"
        await self.peer.call(self.stub.SubmitJob, pb.SubmitJobRequest(job=job, spec_json=spec(**changes).to_json()))
        return job

    async def get(self, job: str) -> pb.Job:
        return (await self.peer.call(self.stub.GetJob, pb.GetJobRequest(job=job))).job

    async def events(self, job: str, cursor: int = 0) -> list[pb.JobEvent]:
        request = pb.WatchJobRequest(job=job, cursor=cursor)
        async with asyncio.timeout(PATIENCE_S):
            return [event async for event in self.peer.stream(self.stub.WatchJob, request)]

    async def log(self, job: str, **options) -> list[pb.LogLine]:
        request = pb.StreamLogsRequest(job=job, **options)
        async with asyncio.timeout(PATIENCE_S):
            return [line async for line in self.peer.stream(self.stub.StreamLogs, request)]

    async def read(self, job: str, path: str) -> bytes:
        request = pb.ReadFileRequest(job=job, path=path)
        header, data = await self.peer.fetch("CoordinatorService/ReadFile", request, pb.FileInfo)
        assert (header.path, header.bytes) == (path, len(data))
        return bytes(data)


@pytest_asyncio.fixture(loop_scope="module")
async def client(cluster, tmp_path) -> AsyncIterator[Client]:
    runs = tmp_path / "runs"
    peers = {name: peer.address for name, peer in cluster.peers.items()}
    server = ServerOptions(f"unix:{tmp_path}/coordinator.sock", Security())
    config = CoordinatorConfig(server=server, peers=peers, runs=runs, jobs=JobsOptions(lease_s=0.4))
    async with serving(server, lambda at: coordinator.build(config, at)) as address:
        peer = Peer(address, Security())
        yield Client(peer, runs)
        await peer.close()


def record_of(event: pb.JobEvent) -> dict:
    return json.loads(event.record_json)


@pytest.mark.alone
async def test_a_job_is_accepted_at_once_and_its_events_are_shown_as_they_happen(client):
    await client.events(await client.submit(stop={"rounds": 1}))  # workers are warm now
    started_s = time.perf_counter()
    job = await client.submit(stop={"rounds": 12})
    assert time.perf_counter() - started_s < SUBMIT_S
    late_s = []
    async for event in client.peer.stream(client.stub.WatchJob, pb.WatchJobRequest(job=job)):
        if event.HasField("record_json"):
            late_s.append(time.time() - record_of(event)["ended_s"])
    assert len(late_s) == 12
    assert sorted(late_s)[len(late_s) // 2] < WATCH_S


async def test_a_job_is_described(client):
    job = await client.submit(stop={"rounds": 2})
    shown = [event.state for event in await client.events(job) if event.HasField("state")]
    last = await client.get(job)
    assert last == shown[-1]
    states = [state for state, _ in groupby(state.state for state in shown)]  # each may tell of its progress
    assert states[-2:] == [pb.JOB_STATE_RUNNING, pb.JOB_STATE_SUCCEEDED]
    assert set(states[:-2]) <= {pb.JOB_STATE_PENDING}
    assert (last.rounds, last.env_steps, last.env, last.algorithm, last.resumes) == (
        *(2, 40, "mpe/simple_spread", "ippo", 0),
    )
    summary = json.loads(last.summary_json)
    assert (last.greedy_return, last.random_return) == (summary["return"], summary["random_return"])
    assert 0 < last.accepted_s < last.ended_s
    assert last.run_dir == str(client.runs / job)


async def test_watching_goes_on_from_any_cursor(client):
    job = await client.submit()
    everything = [event for event in await client.events(job) if event.HasField("record_json")]
    assert [event.cursor for event in everything] == [1, 2, 3, 4, 5]
    for cursor in range(7):
        again = [event for event in await client.events(job, cursor) if event.HasField("record_json")]
        assert again == everything[cursor:]


async def test_jobs_are_listed_in_pages_that_do_not_move(client):
    jobs = [await client.submit(stop={"rounds": 1}) for _ in range(5)]
    for job in jobs:
        await client.events(job)
    newest_first = jobs[::-1]

    async def page(**options) -> pb.ListJobsResponse:
        return await client.peer.call(client.stub.ListJobs, pb.ListJobsRequest(**options))

    first = await page(page_size=2)
    assert [job.job for job in first.jobs] == newest_first[:2]
    await client.peer.call(client.stub.DeleteJob, pb.DeleteJobRequest(job=newest_first[1]))  # the one the token is of
    await client.events(await client.submit(stop={"rounds": 1}))
    second = await page(page_size=2, page_token=first.next_page_token)
    third = await page(page_size=2, page_token=second.next_page_token)
    assert [job.job for job in [*second.jobs, *third.jobs]] == newest_first[2:]
    assert (third.next_page_token, len((await page()).jobs)) == ("", 5)
    assert not (await page(states=[pb.JOB_STATE_FAILED, pb.JOB_STATE_RUNNING])).jobs
    for bad in ({"page_token": "x"}, {"page_token": "W10="}, {"page_size": -1}, {"page_size": 1001}):
        with pytest.raises(SpecError, match="page_"):
            await page(**bad)


async def test_a_log_is_followed_from_anywhere_to_the_jobs_end(client):
    job = await client.submit()
    followed = await client.log(job, follow=True)
    lines = await client.log(job)
    assert lines == followed
    told = [json.loads(line.json) for line in lines]
    events = [line["event"] for line in told]
    assert (events[0], events[-1]) == ("job.accepted", "job.ended")
    assert events.count("round.evaluated") == 3  # rounds 1, 3 and the last
    assert events.count("checkpoint.saved") == 3
    assert all({"timestamp", "level", "event"} <= line.keys() for line in told)
    assert told[-1]["state"] == "SUCCEEDED"
    for at, line in enumerate(lines):
        assert await client.log(job, cursor=line.cursor, follow=True) == lines[at + 1 :]
        assert await client.log(job, tail=at) == (lines[-at:] if at else lines)
    with pytest.raises(SpecError, match="cursor 3 is not the end of a line"):
        await client.log(job, cursor=3)


async def test_the_log_of_a_failed_job_ends_with_what_matters(client, monkeypatch):
    job = await client.submit(learner={"device": "cuda:99"})
    *_, last = [json.loads(line.json) for line in await client.log(job, follow=True)]
    assert (last["event"], last["level"], last["state"]) == ("job.ended", "error", "FAILED")
    assert last["reason"] == (await client.get(job)).reason
    assert "cuda:99 asked for" in last["reason"]


async def test_files_are_read_as_they_are_on_the_disk(client):
    job = await client.submit()
    await client.events(job)
    folder = client.runs / job
    (folder / "large.bin").write_bytes(os.urandom(3 * 2**20 + 7))
    (folder / "empty").touch()
    listing = await client.peer.call(client.stub.ListFiles, pb.ListFilesRequest(job=job))
    sizes = {file.path: file.bytes for file in listing.files}
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert sizes.keys() == found
    assert {"spec.yaml", "rounds.jsonl", "checkpoints/round-000005/manifest.json"} <= found
    for path, size in sizes.items():
        assert await client.read(job, path) == (folder / path).read_bytes()
        assert size == (folder / path).stat().st_size


async def test_a_file_that_grows_is_read_to_the_size_it_had(client):
    job = await client.submit(stop={"rounds": 300})
    seen = 0
    async for event in client.peer.stream(client.stub.WatchJob, pb.WatchJobRequest(job=job)):
        if event.cursor < 3:
            continue
        (client.runs / "copy").write_bytes(await client.read(job, "rounds.jsonl"))
        assert len(list(read(client.runs / "copy"))) >= event.cursor
        seen += 1
        if seen == 5:
            break
    await client.peer.call(client.stub.CancelJob, pb.CancelJobRequest(job=job))
    await client.events(job)


async def test_nothing_but_a_jobs_own_files_can_be_read(client):
    job = await client.submit(stop={"rounds": 1})
    await client.events(job)
    folder = client.runs / job
    (client.runs / "secret").write_text("secret")
    (folder / "link").symlink_to(client.runs / "secret")
    (folder / "directory").symlink_to(client.runs)
    (folder / "store").mkdir()
    (folder / "store" / "appendonly.aof").write_text("secret")
    (folder / "job.json.1234.partial").write_text("half")
    os.mkfifo(folder / "fifo")
    bad = ("link", "directory/secret", "store/appendonly.aof", "job.json.1234.partial", "fifo", "checkpoints", "none")
    wild = ("", ".", "..", "../secret", "/etc/passwd", "checkpoints/../../secret", "./job.json", "job.json/", "a\0b")
    listing = await client.peer.call(client.stub.ListFiles, pb.ListFilesRequest(job=job))
    for path in (*bad, *wild, str(folder / "job.json")):
        assert path not in [file.path for file in listing.files]
        with pytest.raises(NotFoundError, match="there is no file"):
            await client.read(job, path)
    for other in ("../runs", "none"):
        with pytest.raises(NotFoundError, match="there is no job"):
            await client.read(other, "job.json")


async def test_streams_end_with_their_coordinator_and_go_on_with_the_next(cluster, tmp_path):
    peers = {name: peer.address for name, peer in cluster.peers.items()}
    server = ServerOptions(f"unix:{tmp_path}/coordinator.sock", Security())
    config = CoordinatorConfig(server=server, peers=peers, runs=tmp_path / "runs", jobs=JobsOptions(lease_s=0.4))
    client = Client(Peer(server.listen, Security()), config.runs)
    seen: list[int] = []
    third = asyncio.Event()

    async def watch(job: str) -> None:
        request = pb.WatchJobRequest(job=job, cursor=len(seen))
        async for event in client.peer.stream(client.stub.WatchJob, request):
            if event.HasField("record_json"):
                seen.append(record_of(event)["round"])
            if len(seen) == 3:
                third.set()

    async with serving(server, lambda at: coordinator.build(config, at)):
        job = await client.submit(stop={"rounds": 25})
        watching = asyncio.create_task(watch(job))
        logging = asyncio.create_task(client.log(job, follow=True))
        await third.wait()
    for stream in (watching, logging):
        with pytest.raises(UnavailableError, match="the coordinator is stopping; continue from the last cursor"):
            await stream
    assert len(seen) < 25
    async with serving(server, lambda at: coordinator.build(config, at)), asyncio.timeout(PATIENCE_S):
        await watch(job)
        assert (await client.get(job)).resumes == 1
    assert seen == list(range(25))
    await client.peer.close()


async def test_health_and_info_tell_what_is_missing(client, cluster):
    info = await client.peer.call(client.stub.GetInfo, pb.GetInfoRequest())
    assert {service.name: (service.address, service.serving) for service in info.services} == {
        name: (peer.address, True) for name, peer in cluster.peers.items()
    }
    assert abs(info.now_s - time.time()) < 5
    assert info.runs == str(client.runs)
    assert await is_serving(client.peer)

    async def until(serving: bool) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while await is_serving(client.peer) != serving:  # noqa: ASYNC110  # health is asked for, not told
                await asyncio.sleep(0.05)

    await cluster.stop("actor_pool")
    await until(False)
    info = await client.peer.call(client.stub.GetInfo, pb.GetInfoRequest())
    assert [service.name for service in info.services if not service.serving] == ["actor_pool"]
    await cluster.start("actor_pool")
    await until(True)
    client.runs.rename(client.runs.with_name("elsewhere"))
    await until(False)
    client.runs.with_name("elsewhere").rename(client.runs)
    await until(True)
