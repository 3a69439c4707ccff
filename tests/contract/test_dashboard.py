"""The dashboard over real HTTP, on a coordinator over real gRPC and on run folders: what it shows, and to whom."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from urllib.parse import quote

import pytest
import pytest_asyncio
from aiohttp.test_utils import TestClient, TestServer
from yarl import URL

from marless.app.cli.dashboard import _folder_source
from marless.app.client import AsyncClient
from marless.app.dashboard import feeds, fleets, hub
from marless.app.dashboard.guard import POLICY, Guard, hosts_of
from marless.app.dashboard.server import application
from marless.app.dashboard.sources import CoordinatorSource
from marless.core.errors import MarlessError, OverloadedError, PermissionDeniedError
from marless.rpc.security import Security
from marless.rpc.server import ServedService, ServerOptions, serving
from marless.rpc.v1.actor_pool_pb2_grpc import ActorPoolServiceServicer, add_ActorPoolServiceServicer_to_server
from marless.rpc.v1.common_pb2 import ListWorkersResponse, Machine, MachineInfo, WorkerInfo
from marless.rpc.v1.coordinator_pb2 import ServiceInfo
from marless.rpc.v1.learner_pool_pb2_grpc import LearnerPoolServiceServicer, add_LearnerPoolServiceServicer_to_server
from tests.scripted_coordinator import ScriptedCoordinator
from tests.unit.jobs.test_record import record

TOKEN = "a-token-of-this-test"
HOSTILE = "<img src=x onerror=alert(1)>"
SPEC = b"name: tiny\nenv: {name: mpe/simple_spread}\nalgorithm: ippo\nstop: {rounds: 50, cost_usd: 1.5}\n"


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Answers wait until all that is recorded has been read, however busy the machine is."""
    monkeypatch.setattr(hub, "FIRST_S", 20.0)


@pytest.fixture
def coordinator(tmp_path):
    with ScriptedCoordinator(tmp_path) as running:
        yield running


@asynccontextmanager
async def pages_of(source) -> AsyncIterator[TestClient]:
    guards: list[Guard] = []
    server = TestServer(application(source, lambda: guards[0], Security()))
    async with TestClient(server, headers={"Authorization": f"Bearer {TOKEN}"}) as client:
        guards.append(Guard(token=TOKEN, hosts=hosts_of("127.0.0.1:0", server.port), scheme="http"))
        yield client
    await source.close()


@pytest_asyncio.fixture
async def pages(coordinator) -> AsyncIterator[TestClient]:
    source = CoordinatorSource(AsyncClient(coordinator.address, contact_s=0.3, patience_s=0.3))
    async with pages_of(source) as client:
        yield client


async def got(pages, path, status=200, **options):
    async with pages.get(path, **options) as answer:
        assert answer.status == status, await answer.text()
        return await answer.json()


class Events:
    """A stream of a test, event by event."""

    def __init__(self, answer) -> None:
        self._answer = answer
        self.last = ""

    async def next(self, *kinds: str) -> object:
        """The data of the next event, of one of these kinds if some are given."""
        name = data = ""
        while True:
            line = (await asyncio.wait_for(self._answer.content.readline(), 10)).decode().rstrip("\n")
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("id: "):
                self.last = line[4:]
            elif line.startswith("data: "):
                data = line[6:]
            elif not line and data:
                if not kinds or name in kinds:
                    return json.loads(data)
                data = ""


@asynccontextmanager
async def stream(pages, path, last="") -> AsyncIterator[Events]:
    async with pages.get(path, headers={"Last-Event-ID": last} if last else {}) as answer:
        assert answer.status == 200 and answer.content_type == "text/event-stream"
        yield Events(answer)


def job(coordinator, name="tiny", rounds=0, **fields):
    made = coordinator.add(name, files={"spec.yaml": SPEC}, **fields)
    coordinator.happen(name, rounds=rounds)
    made.files["rounds.jsonl"] = "".join(f"{line}\n" for line in made.records).encode()
    return made


class ScriptedPool(ActorPoolServiceServicer, LearnerPoolServiceServicer):
    """Both pools in one: what it answers next, or the error."""

    def __init__(self) -> None:
        self.answer = ListWorkersResponse()
        self.refusal: MarlessError | None = None

    async def ListWorkers(self, request, context):  # noqa: N802
        if self.refusal:
            raise self.refusal
        return self.answer


@pytest_asyncio.fixture
async def pools(coordinator, tmp_path, monkeypatch) -> AsyncIterator[dict[str, ScriptedPool]]:
    monkeypatch.setattr(fleets, "EVERY_S", 0.0)
    monkeypatch.setattr(fleets, "RECORDS_S", 0.0)
    found = {}
    async with AsyncExitStack() as stack:
        for name, add in {
            "actor_pool": add_ActorPoolServiceServicer_to_server,
            "learner_pool": add_LearnerPoolServiceServicer_to_server,
        }.items():
            pool = found[name] = ScriptedPool()

            @asynccontextmanager
            async def build(_address, pool=pool, add=add):
                yield ServedService(lambda server: add(pool, server))

            address = await stack.enter_async_context(
                serving(ServerOptions(f"unix:{tmp_path}/{name}.sock", Security()), build)
            )
            coordinator.servicer.services.append(ServiceInfo(name=name, address=address, serving=True))
        yield found


# Who is served.


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Authorization": ""}, 401),
        ({"Authorization": f"Bearer {TOKEN}x"}, 401),
        ({"Authorization": "Bearer ü".encode().decode("latin-1")}, 401),
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1"}, 421),
        ({"Host": ""}, 421),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
    ],
)
async def test_only_the_own_pages_of_the_own_user_are_answered(pages, coordinator, headers, status):
    job(coordinator)
    async with pages.get("/api/jobs", headers=headers) as answer:
        assert answer.status == status
        assert answer.headers["Content-Security-Policy"] == POLICY and "unsafe" not in POLICY
        assert answer.headers["Cache-Control"] == "no-store" and "Set-Cookie" not in answer.headers
        assert ("jobs" in await answer.json()) == (status == 200)


async def test_another_site_can_change_nothing(pages, coordinator):
    made = job(coordinator)
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Authorization": ""}):
        async with pages.post("/api/jobs/tiny/cancel", json={}, headers=headers) as answer:
            assert answer.status in (401, 403)
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        async with pages.post("/api/jobs/tiny/resume", data="{}", headers={"Content-Type": kind}) as answer:
            assert answer.status == 400  # what a form can send
    assert made.job.state == 2  # running
    origin = str(pages.make_url("/")).rstrip("/")
    async with pages.post("/api/jobs/tiny/cancel", json={}, headers={"Origin": origin}) as answer:
        assert (await answer.json())["state"] == "CANCELLED"


async def test_pages_are_whole_and_small_and_load_nothing_from_elsewhere(pages):
    total = 0
    for path in ("/", "/style.css", "/app.js", "/dom.js", "/api.js", "/jobs.js", "/dialogs.js"):
        async with pages.get(path, headers={"Authorization": ""}) as answer:
            assert answer.status == 200 and answer.headers["Content-Security-Policy"] == POLICY
            text = await answer.text()
            total += len(text)
            assert "http://" not in text.replace("http://www.w3.org/2000/svg", "") and "https://" not in text
    assert total < 150_000


@pytest.mark.parametrize("path", ["/../pyproject.toml", "/%2e%2e/api.py", "/server.py", "/static/app.js", "/api/"])
async def test_nothing_else_is_served(pages, path):
    async with pages.get(path) as answer:
        assert answer.status == 404


# What is shown.


async def test_jobs_are_listed_as_they_change(pages, coordinator):
    job(coordinator, rounds=2)
    async with stream(pages, "/api/events") as events:
        assert [each["rounds"] for each in (await events.next())["jobs"]] == [2]
        coordinator.happen("tiny", rounds=1)
        assert [each["rounds"] for each in (await events.next())["jobs"]] == [3]


async def test_a_jobs_rounds_log_and_state_come_as_they_happen(pages, coordinator):
    job(coordinator, rounds=3)
    assert (await got(pages, "/api/jobs/tiny"))["rounds"] == 3
    async with stream(pages, "/api/jobs/tiny/events") as events:
        assert (await events.next("state"))["job"]["state"] == "RUNNING"
        coordinator.happen("tiny", rounds=1, log=('{"level": "warning", "event": "worker.lost", "round": 3}',))
        [round_] = await events.next("rounds")
        assert round_["rows"][0]["round"] == 3 and round_["rows"][0]["values"]["actors"] == 2
        assert "worker.lost" in (await events.next("log"))[0]
        coordinator.happen("tiny", state="SUCCEEDED", reason="done")
        while (await events.next("state"))["job"]["state"] != "SUCCEEDED":
            pass
    marks = (await got(pages, "/api/jobs/tiny"))["marks"]
    assert {"round": 3, "kind": "fault", "text": "worker.lost"} in marks


async def test_a_stream_goes_on_where_it_broke_off(pages, coordinator):
    job(coordinator, rounds=2)
    async with stream(pages, "/api/jobs/tiny/events") as events:
        coordinator.happen("tiny", rounds=1)
        assert [each["rows"][0]["round"] for each in await events.next("rounds")] == [2]
    coordinator.happen("tiny", rounds=3)
    async with stream(pages, "/api/jobs/tiny/events", last=events.last) as again:
        found = []
        while len(found) < 3:
            found += [each["rows"][0]["round"] for each in await again.next("rounds")]
        assert found == [3, 4, 5]


@pytest.mark.parametrize("last", ["7.0.0", "0.9999.0", "x", "1.2", "-1.0.0", "0.٣.0"])
async def test_a_stream_with_an_id_of_another_job_begins_anew(pages, coordinator, last):
    job(coordinator, rounds=2)
    async with stream(pages, "/api/jobs/tiny/events", last=last.encode().decode("latin-1")) as events:
        await events.next("state")
        coordinator.happen("tiny", rounds=1)
        answer = await events.next("reset", "rounds")
        # Either the page is told to load all anew, or the stream begins where the job was: nothing is skipped.
        assert answer == {} or [each["rows"][0]["round"] for each in answer] == [2]


async def test_who_is_too_far_behind_loads_anew(pages, coordinator, monkeypatch):
    monkeypatch.setattr("marless.app.dashboard.series.RECENT", 512)
    job(coordinator, rounds=600)
    async with stream(pages, "/api/jobs/tiny/events", last="0.5.0") as events:
        assert await events.next("reset") == {}
        coordinator.happen("tiny", rounds=1)
        assert (await events.next("rounds"))[0]["rows"][0]["round"] == 600


async def test_streams_are_bounded(pages, coordinator, monkeypatch):
    job(coordinator)
    monkeypatch.setattr(feeds, "MOST_STREAMS", 1)
    async with stream(pages, "/api/events") as events:
        await events.next()
        assert "close some" in (await got(pages, "/api/jobs/tiny/events", 503))["error"]
    await asyncio.sleep(0)


async def test_a_job_that_replaces_another_is_shown_from_its_beginning(pages, coordinator):
    job(coordinator, rounds=5)
    async with stream(pages, "/api/jobs/tiny/events") as events:
        await events.next("state")
        coordinator.happen("tiny", state="CANCELLED")
        await events.next("state")
        made = job(coordinator, rounds=1)
        made.job.accepted_s = 2e9
        await events.next("reset")
    assert (await got(pages, "/api/jobs/tiny"))["rounds"] == 1


async def test_a_coordinator_that_is_gone_is_told_and_comes_back(pages, coordinator):
    job(coordinator, rounds=2)
    async with stream(pages, "/api/jobs/tiny/events") as events, stream(pages, "/api/events") as listed:
        assert (await events.next("state"))["unreachable"] == ""
        assert (await listed.next())["unreachable"] == ""
        coordinator.kill()
        assert "coordinator" in (await events.next("state"))["unreachable"]
        gone = await listed.next()
        assert "coordinator" in gone["unreachable"] and len(gone["jobs"]) == 1  # what was known stays
        coordinator.start()
        assert (await events.next("state"))["unreachable"] == ""
        assert (await listed.next())["unreachable"] == ""
        coordinator.happen("tiny", rounds=1)
        assert (await events.next("rounds"))[0]["rows"][0]["round"] == 2


async def test_names_of_users_stay_data(pages, coordinator):
    made = job(coordinator, rounds=1, log=[json.dumps({"event": HOSTILE, "x": "a\n\ndata: {}"})])
    made.records = [record(0, metrics={HOSTILE: {HOSTILE: 1.0}}).to_json()]
    made.files["rounds.jsonl"] = f"{made.records[0]}\n".encode()
    made.job.reason = HOSTILE
    found = await got(pages, "/api/jobs/tiny")
    assert found["job"]["reason"] == HOSTILE and f"metric/{HOSTILE}" in found["columns"]
    assert (await got(pages, "/api/jobs/tiny/series", params={"name": f"metric/{HOSTILE}"}))["columns"]
    async with stream(pages, "/api/jobs/tiny/events") as events:
        [line] = await events.next("log")
        assert json.loads(line)["x"] == "a\n\ndata: {}"  # no line feed of it ended the event
    async with pages.get("/api/jobs/tiny/file", params={"path": "spec.yaml"}) as answer:
        assert answer.headers["Content-Disposition"].startswith("attachment")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_jobs_are_submitted_cancelled_and_resumed(pages, coordinator):
    async with pages.post("/api/jobs", json={"text": SPEC.decode(), "job": "mine"}) as answer:
        assert (await answer.json())["job"] == "mine"
    async with pages.post("/api/jobs/mine/cancel", json={}) as answer:
        assert (await answer.json())["state"] == "CANCELLED"
    async with pages.post("/api/jobs/mine/resume", json={"stop": {"rounds": 9}}) as answer:
        assert (await answer.json())["state"] == "RUNNING"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no mapping"),
        ("a: [", "job file"),
        ("env: {name: mpe/simple_spread}\nalgorithm: ippo\nstop: {steps: 1}", "stop"),
        (SPEC.decode() + "bill: {prices: /etc/passwd}", "names a file"),
        (SPEC.decode() + "start: {checkpoint: /root}", "names a file"),
    ],
)
async def test_a_job_file_that_is_wrong_or_names_files_is_refused(pages, coordinator, text, said):
    async with pages.post("/api/jobs", json={"text": text}) as answer:
        assert answer.status == 400 and said in (await answer.json())["error"]
    assert not coordinator.servicer.jobs


async def test_errors_of_the_coordinator_are_sentences(pages, coordinator):
    coordinator.refuse(*[OverloadedError("too many jobs wait", retry_after_s=9.0)] * 9)
    async with pages.post("/api/jobs", json={"text": SPEC.decode()}) as answer:
        assert answer.status == 503 and (await answer.json())["error"] == "too many jobs wait"
    coordinator.servicer.refusals.clear()
    assert "there is no job 'no'" in (await got(pages, "/api/jobs/no", 404))["error"]
    job(coordinator, rounds=1)
    assert "is no number" in (await got(pages, "/api/jobs/tiny/series?low=nan", 400))["error"]
    assert "not recorded" in (await got(pages, "/api/jobs/tiny/rounds/9", 404))["error"]
    assert "whole number" in (await got(pages, "/api/jobs/tiny/rounds/x", 400))["error"]


async def test_decisions_invocations_and_bills_are_shown(pages, coordinator):
    job(coordinator, rounds=3)
    found = await got(pages, "/api/jobs/tiny/rounds/1")
    assert found["decisions"][0]["inputs"] == {"ratio": {"p": [1.0]}}
    line = await got(pages, "/api/jobs/tiny/timeline?first=1&count=9")
    assert [each["round"] for each in line["rounds"]] == [1, 2]
    assert line["bars"][0]["worker"] == "actor-1" and line["bars"][0]["start"] == pytest.approx(0.1)
    async with asyncio.timeout(10):
        while (bills := await got(pages, "/api/jobs/tiny/bills"))["priced"] < 3 and not bills["problem"]:
            pass
    assert bills["budget_usd"] == 1.5 and bills["totals"]["cost/billed"] > 0, bills
    costs = await got(pages, "/api/jobs/tiny/series?name=cost/billed&x=usd")
    assert costs["x"] == costs["columns"]["cost/billed"] and len(costs["x"]) == 3


async def test_both_pools_show_their_workers_capacity_and_drains(pages, coordinator, pools):
    job(coordinator, rounds=2)
    machine = MachineInfo(machine=Machine(id="i-1", type="c6a.large", vcpus=2.0, usd_h=0.25), workers=2, tasks=1)
    workers = [
        WorkerInfo(worker="actor-7", host="h", machine="i-1", busy=True, job="tiny", memory_bytes=7 * 2**20),
        WorkerInfo(worker="actor-8", host="h", machine="i-1", drain="its machine ends: spot"),
    ]
    pools["actor_pool"].answer = ListWorkersResponse(
        workers=workers, queued=3, launcher="ec2", limit=9, starting=1, room=4, machines=[machine], refused="full",
        background=WorkerInfo(worker="background-0", host="h"),
    )  # fmt: skip
    pools["learner_pool"].answer = ListWorkersResponse(
        workers=[WorkerInfo(worker="learner-0", host="g", device="cuda:0")], launcher="local", limit=1
    )
    found = await got(pages, "/api/fleet")
    assert found["problems"] == []
    actor, learner = found["pools"]
    assert actor == {
        "name": "actor_pool", "launcher": "ec2", "workers": 2, "busy": 1, "draining": 1, "starting": 1, "limit": 9,
        "room": 4, "queued": 3, "refused": "full",
    }  # fmt: skip
    assert (learner["workers"], learner["room"], learner["launcher"]) == (1, None, "local")
    shown = {each["worker"]: each for each in found["workers"]}
    # Not those of the records: a pool that answers has the workers that it lists.
    assert set(shown) == {"actor-7", "actor-8", "background-0", "learner-0"}
    assert shown["actor-7"]["jobs"] == ["tiny"] and shown["actor-7"]["memory_bytes"] == 7 * 2**20
    assert shown["actor-8"]["drain"] == "its machine ends: spot" and shown["background-0"]["background"]
    assert shown["learner-0"]["device"] == "cuda:0"
    [live] = [each for each in found["machines"] if each["id"] == "i-1" and each["pool"] == "actor"]
    assert (live["workers"], live["tasks"], live["draining"], live["usd_h"]) == (2, 1, False, 0.25)
    workers[0].drain = workers[1].drain
    pools["actor_pool"].answer = ListWorkersResponse(workers=workers, machines=[machine])
    assert [each for each in (await got(pages, "/api/fleet"))["machines"] if each.get("draining")]


async def test_a_pool_that_does_not_answer_is_named_and_its_workers_are_those_of_records(pages, coordinator, pools):
    job(coordinator, rounds=2)
    pools["actor_pool"].refusal = PermissionDeniedError("it takes a token of role operator")
    pools["learner_pool"].answer = ListWorkersResponse(workers=[WorkerInfo(worker="learner-0")])
    found = await got(pages, "/api/fleet")
    [problem] = found["problems"]
    assert "the actor pool does not list its workers" in problem and "role operator" in problem
    assert [each["name"] for each in found["pools"]] == ["learner_pool"]
    assert {each["pool"] for each in found["workers"]} == {"actor", "learner"}
    pools["actor_pool"].refusal = None
    assert {each["pool"] for each in (await got(pages, "/api/fleet"))["workers"]} == {"learner"}


async def test_seeds_are_compared(pages, coordinator):
    for seed in range(4):
        made = job(coordinator, f"tiny-seed{seed}", rounds=6)
        made.files["spec.yaml"] = SPEC + f"seed: {seed}\n".encode()
    names = [("job", f"tiny-seed{seed}") for seed in range(4)]
    found = await got(pages, "/api/compare", params=[*names, ("job", "nobody")])
    [group] = found["groups"]
    assert len(group["courses"]) == 4 and group["final"]["mean"] == pytest.approx(-20.5)
    assert any("nobody" in each for each in found["problems"])
    assert "unknown axis" in (await got(pages, "/api/compare?x=time", 400))["error"]


# Run folders.


@pytest.fixture
def runs(tmp_path):
    folder = tmp_path / "runs"
    for name, rounds in (("good", 4), ("torn", 4)):
        (folder / name).mkdir(parents=True)
        status = {"job": name, "state": "SUCCEEDED", "env": "e", "algorithm": "a", "accepted_s": 1.0, "ended_s": 2.0}
        (folder / name / "job.json").write_text(json.dumps(status))
        (folder / name / "spec.yaml").write_bytes(SPEC)
        (folder / name / "rounds.jsonl").write_text("".join(record(n).to_json() + "\n" for n in range(rounds)))
    return folder


@pytest_asyncio.fixture
async def folder_pages(runs) -> AsyncIterator[TestClient]:
    async with pages_of(_folder_source(runs)) as client:
        yield client


async def test_a_folder_of_runs_is_shown_without_services(folder_pages, runs):
    (runs / "damaged").mkdir()
    (runs / "damaged" / "job.json").write_text("{")
    (runs / "foreign").mkdir()
    found = await got(folder_pages, "/api/jobs")
    assert {each["job"] for each in found["jobs"]} == {"good", "torn"}
    assert len(found["problems"]) == 1 and "damaged" in found["problems"][0]
    assert (await got(folder_pages, "/api/jobs/good"))["rounds"] == 4
    async with folder_pages.post("/api/jobs/good/cancel", json={}) as answer:
        assert answer.status == 409 and "changes nothing" in (await answer.json())["error"]
    assert (await got(folder_pages, "/api/fleet"))["workers"][0]["worker"] == "actor-1"


@pytest.mark.parametrize("damage", [b'{"job": "x"}\n', b"\x00\xff\n", b"[]\n"])
async def test_a_torn_file_is_named_and_the_rounds_before_it_are_shown(folder_pages, runs, damage):
    lines = (runs / "torn" / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    (runs / "torn" / "rounds.jsonl").write_bytes(b"".join(lines[:2]) + damage + lines[3])
    found = await got(folder_pages, "/api/jobs/torn")
    assert found["rounds"] == 2 and "rounds.jsonl of job torn, line 3" in found["problem"]
    assert (await got(folder_pages, "/api/jobs/good"))["problem"] == ""


@pytest.mark.parametrize("name", ["{braces}", "<img src=x>", "a%2Fb", "q?x=1#y", "new\nline", "__proto__", "'\"`${1}"])
async def test_folders_may_have_any_name(folder_pages, runs, name):
    shutil.copytree(runs / "good", runs / name)
    assert name in {each["job"] for each in (await got(folder_pages, "/api/jobs"))["jobs"]}
    path = f"/api/jobs/{quote(name, safe='')}"
    assert (await got(folder_pages, URL(path, encoded=True)))["rounds"] == 4
    assert (await got(folder_pages, URL(f"{path}/series?name=actors", encoded=True)))["total"] == 4
    async with stream(folder_pages, URL(f"{path}/events", encoded=True)) as events:
        await events.next("state")


async def test_an_unfinished_last_line_is_no_damage(folder_pages, runs):
    path = runs / "torn" / "rounds.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    found = await got(folder_pages, "/api/jobs/torn")
    assert (found["rounds"], found["problem"]) == (3, "")


async def test_a_folder_that_disappears_is_told(folder_pages, runs):
    assert (await got(folder_pages, "/api/jobs/good"))["problem"] == ""
    async with stream(folder_pages, "/api/jobs/good/events") as events:
        await events.next("state")
        shutil.rmtree(runs / "good")
        assert "good" in (await events.next("state"))["problem"]


@pytest.mark.parametrize("path", ["../torn/spec.yaml", "/etc/passwd", "link", "owner.lock", "x.partial", ""])
async def test_no_file_outside_a_run_folder_is_sent(folder_pages, runs, path):
    (runs / "good" / "link").symlink_to("/etc/passwd")
    (runs / "good" / "owner.lock").touch()
    (runs / "good" / "x.partial").touch()
    assert "no file" in (await got(folder_pages, "/api/jobs/good/file", 404, params={"path": path}))["error"]
    assert [each["path"] for each in (await got(folder_pages, "/api/jobs/good/files"))["files"]] == [
        "job.json",
        "rounds.jsonl",
        "spec.yaml",
    ]


@pytest.mark.parametrize("name", ["..", ".", "%2e%2e", "good%2f..%2ftorn", "no"])
async def test_no_job_outside_the_folder_is_read(folder_pages, name):
    async with folder_pages.get(f"/api/jobs/{name}/series") as answer:
        assert answer.status == 404
