"""Host programs as processes that dial in to a real pool: what they start, end, say, and outlive."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path

import pytest

from marless.core import process_environment
from marless.core.errors import MarlessError, SpecError, UnauthenticatedError
from marless.fleet.dispatch import Dispatcher
from marless.fleet.launchers.base import ACCEPTED, Launch, LaunchOrder, LaunchOutcome, WorkerProgram
from marless.fleet.launchers.hosts import pool as hosts_pool
from marless.fleet.launchers.hosts.pool import Hosts
from marless.fleet.launchers.hosts.program import HostWorkers
from marless.fleet.launchers.local import LocalLauncher
from marless.rpc.client import Peer
from marless.rpc.security import Security
from marless.rpc.server import ServedService, ServerOptions, serving
from marless.rpc.v1 import hosts_pb2
from marless.rpc.v1.actor_pool_pb2_grpc import ActorPoolServiceStub, add_ActorPoolServiceServicer_to_server
from marless.services.actor_pool.servicer import ActorPoolServicer
from tests.plugins.ec2.fake_metadata import metadata

ROOT = Path(__file__).parents[2]
PATIENCE_S = 30.0
NO_ROOM = Launch(LaunchOutcome.REFUSED, "no host has room")


class Pool:
    """A pool whose launcher has only hosts, and the host programs that dial in to it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.address = f"unix:{place}/pool.sock"
        self.tokens = ["first token"]
        self.processes: list[subprocess.Popen[bytes]] = []
        self.changes = asyncio.Event()
        self.new_hosts()

    def new_hosts(self) -> None:
        program = WorkerProgram(
            "tests.unit.fleet.scripted_worker",
            ("--place", f"{self.place}"),
            {},
            lambda: self.tokens[-1],
            process_environment.ACTOR,
        )
        self.hosts = Hosts(program, self.changes.set)

    async def attach(self, messages, send) -> None:
        await self.hosts.attach(messages, send)

    @asynccontextmanager
    async def served(self) -> AsyncIterator[Pool]:
        @asynccontextmanager
        async def build(_address: str) -> AsyncIterator[ServedService]:
            servicer = ActorPoolServicer(None, Dispatcher(), None, None, self)
            yield ServedService(partial(add_ActorPoolServiceServicer_to_server, servicer), drain=self._drop)

        async with serving(ServerOptions(self.address, Security()), build):
            yield self

    async def _drop(self) -> None:
        for host in list(self.hosts.connected.values()):
            host.lose()

    def dial(self, address: str, *more: str) -> subprocess.Popen[bytes]:
        """Start a host program, with the metadata service at `address`."""
        command = [sys.executable, "-P", "-m", "marless_ec2.host", "--pool", self.address]
        command += ["--metadata", address, *more]
        self.processes.append(subprocess.Popen(command, env=os.environ | {"PYTHONPATH": f"{ROOT}"}, cwd="/"))
        return self.processes[-1]

    async def until(self, condition) -> None:
        """Wait for something that changes with hosts and workers."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self.changes.clear()
                await self.changes.wait()

    async def host(self, name: str):
        await self.until(lambda: name in self.hosts.connected)
        return self.hosts.connected[name]

    async def started(self, name: str, ticket: str = "ticket") -> dict:
        """Start a worker; returns what it has found."""
        assert await self.hosts.start(LaunchOrder(name, ticket, ("--worker", name))) == ACCEPTED
        path = self.place / name
        async with asyncio.timeout(PATIENCE_S):
            while not path.exists():  # noqa: ASYNC110  # a file tells nobody
                await asyncio.sleep(0.01)
        found = json.loads(path.read_text())
        path.unlink()
        return found


@pytest.fixture
async def pool(tmp_path):
    made = Pool(tmp_path)
    async with made.served():
        yield made
        for process in made.processes:
            process.kill()
            process.wait()


@pytest.fixture
def one():
    with metadata("i-1") as service:
        yield service


@pytest.fixture
def two():
    with metadata("i-2") as service:
        yield service


async def ended(pool, worker: str) -> str:
    async with asyncio.timeout(PATIENCE_S):
        return await pool.hosts.observe(worker)


def workers(place: Path) -> list[str]:
    """Command lines of the workers of this test that run."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if "--launched" in line and f"{place} " in line:
            found.append(line)
    return found


async def test_workers_start_on_the_fullest_host_as_many_as_there_are_slots(pool, one, two):
    pool.dial(one.address, "--slots", "1")
    pool.dial(two.address, "--slots", "2")
    small, large = await pool.host("i-1"), await pool.host("i-2")
    assert pool.hosts.free == 3
    found = await pool.started("a", "ticket a")
    assert (len(small.launches), len(large.launches)) == (1, 0)
    assert found["handover"] == {"ticket": "ticket a", "token": "first token"}
    await pool.started("b")
    await pool.started("c")
    assert (len(small.launches), len(large.launches), pool.hosts.free) == (1, 2, 0)
    assert await pool.hosts.start(LaunchOrder("d", "ticket")) == NO_ROOM
    await pool.hosts.drain("b", 0.0)
    assert pool.hosts.free == 1
    assert large.idle_s == 0


async def test_what_a_worker_needs_is_the_pools_and_the_hosts(tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of the host")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}")
    bench = HostWorkers("id=i-1,provider=aws", ["--tls-ca", "/ca.pem"])
    module, place = "tests.unit.fleet.scripted_worker", ["--place", f"{tmp_path}"]
    await bench.use(hosts_pb2.HostProgram(module=module, arguments=place, settings={"OMP_NUM_THREADS": "3"}))
    assert (await bench.start(hosts_pb2.StartWorker(launch=1, worker="exits"))) == ACCEPTED
    assert await bench.ended(1) == "exit code 3"
    found = json.loads((tmp_path / "exits").read_text())
    assert found["arguments"] == ["--launched", *place, "--tls-ca", "/ca.pem", "--worker", "exits"]
    assert found["variables"]["MARLESS_MACHINE"] == "id=i-1,provider=aws"
    assert found["variables"]["OMP_NUM_THREADS"] == "3"
    assert "AWS_SECRET_ACCESS_KEY" not in found["variables"]
    await bench.close()


async def test_how_workers_ended_is_told_and_their_slots_are_free_again(pool, one):
    pool.dial(one.address, "--slots", "2")
    host = await pool.host("i-1")
    for worker, how in (("exits", "exit code 3"), ("dies", "killed by signal 15")):
        assert await pool.hosts.start(LaunchOrder(worker, "ticket", ("--worker", worker))) == ACCEPTED
        assert await ended(pool, worker) == how
        await pool.hosts.drain(worker, 0.0)
    assert (pool.hosts.free, await ended(pool, "unheard-of")) == (2, "not started")
    assert host.idle_s > 0


async def test_a_new_token_reaches_the_host(pool, one, monkeypatch):
    monkeypatch.setattr(hosts_pool, "CHECK_S", 0.01)
    pool.dial(one.address, "--slots", "2")
    await pool.host("i-1")
    await pool.started("a")
    pool.tokens.append("second token")
    async with asyncio.timeout(PATIENCE_S):
        while (await pool.started("b"))["handover"]["token"] != "second token":
            await pool.hosts.drain("b", 0.0)


async def test_a_lost_host_is_lost_workers(pool, one, two):
    pool.dial(one.address, "--slots", "1")
    await pool.host("i-1")
    await pool.started("a")
    pool.dial(two.address, "--slots", "1")
    await pool.host("i-2")
    await pool.started("b")
    pool.processes[0].kill()
    assert await ended(pool, "a") == "its host i-1 was lost"
    await pool.hosts.drain("a", 0.0)
    assert list(pool.hosts.connected) == ["i-2"]
    async with asyncio.timeout(PATIENCE_S):
        while len(workers(pool.place)) > 1:  # noqa: ASYNC110  # processes tell nobody
            await asyncio.sleep(0.01)


async def test_a_host_ends_its_workers_with_its_pool_and_dials_in_to_the_next(tmp_path, one):
    pool = Pool(tmp_path)
    async with pool.served():
        host = pool.dial(one.address, "--slots", "1")
        await pool.host("i-1")
        await pool.started("a")
    pool.new_hosts()
    async with pool.served():
        await pool.host("i-1")
        assert workers(pool.place) == []
        await pool.started("a")
        assert len(workers(pool.place)) == 1
    host.terminate()
    assert host.wait(PATIENCE_S) == 0
    assert workers(pool.place) == []


async def test_a_hung_worker_is_killed(pool, one):
    pool.dial(one.address)
    await pool.host("i-1")
    found = await pool.started("a")
    os.kill(found["session"], signal.SIGSTOP)
    async with asyncio.timeout(PATIENCE_S):
        await pool.hosts.drain("a", 0.05)
    assert workers(pool.place) == []


async def test_a_hung_host_is_disconnected_with_its_workers(pool, one, monkeypatch):
    monkeypatch.setattr(hosts_pool, "END_S", 0.2)
    process = pool.dial(one.address)
    await pool.host("i-1")
    await pool.started("a")
    process.send_signal(signal.SIGSTOP)
    await pool.hosts.drain("a", 0.0)
    await pool.until(lambda: not pool.hosts.connected)
    process.send_signal(signal.SIGCONT)
    await pool.host("i-1")
    assert workers(pool.place) == []


async def test_a_host_that_gets_a_notice_gets_no_more_work(pool, one, monkeypatch):
    pool.dial(one.address, "--slots", "2")
    host = await pool.host("i-1")
    await pool.started("a")
    leaving = asyncio.create_task(pool.hosts.leaving("a"))
    one.texts["meta-data/spot/instance-action"] = '{"action": "terminate", "time": "2026-11-24T12:00:00Z"}'
    async with asyncio.timeout(PATIENCE_S):
        assert await leaving == "AWS ends this spot instance"
    assert (pool.hosts.free, len(host.launches)) == (0, 1)
    assert await pool.hosts.start(LaunchOrder("b", "ticket")) == NO_ROOM


async def test_a_host_that_is_stopped_says_so_and_waits_for_its_workers(pool, one):
    process = pool.dial(one.address)
    host = await pool.host("i-1")
    await pool.started("a")
    process.terminate()
    async with asyncio.timeout(PATIENCE_S):
        assert await asyncio.shield(host.leaving) == "its host program was stopped"
    assert process.poll() is None
    await pool.hosts.drain("a", 0.0)
    assert process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize(("command", "code"), [("touch {}/over", 0), ("false", 1), ("/no/such/program", 1)])
async def test_a_host_without_a_pool_ends_its_machine(pool, one, command, code):
    pool.address = f"unix:{pool.place}/nowhere.sock"
    process = pool.dial(one.address, "--alone-s", "0.5", "--end-command", command.format(pool.place))
    assert await asyncio.to_thread(process.wait, PATIENCE_S) == code
    assert (pool.place / "over").exists() == (code == 0)


async def test_a_host_that_its_pool_refuses_ends_its_machine(pool, one, monkeypatch):
    monkeypatch.setattr(hosts_pool, "version", lambda _: "9.9")
    process = pool.dial(one.address, "--alone-s", "2", "--end-command", "true")
    assert await asyncio.to_thread(process.wait, PATIENCE_S) == 0
    assert not pool.hosts.connected


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--pool", "nowhere"], "nowhere': give the address to dial"),
        (["--pool", "unix:/p", "--role", "client"], "'client': give actor or learner"),
        (["--pool", "unix:/p", "--end-command", "'"], "No closing quotation"),
        (["--pool", "unix:/p", "--slots", "5000"], "5000: give at most 4096"),
        (["--pool", "unix:/p", "--tokens", "/nowhere"], "/nowhere cannot be read"),
        (["--pool", "unix:/p", "--tls-ca", "/nowhere"], "TLS file /nowhere cannot be read"),
        (["--pool", "10.0.0.1:7071"], "not a loopback address: set --tls-ca"),
    ],
)
def test_wrong_options_are_told_before_anything_is_dialled(arguments, said):
    command = [sys.executable, "-P", "-m", "marless_ec2.host", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    assert ran.returncode == 2
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr


# What a pool makes of hosts that are not ours


async def said_to(pool, *messages: hosts_pb2.HostMessage) -> MarlessError | None:
    """Open a stream with these messages; returns the error that it ends with."""
    peer = Peer(pool.address, Security(), "pool")
    from marless.rpc.errors import from_rpc

    stream = ActorPoolServiceStub(peer.channel).Host(iter(messages))
    try:
        async with asyncio.timeout(PATIENCE_S):
            async for _ in stream:
                pass
    except Exception as error:  # noqa: BLE001
        return from_rpc(error, "pool")
    finally:
        await peer.close()
    return None


OURS = version("marless")


def hello(**changed) -> hosts_pb2.HostMessage:
    facts = {"host": "i-1", "ticket": "its own", "slots": 1, "vcpus": 2.0, "version": OURS} | changed
    return hosts_pb2.HostMessage(hello=hosts_pb2.HostHello(**facts))


STARTED = hosts_pb2.HostMessage(started=hosts_pb2.WorkerStarted(launch=9, outcome="accepted"))


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([STARTED], "starts with its hello"),
        ([], "starts with its hello"),
        ([hello(host="")], "a host's name"),
        ([hello(slots=5000)], "up to 4096 slots"),
        ([hello(slots=-1)], "up to 4096 slots"),
        ([hello(vcpus=float("nan"))], "the vCPUs of a host"),
        ([hello(ticket="")], "and a ticket"),
        ([hello(version="9.9")], f"host i-1 has marless '9.9', and its pool {OURS}: install {OURS} there"),
        ([hello(), hello()], "reports starts and ends"),
        ([hello(), hosts_pb2.HostMessage(notice=hosts_pb2.HostNotice(seconds=float("nan")))], "seconds of a notice"),
    ],
)
async def test_a_host_that_cannot_be_used_is_refused(pool, messages, said):
    error = await said_to(pool, *messages)
    assert isinstance(error, SpecError)
    assert said in str(error)
    assert not pool.hosts.connected


async def test_reports_of_unknown_workers_change_nothing(pool):
    assert await said_to(pool, hello(), STARTED) is None


async def test_nobody_takes_the_place_of_a_connected_host(pool, one):
    pool.dial(one.address)
    host = await pool.host("i-1")
    error = await said_to(pool, hello())
    assert isinstance(error, UnauthenticatedError)
    assert pool.hosts.connected["i-1"] is host


async def test_a_pool_whose_launcher_has_no_hosts_says_so(tmp_path, monkeypatch):
    pool = Pool(tmp_path)
    monkeypatch.setattr(pool, "attach", None)
    program = WorkerProgram("module", (), {}, str, {})
    with pytest.raises(SpecError, match="the launcher of this pool uses no hosts; give the pool --launcher ec2"):
        await hosts_pool.attach(LocalLauncher(program), None, None)


async def test_a_host_that_does_not_answer_an_order_is_no_room(pool, one, monkeypatch):
    monkeypatch.setattr(hosts_pool, "START_S", 0.2)
    monkeypatch.setattr(hosts_pool, "END_S", 0.2)
    process = pool.dial(one.address)
    await pool.host("i-1")
    process.send_signal(signal.SIGSTOP)
    launch = await pool.hosts.start(LaunchOrder("a", "ticket", ("--worker", "a")))
    assert launch == Launch(LaunchOutcome.REFUSED, "host i-1 did not start a worker within 0.2 s; see its log")
    process.send_signal(signal.SIGCONT)
    await pool.until(lambda: not pool.hosts.connected)
    await pool.host("i-1")
    assert workers(pool.place) == []
