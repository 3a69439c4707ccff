"""The client against a coordinator on real gRPC: what it asks for, and that no restart and no cut is noticed."""

import asyncio
import gc
import json
import random
import signal
import socket
import subprocess
import sys
from dataclasses import replace

import pytest

from marless.app.client import AsyncClient, Client, Event
from marless.app.client.transfers import Arriving
from marless.core.errors import (
    AlreadyExistsError,
    CorruptError,
    JobStateError,
    NotFoundError,
    OverloadedError,
    PermissionDeniedError,
    SpecError,
    UnauthenticatedError,
    UnavailableError,
    UnreachableError,
)
from marless.rpc import chunks
from marless.rpc.roles import Role
from marless.rpc.security import Security
from marless.rpc.v1 import coordinator_pb2 as pb
from tests import tokens
from tests.faults.proxy import Behaviour, Proxy, cutting, disturb, resetting
from tests.scripted_coordinator import ScriptedCoordinator

SPEC = {"name": "tiny", "env": {"name": "mpe/simple_spread"}, "algorithm": "ippo", "stop": {"rounds": 3}}
ROUNDS = 40


@pytest.fixture
def coordinator(tmp_path):
    with ScriptedCoordinator(tmp_path) as running:
        yield running


@pytest.fixture
def client(coordinator):
    with Client(coordinator.address) as opened:
        yield opened


def rounds(events: list[Event]) -> list[int]:
    return [event.record.round for event in events if event.record]


def states(events: list[Event]) -> list[str]:
    return [event.job.state for event in events if event.job]


def test_a_job_is_submitted_under_its_name_and_the_time(client, coordinator):
    job = client.submit(SPEC)
    assert job.job.startswith("tiny-20") and job.state == "RUNNING" and not job.state.ended
    [request] = coordinator.asked(pb.SubmitJobRequest)
    assert request.request_id and json.loads(request.spec_json)["stop"]["rounds"] == 3


def test_jobs_of_one_second_are_told_apart(client, monkeypatch):
    monkeypatch.setattr("time.strftime", lambda _: "20270101-000000")
    assert [client.submit(SPEC).job for _ in range(3)] == [f"tiny-20270101-000000{end}" for end in ("", "-2", "-3")]


def test_an_id_of_ones_own_is_taken_once(client):
    client.submit(SPEC, job="mine", request_id="r")
    assert client.submit(SPEC, job="mine", request_id="r").job == "mine"
    with pytest.raises(AlreadyExistsError, match="'mine' exists"):
        client.submit(SPEC, job="mine")
    with pytest.raises(SpecError, match="needs a job id"):
        client.submit(SPEC, if_exists="replace")


@pytest.mark.parametrize(("wish", "sent"), [("fail", 1), ("use", 2), ("replace", 3)])
def test_what_to_do_with_a_taken_id_is_passed_on(client, coordinator, wish, sent):
    client.submit(SPEC, job="mine", if_exists=wish)
    assert coordinator.asked(pb.SubmitJobRequest)[0].if_exists == sent


def test_a_spec_that_cannot_work_is_refused_here_or_there_with_its_file(client, coordinator, tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(SPEC | {"seed": -1}))
    with pytest.raises(SpecError, match=rf"^{file}: seed: got -1; allowed: at least 0$"):
        client.submit(file)
    assert not coordinator.servicer.asked
    coordinator.refuse(SpecError("spec: env: unknown option\nspec: stop: too far"))
    with pytest.raises(SpecError) as refused:
        client.submit(file, overrides=["seed=1"])
    assert str(refused.value) == f"{file}: env: unknown option\n{file}: stop: too far"


def test_jobs_are_listed_over_all_pages_and_by_state(client, coordinator):
    for number, state in enumerate(["RUNNING", "FAILED", "RUNNING", "CANCELLED", "RUNNING"]):
        coordinator.add(f"job-{number}", state)
    assert [job.job for job in client.list()] == [f"job-{number}" for number in range(5)]
    assert [job.job for job in client.list(states=["RUNNING"])] == ["job-0", "job-2", "job-4"]


def test_what_is_unset_is_none(client, coordinator):
    made = coordinator.add("a").job
    job = client.get("a")
    assert (job.greedy_return, job.random_return, job.ended_s, job.summary) == (None, None, None, None)
    made.greedy_return, made.ended_s, made.summary_json = 0.0, 2e9, '{"rounds": 3}'
    job = client.get("a")
    assert (job.greedy_return, job.random_return, job.ended_s, job.summary) == (0.0, None, 2e9, {"rounds": 3})


def test_cancel_resume_delete(client, coordinator):
    coordinator.add("a")
    with pytest.raises(JobStateError, match="has not ended"):
        client.delete("a")
    assert client.cancel("a").state == "CANCELLED"
    assert client.resume("a", stop={"rounds": 9}).resumes == 1
    assert json.loads(coordinator.asked(pb.ResumeJobRequest)[0].stop_json) == {"rounds": 9}
    client.cancel("a")
    client.delete("a")
    with pytest.raises(NotFoundError, match="no job 'a'"):
        client.delete("a")


def test_a_deletion_whose_answer_was_lost_has_succeeded(client, coordinator):
    coordinator.add("a", "FAILED")
    inner, lost = coordinator.servicer.DeleteJob, [UnreachableError("lost")]

    async def delete(request, context):
        answer = await inner(request, context)
        if lost:
            raise lost.pop()
        return answer

    coordinator.replace("DeleteJob", delete)
    client.delete("a")
    assert len(coordinator.asked(pb.DeleteJobRequest)) == 2


def test_a_submission_outlives_a_restart_and_happens_once(coordinator):
    async def run() -> None:
        coordinator.kill()
        async with AsyncClient(coordinator.address) as client:
            submitting = asyncio.create_task(client.submit(SPEC, job="mine"))
            await asyncio.sleep(0.1)
            assert not submitting.done()
            coordinator.refuse(UnreachableError("the answer is lost"))
            await asyncio.to_thread(coordinator.start)
            assert (await submitting).job == "mine"
        first, second = coordinator.asked(pb.SubmitJobRequest)
        assert first.request_id == second.request_id

    asyncio.run(run())


def test_a_watcher_notices_neither_a_restart_nor_the_silence(coordinator):
    async def run() -> list[Event]:
        events: list[Event] = []
        coordinator.add("a")
        async with AsyncClient(coordinator.address) as client:
            async for event in client.watch("a"):
                events.append(event)
                match event.record and event.record.round, event.job and event.job.state:
                    case None, "RUNNING":
                        coordinator.happen("a", rounds=3)
                    case 2, None:
                        await asyncio.to_thread(coordinator.kill)
                        await asyncio.to_thread(coordinator.start)
                        coordinator.happen("a", rounds=2)
                    case 4, None:
                        await asyncio.to_thread(coordinator.kill)
                        await asyncio.to_thread(coordinator.start)
                        coordinator.happen("a", rounds=1, state="SUCCEEDED", reason="done")
        return events

    events = asyncio.run(run())
    assert rounds(events) == [0, 1, 2, 3, 4, 5]
    assert states(events) == ["RUNNING", "SUCCEEDED"]
    assert len(coordinator.asked(pb.WatchJobRequest)) == 3


@pytest.mark.parametrize("seed", range(4))
def test_streams_cut_at_random_bring_everything_once(coordinator, seed):
    lines = [json.dumps({"event": f"line {number}", "level": "info"}) for number in range(3 * ROUNDS)]

    async def run() -> tuple[list[Event], list[str]]:
        rng = random.Random(seed)
        coordinator.add("a")
        shown = asyncio.Event()  # a watcher whose streams are all cut until the job has ended never sees it run
        async with Proxy(coordinator.address) as proxy, AsyncClient(proxy.address) as client:
            disturbing = asyncio.create_task(disturb(proxy, rng, every_s=0.02, how=(resetting, cutting)))

            async def live() -> None:
                for number in range(ROUNDS):
                    await asyncio.sleep(rng.uniform(0.0, 0.02))
                    coordinator.happen("a", rounds=1, log=tuple(lines[3 * number : 3 * number + 3]))
                async with asyncio.timeout(30.0):
                    while proxy.resets < 3:  # noqa: ASYNC110  # a proxy tells nobody
                        await asyncio.sleep(0.01)
                    await shown.wait()
                coordinator.happen("a", state="SUCCEEDED")
                await asyncio.sleep(0.3)
                disturbing.cancel()
                await proxy.behave(Behaviour())

            async def watch() -> list[Event]:
                events = []
                async for event in client.watch("a"):
                    events.append(event)
                    if event.job:
                        shown.set()
                return events

            async with asyncio.TaskGroup() as group:
                group.create_task(live())
                watching = group.create_task(watch())
                reading = group.create_task(collect(client.logs("a", follow=True)))
            return watching.result(), [line.text for line in reading.result()]

    events, logged = asyncio.run(run())
    assert rounds(events) == list(range(ROUNDS))
    assert states(events) == ["RUNNING", "SUCCEEDED"]
    assert logged == lines


async def collect(items):
    return [item async for item in items]


def test_a_watcher_may_begin_in_the_middle_and_stop_early(client, coordinator):
    coordinator.add("a")
    coordinator.happen("a", rounds=5)
    watching = client.watch("a", cursor=3)
    assert next(watching).record.round == 3
    watching.close()
    coordinator.happen("a", state="FAILED", reason="out of luck")
    events = list(client.watch("a", cursor=4))
    assert (rounds(events), states(events)) == ([4], ["FAILED"])


def test_a_coordinator_that_stops_in_order_sends_watchers_to_the_next(client, coordinator):
    coordinator.add("a")
    coordinator.happen("a", rounds=1)
    watching = client.watch("a")
    assert next(watching).record.round == 0
    coordinator.refuse(UnavailableError("the coordinator is stopping"), UnavailableError("the coordinator is stopping"))
    coordinator.kill()
    coordinator.start()
    coordinator.happen("a", rounds=1, state="SUCCEEDED")
    assert rounds(list(watching)) == [1]
    assert not coordinator.servicer.refusals


def test_rounds_that_are_repeated_after_a_recovery_are_told_once(client, coordinator):
    """A coordinator that went back to a checkpoint streams rounds again that a watcher has seen."""
    coordinator.add("a")
    inner = coordinator.servicer.WatchJob

    async def goes_back(request, context):
        request.cursor = max(request.cursor - 2, 0)
        async for event in inner(request, context):
            yield event

    coordinator.replace("WatchJob", goes_back)
    coordinator.happen("a", rounds=4)
    events, watching = [], client.watch("a")
    while rounds(events) != [0, 1, 2, 3]:
        events.append(next(watching))
    coordinator.kill()
    coordinator.start()
    coordinator.happen("a", rounds=1, state="SUCCEEDED")
    assert rounds(events + list(watching)) == [0, 1, 2, 3, 4]


def test_logs_begin_near_their_end_and_end_with_the_job(client, coordinator):
    coordinator.add("a", log=[f'{{"event": "{number}"}}' for number in range(9)])
    assert [line.fields["event"] for line in client.logs("a", tail=2)] == ["7", "8"]
    assert [line.cursor for line in client.logs("a", cursor=6)] == [7, 8, 9]
    following = client.logs("a", follow=True, tail=1)
    assert next(following).fields == {"event": "8"}
    coordinator.happen("a", log=('{"event": "last"}',), state="SUCCEEDED")
    assert [line.fields["event"] for line in following] == ["last"]


def test_a_tail_that_is_followed_misses_nothing_of_what_comes_while_it_is_cut(client, coordinator):
    coordinator.add("a", log=['{"event": "0"}', '{"event": "1"}'])
    following = client.logs("a", follow=True, tail=1)
    assert next(following).fields["event"] == "1"
    coordinator.kill()
    coordinator.happen("a", log=tuple(f'{{"event": "{number}"}}' for number in (2, 3, 4)), state="SUCCEEDED")
    coordinator.start()
    assert [line.fields["event"] for line in following] == ["2", "3", "4"]


def test_a_log_that_is_followed_is_whole_though_the_coordinator_stops_in_order(client, coordinator):
    """An orderly stop ends streams as a job's end does; what is logged after the restart must not be missed."""
    made = coordinator.add("a", log=['{"event": "1"}'])
    inner = coordinator.servicer.StreamLogs

    async def stops_once(request, context):
        if request.cursor:
            async for line in inner(request, context):
                yield line
            return
        yield pb.LogLine(cursor=1, json=made.log[0])
        made.log.append('{"event": "2"}')
        made.job.state = pb.JOB_STATE_SUCCEEDED

    coordinator.replace("StreamLogs", stops_once)
    assert [line.cursor for line in client.logs("a", follow=True)] == [1, 2]


def test_waiting_ends_with_the_job_or_with_patience(client, coordinator):
    coordinator.add("a")
    assert client.wait("a", timeout_s=0.1).state == "RUNNING"
    coordinator.happen("a", rounds=2, state="FAILED", reason="out of luck")
    assert client.wait("a").reason == "out of luck"


def test_a_run_folder_is_fetched_file_by_file(client, coordinator, tmp_path):
    big = random.Random(0).randbytes(3 * 2**20)
    made = coordinator.add("a", files={"job.json": b"{}", "checkpoints/round-1/manifest.json": b"m", "big": big})
    assert {file.path: file.bytes for file in client.files("a")} == {p: len(d) for p, d in made.files.items()}
    assert client.read("a", "job.json") == b"{}"
    to = tmp_path / "here"
    assert [file.path for file in client.download("a", to)] == ["big", "job.json", "checkpoints/round-1/manifest.json"]
    assert {str(path.relative_to(to)) for path in to.rglob("*") if path.is_file()} == set(made.files)
    assert (to / "big").read_bytes() == big
    made.files["job.json"] = b"[]"  # of equal size, but another
    assert "big" not in [file.path for file in client.download("a", to)]
    assert (to / "job.json").read_bytes() == b"[]"
    made.files["big"] += b"more"
    client.download("a", to)
    assert (to / "big").read_bytes() == big + b"more"


def test_two_shells_may_fetch_the_same_job_at_once(coordinator, tmp_path):
    coordinator.add("a", files={"big": bytes(range(256)) * 8192, "job.json": b"{}"})
    script = "import sys; from marless.app.client import Client; Client(sys.argv[1]).download('a', sys.argv[2])"
    command = [sys.executable, "-c", script, coordinator.address, str(tmp_path / "here")]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(2)]
    for each in both:
        assert (each.communicate(timeout=20)[1], each.returncode) == (b"", 0)
    assert {path.name: path.read_bytes() for path in (tmp_path / "here").iterdir()} == {
        "big": bytes(range(256)) * 8192, "job.json": b"{}",
    }  # fmt: skip


def test_a_file_that_two_fetch_at_once_is_whole_and_leaves_nothing(tmp_path):
    target = tmp_path / "big"
    (tmp_path / ".big.999999999-0.partial").write_bytes(b"of one that was killed")
    with Arriving(target) as one:
        one.take(memoryview(b"first "))
        with Arriving(target) as two:
            two.take(memoryview(b"first second"))
            two.keep()
        assert target.read_bytes() == b"first second"
        one.take(memoryview(b"second"))
        one.keep()
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("big", b"first second")]


def test_a_download_cut_at_random_leaves_whole_files_only(coordinator, tmp_path):
    contents = {f"f{number}": random.Random(number).randbytes(200_000) for number in range(8)}
    coordinator.add("a", files=contents)

    async def run() -> int:
        async with Proxy(coordinator.address) as proxy, AsyncClient(proxy.address) as client:
            await proxy.behave(Behaviour(cut_after_bytes=450_000))
            await client.download("a", tmp_path / "here")
            return proxy.resets

    assert asyncio.run(run()) >= 2
    assert {path.name: path.read_bytes() for path in (tmp_path / "here").iterdir()} == contents


def test_a_file_that_ends_early_is_fetched_again(client, coordinator, tmp_path):
    coordinator.add("a", files={"job.json": b"whole"})
    short = [b"who"]

    async def read_file(request, context):
        for frame in chunks.frames(pb.FileInfo(path=request.path, bytes=5), [short.pop() if short else b"whole"]):
            yield frame

    coordinator.replace("read_file", read_file)
    client.download("a", tmp_path)
    assert not short and (tmp_path / "job.json").read_bytes() == b"whole"


def test_a_file_that_goes_meanwhile_is_left_out_and_one_that_leads_astray_refused(client, coordinator, tmp_path):
    made = coordinator.add("a", files={"old": b"1", "job.json": b"2"})
    listed = coordinator.servicer.ListFiles

    async def then_gone(request, context):
        answer = await listed(request, context)
        made.files.pop("old", None)
        return answer

    coordinator.replace("ListFiles", then_gone)
    assert [file.path for file in client.download("a", tmp_path)] == ["job.json"]
    for path in ("../astray", "/astray", "a/../../astray"):
        made.files = {path: b"x"}
        with pytest.raises(CorruptError, match="astray"):
            client.download("a", tmp_path)


def test_a_directory_that_takes_no_files_is_named(client, coordinator, tmp_path):
    coordinator.add("a", files={"job.json": b"{}"})
    (tmp_path / "file").write_text("")
    with pytest.raises(UnavailableError, match=r"file/job.json: cannot be written"):
        client.download("a", tmp_path / "file")


def test_nobody_there_is_one_sentence_that_says_what_to_do(tmp_path, monkeypatch):
    address = f"unix:{tmp_path}/none.sock"
    with Client(address, contact_s=0.1) as client, pytest.raises(UnreachableError) as refused:
        client.list()
    assert (
        str(refused.value)
        == f"no coordinator at {address}: start one with `marless up`, or name yours with --coordinator"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnavailableError, match=r"stack.json is not there; start one with `marless up`"):
        Client()


def test_what_takes_connections_and_does_not_answer_is_said_to_be_stopped(tmp_path):
    with socket.socket(socket.AF_UNIX) as stopped:
        stopped.bind(f"{tmp_path}/stopped.sock")
        stopped.listen()
        with (
            Client(f"unix:{tmp_path}/stopped.sock", contact_s=0.1) as client,
            pytest.raises(UnreachableError, match="takes connections and does not answer: its process is stopped"),
        ):
            client.list()


def test_a_coordinator_that_was_there_is_said_to_be_gone(coordinator):
    with Client(coordinator.address, patience_s=0.2) as client:
        client.list()
        coordinator.kill()
        with pytest.raises(UnreachableError, match="has not answered for"):
            client.list()


def test_where_the_coordinator_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/.stack").mkdir(parents=True)
    (tmp_path / "runs/.stack/stack.json").write_text('{"pid": 1, "coordinator": "unix:/left", "version": "1"}')
    assert AsyncClient().address == "unix:/left"
    monkeypatch.setenv("MARLESS_COORDINATOR", "unix:/named")
    assert AsyncClient().address == "unix:/named"
    assert AsyncClient("unix:/given").address == "unix:/given"


def test_a_token_is_needed_where_there_is_one(tmp_path, monkeypatch):
    with ScriptedCoordinator(tmp_path, Security(tokens=tokens.made(tmp_path / "tokens"))) as coordinator:
        with Client(coordinator.address) as client, pytest.raises(UnauthenticatedError) as refused:
            client.list()
        assert str(refused.value).startswith(f"{coordinator.address}: the token is missing or wrong")
        monkeypatch.setenv("MARLESS_TOKENS", str(tmp_path / "tokens"))
        with Client(coordinator.address) as client:
            assert client.list() == ()
        monkeypatch.setenv("MARLESS_TOKEN", tokens.token_of(Role.OPERATOR))
        with Client(coordinator.address) as client:
            assert client.list() == ()
        monkeypatch.setenv("MARLESS_TOKEN", tokens.token_of(Role.ACTOR))
        with Client(coordinator.address) as client, pytest.raises(PermissionDeniedError):
            client.list()


@pytest.mark.parametrize("token", ["two\nlines", "naïve", "a\0b"])
def test_a_token_that_cannot_be_sent_is_one_sentence_without_it(tmp_path, token):
    with pytest.raises(SpecError, match="a character that is not allowed") as refused:
        Client(f"unix:{tmp_path}/x.sock", token=token)
    assert token not in str(refused.value)


def test_over_tls_the_authority_is_checked(tmp_path, tls):
    held, secret = tokens.made(tmp_path / "tokens"), tokens.token_of(Role.CLIENT)
    security = Security(tls_cert=tls["server.pem"], tls_key=tls["server.key"], tokens=held)
    with ScriptedCoordinator(tmp_path, security) as coordinator:
        with Client(coordinator.address, token=secret, tls_ca=tls["ca.pem"]) as client:
            assert client.list() == ()
        for authority, said in (
            (tls["stranger.pem"], f"coordinator at {coordinator.address}: its TLS certificate is not of the authority"),
            ("", f"no coordinator at {coordinator.address}"),
        ):
            stranger = Client(coordinator.address, token=secret, tls_ca=authority, contact_s=0.1)
            with stranger, pytest.raises(UnreachableError, match=said):
                stranger.list()
        assert len(coordinator.servicer.asked) == 1
    with ScriptedCoordinator(tmp_path, replace(security, tls_client_ca=tls["ca.pem"], mutual=True)) as coordinator:
        stranger = Client(coordinator.address, token=secret, tls_ca=tls["ca.pem"], contact_s=0.1)
        with stranger, pytest.raises(UnreachableError):
            stranger.list()
        own = {"tls_cert": tls["worker.pem"], "tls_key": tls["worker.key"]}
        with Client(coordinator.address, token=secret, tls_ca=tls["ca.pem"], **own) as client:
            assert client.list() == ()
    with pytest.raises(SpecError, match="set --tls-ca"), Client("example.org:443") as client:
        client.list()


def test_a_refusal_is_repeated_after_the_time_it_names_if_that_is_soon(client, coordinator):
    coordinator.refuse(OverloadedError("no room", retry_after_s=0.01))
    assert client.submit(SPEC).state == "RUNNING"
    assert len(coordinator.servicer.asked) == 2
    coordinator.refuse(OverloadedError("too many jobs wait", retry_after_s=60))
    with pytest.raises(OverloadedError):
        client.submit(SPEC)
    assert len(coordinator.servicer.asked) == 3


def test_a_full_disk_is_given_a_moment_and_then_named(coordinator):
    coordinator.refuse(*[UnavailableError("no space left")] * 2)
    with Client(coordinator.address) as client:
        assert client.submit(SPEC).state == "RUNNING"
    coordinator.refuse(*[UnavailableError("no space left")] * 99)
    with (
        Client(coordinator.address, contact_s=0.1) as client,
        pytest.raises(UnavailableError, match=r"^no space left$"),
    ):
        client.submit(SPEC)


def test_what_the_coordinator_says_of_itself(client):
    info = client.info()
    assert (info.version, info.runs, info.services[0].name, info.services[0].serving) == (
        "1.2", "/runs", "param_store", True,
    )  # fmt: skip


def test_the_client_loads_neither_torch_nor_redis_nor_services_nor_pydantic():
    done = subprocess.run(
        [sys.executable, "-c", "import marless.app.client, sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(done.stdout.split())
    assert "marless.app.client" in loaded
    assert not loaded & {"torch", "redis", "marless.services", "pydantic", "typer", "rich", "structlog"}


# In a notebook: an event loop runs where the blocking client is used.


def test_the_blocking_client_works_where_an_event_loop_runs(coordinator):
    async def cell() -> tuple[str, list[int], str]:
        with Client(coordinator.address) as client:
            job = client.submit(SPEC, job="mine").job
            coordinator.happen("mine", rounds=2, state="SUCCEEDED")
            return job, rounds(list(client.watch("mine"))), client.get("mine").state

    assert asyncio.run(cell()) == ("mine", [0, 1], "SUCCEEDED")


def test_a_client_goes_from_a_script_into_a_loop_and_back(client, coordinator):
    coordinator.add("a")
    coordinator.happen("a", rounds=3)
    events = client.watch("a")
    first = next(events)

    async def cell() -> Event:
        assert client.get("a").rounds == 3
        return next(events)

    second = asyncio.run(cell())
    assert rounds([first, second, next(events)]) == [0, 1, 2]
    events.close()
    assert client.get("a").job == "a"


def test_an_interrupt_in_a_notebook_ends_the_wait_and_not_the_client(coordinator):
    coordinator.add("a")
    script = (
        "import asyncio, signal, sys, threading\n"
        "from marless.app.client import Client\n"
        "async def cell():\n"
        "    client = Client(sys.argv[1])\n"
        "    me = threading.main_thread().ident\n"
        "    threading.Timer(0.3, signal.pthread_kill, [me, signal.SIGINT]).start()\n"
        "    try:\n"
        "        client.wait('a')\n"
        "    except KeyboardInterrupt:\n"
        "        print(client.get('a').state)\n"
        "    client.close()\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "loop = asyncio.new_event_loop()\n"
        "loop.run_until_complete(cell())\n"
    )
    command = [sys.executable, "-c", script, coordinator.address]
    done = subprocess.run(command, capture_output=True, timeout=20, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"RUNNING\n", b"")


def test_a_state_and_a_choice_that_are_none_are_refused(client, coordinator):
    with pytest.raises(SpecError, match="did you mean 'RUNNING'"):
        client.list(states=["RUNING"])
    with pytest.raises(SpecError, match="if_exists: unknown choice 'perhaps'"):
        client.submit(SPEC, job="a", if_exists="perhaps")
    assert not coordinator.servicer.asked


def test_a_list_stops_at_its_limit_and_takes_states_in_small_letters(client, coordinator):
    for number in range(5):
        coordinator.add(f"job-{number}")
    assert [job.job for job in client.list(limit=2)] == ["job-0", "job-1"]
    assert len(coordinator.asked(pb.ListJobsRequest)) == 1
    assert len(client.list(states="running")) == 5


def test_wins_come_along_where_there_are_any(client, coordinator):
    coordinator.add("a").job.win_rate = 0.0
    coordinator.add("b")
    assert (client.get("a").win_rate, client.get("b").win_rate, client.get("b").random_win_rate) == (0.0, None, None)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_interrupt_beside_the_making_of_a_calls_task_is_followed_by_no_warning(client, monkeypatch, caplog, moment):
    loop = client._runner.get_loop()
    real = loop.create_task

    def create_task(*given, **options):
        if moment == "before":
            signal.raise_signal(signal.SIGINT)
        task = real(*given, **options)
        if moment == "after":
            signal.raise_signal(signal.SIGINT)
        return task

    with monkeypatch.context() as patch:
        patch.setattr(loop, "create_task", create_task)
        with pytest.raises(KeyboardInterrupt):
            client.info()
    assert client.info()
    gc.collect()
    assert not asyncio.all_tasks(loop)
    assert not caplog.records  # asyncio reports tasks that were destroyed


def test_an_interrupt_before_a_call_has_begun_is_followed_by_no_warning(client, monkeypatch, recwarn):
    def interrupted(_) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(client._runner, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.info()
    gc.collect()
    assert not recwarn.list
