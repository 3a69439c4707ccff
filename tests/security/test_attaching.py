"""Strangers who would be workers, and what the workers of a pool can learn from how they were started."""

import asyncio
import sys
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc
import psutil
import pytest

from marless.core import orphans
from marless.core.errors import UnauthenticatedError
from marless.fleet.handover import Tickets
from marless.rpc.client import Peer
from marless.rpc.roles import Role
from marless.rpc.security import Security
from marless.rpc.server import ServerOptions, serving
from marless.rpc.tokens import Tokens
from marless.rpc.v1 import actor_pool_pb2, common_pb2
from marless.rpc.v1.actor_pool_pb2_grpc import ActorPoolServiceStub
from marless.services.actor_pool.__main__ import ActorPoolConfig, build
from tests import tokens

PATIENCE_S = 30.0
SECRETS = {
    "MARLESS_TOKEN": "canary-token",
    "MARLESS_TOKENS": "/canary/tokens",
    "MARLESS_REDIS_URL": "redis://:canary-password@127.0.0.1",
    "MARLESS_TLS_KEY": "/canary/key.pem",
    "MARLESS_SOMETHING_NEW": "canary-of-tomorrow",
    "WANDB_API_KEY": "canary-of-a-sink",
}


class Pool:
    """A pool that runs, to whoever may ask for its workers."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.stub = ActorPoolServiceStub(peer.channel)

    async def workers(self) -> list[common_pb2.WorkerInfo]:
        return list((await self.peer.call(self.stub.ListWorkers, common_pb2.ListWorkersRequest())).workers)

    async def until_there(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(await self.workers()) != count:  # noqa: ASYNC110  # processes tell nobody but their pool
                await asyncio.sleep(0.02)

    async def answer_to(self, name: str, ticket: str, security: Security) -> str:
        """How a pool ends the stream of who says this."""
        stream = self.stub.Work(metadata=security.metadata())
        hello = common_pb2.WorkerHello(worker=name, pid=1, host="elsewhere", ticket=ticket)
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # it may be refused before the hello is heard
            await stream.write(common_pb2.WorkerMessage(hello=hello))
        return (await stream.code()).name


@asynccontextmanager
async def running_pool(tokens_of: Tokens | None = None, *, workers: int = 1):
    """An actor pool with one worker of its own, or none, on TCP; yields what to ask it with."""
    server = ServerOptions("127.0.0.1:0", Security(tokens=tokens_of))
    config = ActorPoolConfig(server, "unix:/nowhere", workers=workers, warm=1, keep_alive_s=600.0)
    async with serving(server, lambda address: build(config, address)) as address:
        pool = Pool(Peer(address, tokens.client(Role.OPERATOR) if tokens_of else Security()))
        await pool.until_there(workers)
        yield pool
        await pool.peer.close()


def process_file(pid: int, name: str) -> Path:
    return Path(f"/proc/{pid}/{name}").readlink()


@pytest.mark.parametrize("ticket", ["", "a guess"])
@pytest.mark.parametrize("name", ["stranger", "actor-0", "actor-1", ""])
def test_without_tokens_only_launched_workers_have_names(name, ticket):
    tickets = Tickets()
    right = tickets.issue("actor-0")
    tickets.check("actor-0", right, None)
    tickets.check("actor-0", right, right)  # it comes again
    for connected in (None, right):
        with pytest.raises(UnauthenticatedError, match="ticket"):
            tickets.check(name, ticket, connected if name == "actor-0" else None)


def test_a_ticket_is_of_one_name_and_one_launch():
    tickets = Tickets(others=True)
    first, other = tickets.issue("actor-0"), tickets.issue("actor-1")
    second = tickets.issue("actor-0")
    for ticket in (first, other):
        with pytest.raises(UnauthenticatedError):
            tickets.check("actor-0", ticket, None)
    tickets.check("actor-0", second, None)
    tickets.void("actor-0")
    tickets.check("actor-0", "another machine's", None)  # with tokens, a free name is anybody's


def test_the_name_of_a_connected_worker_is_not_stolen():
    tickets = Tickets(others=True)
    tickets.check("remote", "its own", None)
    tickets.check("remote", "its own", "its own")
    for stolen in ("", "another"):
        with pytest.raises(UnauthenticatedError):
            tickets.check("remote", stolen, "its own")
    with pytest.raises(UnauthenticatedError):
        tickets.check("remote", "", None)


async def test_a_stranger_cannot_attach_to_a_default_installation_nor_take_a_workers_place():
    async with running_pool() as pool:
        before = await pool.workers()
        for name in ("stranger", before[0].worker):
            for ticket in ("", "a guess"):
                assert await pool.answer_to(name, ticket, Security()) == "UNAUTHENTICATED"
        assert await pool.workers() == before


async def test_with_tokens_a_worker_that_others_start_attaches_by_its_role_alone(tmp_path):
    own = tmp_path / "own"
    own.mkdir(mode=0o700)
    tokens.write(own, Role.ACTOR, tokens.token_of(Role.ACTOR))
    async with running_pool(tokens.made(tmp_path / "tokens")) as pool:
        [launched] = await pool.workers()
        actor = tokens.client(Role.ACTOR)
        assert await pool.answer_to("remote", "its own", tokens.client(Role.LEARNER)) == "PERMISSION_DENIED"
        assert await pool.answer_to(launched.worker, "a guess", actor) == "UNAUTHENTICATED"
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "marless.services.actor_pool.worker",
            "--worker",
            "remote",
            "--pool",
            pool.peer.address,
            "--param-store",
            "unix:/nowhere",
            "--tokens",
            str(own),
        )
        await pool.until_there(2)
        assert await pool.answer_to("remote", "another's", actor) == "UNAUTHENTICATED"
        assert [worker.worker for worker in await pool.workers()] == [launched.worker, "remote"]
        process.terminate()
        await process.wait()


async def test_a_worker_with_a_wrong_token_ends_and_says_why(tmp_path):
    wrong = tmp_path / "wrong"
    wrong.mkdir(mode=0o700)
    tokens.write(wrong, Role.ACTOR, "x" * 40)
    async with running_pool(tokens.made(tmp_path / "tokens"), workers=0) as pool:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "marless.services.actor_pool.worker",
            "--pool",
            pool.peer.address,
            "--param-store",
            "unix:/nowhere",
            "--tokens",
            str(wrong),
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await process.communicate()
    assert process.returncode == 1
    assert said.decode().splitlines()[-1].startswith("python -m marless.services.actor_pool.worker: the token")


async def test_a_pool_that_starts_no_worker_plays_on_those_that_dial_in(tmp_path):
    """The random baseline, too, which otherwise has a worker of its own in the background."""
    own = tmp_path / "own"
    own.mkdir(mode=0o700)
    tokens.write(own, Role.ACTOR, tokens.token_of(Role.ACTOR))
    settings = actor_pool_pb2.RolloutSettings(
        env="mpe/simple", env_options_json="{}", envs=1, steps=3, seed=1, timeout_s=30.0
    )
    request = actor_pool_pb2.RolloutRequest(
        job="job", mode=actor_pool_pb2.ROLLOUT_MODE_RANDOM, actors=1, episodes=2, settings=settings, background=True
    )
    async with running_pool(tokens.made(tmp_path / "tokens"), workers=0) as pool:
        coordinator = Peer(pool.peer.address, tokens.client(Role.SERVICE))
        stub = ActorPoolServiceStub(coordinator.channel)
        played = asyncio.create_task(coordinator.call(stub.Rollout, request, timeout_s=PATIENCE_S))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "marless.services.actor_pool.worker",
            "--worker",
            "by-hand",
            "--pool",
            pool.peer.address,
            "--param-store",
            "unix:/nowhere",
            "--tokens",
            str(own),
        )
        answer = await played
        assert {each.worker for each in answer.invocations} == {"by-hand"}
        await coordinator.close()
    async with asyncio.timeout(PATIENCE_S):
        assert await process.wait() == 0  # its pool is gone


async def test_a_worker_finds_no_secret_in_its_environment_on_its_command_line_or_standard_input(monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    issued, issue = [], Tickets.issue
    monkeypatch.setattr(Tickets, "issue", lambda *given: issued.append(issue(*given)) or issued[-1])
    async with running_pool() as pool:
        [worker] = await pool.workers()
        process = psutil.Process(worker.pid)
        environment, command = process.environ(), " ".join(process.cmdline())
        standard_input = str(process_file(worker.pid, "fd/0"))
    assert [name for name in environment if name.startswith("MARLESS_")] == [orphans.MARK]
    assert "canary" not in str(environment) + command
    assert issued
    assert not any(ticket in str(environment) + command for ticket in issued)
    assert standard_input == "/dev/null"  # what an environment starts cannot read what the pool hands over
    assert environment["PATH"]
