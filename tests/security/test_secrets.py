"""S8: tokens as canaries in a system that works, errs and gets new ones, and every place where one could be seen."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from marless.app.cli.main import app
from marless.app.client import AsyncClient, Client
from marless.core import orphans
from marless.core.errors import MarlessError, PermissionDeniedError, UnauthenticatedError
from marless.fleet.gpus import WORKERS_PER_GPU
from marless.fleet.launchers.local import CHECK_S
from marless.jobs import spec as specs
from marless.jobs.record import RoundRecord
from marless.rpc import tokens as files
from marless.rpc.client import Peer
from marless.rpc.roles import ALLOWED, Role
from marless.rpc.security import Security
from marless.rpc.tokens import LOOK_S
from marless.rpc.v1 import actor_pool_pb2
from marless.rpc.v1.actor_pool_pb2_grpc import ActorPoolServiceStub
from marless.storage.round_file import read
from tests import tokens
from tests.integration.hosts import SERVICES, Hosts, running_hosts
from tests.security.test_roles import METHODS, status
from tests.templates import SCRIPTED

SPREAD_S = LOOK_S + CHECK_S + 0.5
"""After so long every process shows a new token: it has looked, and its workers have been handed theirs."""
PATIENCE_S = 60.0


def endless(place: Path) -> specs.JobSpec:
    """A job whose steps take their time, which other processes have meanwhile."""
    document = {
        "env": {"name": "waiting", "options": {"agents": 2, "max_cycles": 5, "hold": str(place)}},
        "algorithm": {"name": "ippo", "epochs": 1, "minibatches": 1},
        "model": {"hidden": [8]},
        "actors": {"count": 2, "envs": 2, "steps": 15},
        "evaluation": {"every": 10, "episodes": 4, "random_episodes": 4},
        "checkpoint": {"every": 5, "keep": 2},
        "stop": {"rounds": 10**6},
    }
    return specs.parse(document, "spec")


class Watched:
    """A job that runs on hosts, and every secret that has been in their files."""

    def __init__(self, hosts: Hosts, tls: dict[str, str]) -> None:
        self.hosts = hosts
        self.ca = tls["ca.pem"]
        self.worker = {"tls_cert": tls["worker.pem"], "tls_key": tls["worker.key"]}
        self.secrets: set[str] = set()
        self.note_secrets()

    def note_secrets(self) -> None:
        for role in Role:
            self.secrets.update((self.hosts.tokens / role).read_text().split())

    def records(self) -> list[RoundRecord]:
        with suppress(OSError):
            return list(read(self.hosts.place / "runs" / "canary" / "rounds.jsonl"))
        return []

    async def recorded_after(self, since_s: float) -> None:
        """Until a round is recorded that began after this moment."""
        async with asyncio.timeout(PATIENCE_S):
            while not any(record.started_s > since_s for record in self.records()[-1:]):  # noqa: ASYNC110  # a file
                await asyncio.sleep(0.05)

    def token(self, role: Role) -> str:
        return (self.hosts.tokens / role).read_text().split()[0]

    def security(self, token: str) -> Security:
        return replace(Security(token, tls_ca=self.ca), **self.worker)

    @asynccontextmanager
    async def peer(self, service: str, security: Security) -> AsyncIterator[Peer]:
        peer = Peer(self.hosts.address(service), security, service)
        yield peer
        await peer.close()


def service_of(method: str) -> str:
    return {
        "CoordinatorService": "coordinator",
        "ActorPoolService": "actor_pool",
        "LearnerPoolService": "learner_pool",
        "ParamStoreService": "param_store",
    }[method.split("/")[1].rpartition(".")[2]]


def seen_in_processes(watched: Watched) -> tuple[list[str], list[dict[str, str]]]:
    """Command lines of all processes of this machine; environments of all that the hosts have started."""
    commands = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    environments = []
    for service in SERVICES:
        below = psutil.Process(watched.hosts.processes[service].pid)
        for process in (below, *below.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                environments.append(process.environ())
    return commands, environments


async def nothing_of_others_in_actors(watched: Watched) -> None:
    """In the memory of actor workers, where third parties' code runs, is the token of their own role, and no other.

    The process from which they are forked has none.
    """
    [template] = psutil.Process(watched.hosts.processes["actor_pool"].pid).children()
    assert roles_in(template, watched) == set()
    for process in template.children():
        async with asyncio.timeout(PATIENCE_S):
            while not (held := roles_in(process, watched)):  # noqa: ASYNC110  # one that starts has no token yet
                await asyncio.sleep(0.05)
        assert held == {Role.ACTOR}
        assert watched.worker["tls_key"] in process.cmdline()


def roles_in(process: psutil.Process, watched: Watched) -> set[Role]:
    memory = memory_of(process)
    return {role for role in Role if watched.token(role).encode() in memory}


def memory_of(process: psutil.Process) -> bytes:
    found = []
    memory_file = Path(f"/proc/{process.pid}/mem")
    with memory_file.open("rb", buffering=0) as memory:
        for line in memory_file.with_name("maps").read_text().splitlines():
            span, rights, *_ = line.split()
            begin, _, end = span.partition("-")
            if rights.startswith("rw"):
                with suppress(OSError, ValueError):
                    memory.seek(int(begin, 16))
                    found.append(memory.read(int(end, 16) - int(begin, 16)))
    return b"".join(found)


async def refused_by_the_services_themselves(watched: Watched) -> None:
    for service in SERVICES:
        own = [method for method in METHODS if service_of(method) == service]
        for role in Role:
            async with watched.peer(service, watched.security(watched.token(role))) as peer:
                for method in own:
                    if role not in ALLOWED[method]:
                        code = await status(peer.channel, method, peer.metadata)
                        assert code.name == "PERMISSION_DENIED", (role, method)
        async with watched.peer(service, Security(watched.token(Role.SERVICE), tls_ca=watched.ca)) as peer:
            mutual = await status(peer.channel, own[0], peer.metadata)
            assert (mutual.name == "UNAVAILABLE") == (service != "coordinator"), service


async def rotated(watched: Watched) -> None:
    """New tokens for every role take over in a job that runs, and old ones are refused after."""
    old = {role: watched.token(role) for role in Role}
    for role in Role:
        files.rotate(watched.hosts.tokens, role)
    watched.note_secrets()
    await watched.recorded_after(time.time() + SPREAD_S)
    for role in Role:
        files.retire(watched.hosts.tokens, role)
    async with watched.peer("actor_pool", watched.security(watched.token(Role.OPERATOR))) as peer:
        request = actor_pool_pb2.ScaleRequest(workers=1)  # so that another is launched, and handed the new token
        await peer.call(ActorPoolServiceStub(peer.channel).Scale, request)
    await watched.recorded_after(time.time() + LOOK_S)
    for role, token in old.items():
        method = next(method for method, allowed in ALLOWED.items() if allowed == {role} or role in allowed)
        async with watched.peer(service_of(method), watched.security(token)) as peer:
            assert (await status(peer.channel, method, peer.metadata)).name == "UNAUTHENTICATED"


async def replaced(watched: Watched) -> None:
    """Tokens have leaked: all are refused at once, and the job waits until its processes have noticed."""
    for role in Role:
        tokens.write(watched.hosts.tokens, role, tokens.token_of(role, 2))
    watched.note_secrets()
    await watched.recorded_after(time.time() + LOOK_S)


async def test_no_secret_is_seen_anywhere_and_new_ones_take_over_in_a_running_job(tmp_path, tls, monkeypatch):
    errors: list[str] = []
    monkeypatch.setenv("MARLESS_SPOOL", str(tmp_path / "spool"))
    (tmp_path / "spool").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(SCRIPTED))
    async with running_hosts(tmp_path, tls) as hosts:
        watched = Watched(hosts, tls)
        address = hosts.address("coordinator")
        async with AsyncClient(address, token=watched.token(Role.CLIENT), tls_ca=watched.ca) as client:
            await client.submit(endless(tmp_path), job="canary")
            await watched.recorded_after(0.0)
            await refused_by_the_services_themselves(watched)
            for token in ("canary-of-a-stranger", watched.token(Role.ACTOR)):
                async with AsyncClient(address, token=token, tls_ca=watched.ca, contact_s=1.0) as stranger:
                    with pytest.raises((UnauthenticatedError, PermissionDeniedError)) as refused:
                        await stranger.get("canary")
                errors += [f"{refused.value!r} {refused.value.detail}"]
            with pytest.raises(MarlessError) as failed:
                await client.get("canary-of-no-job")
            errors += [f"{failed.value!r} {failed.value.detail}"]
            commands, environments = seen_in_processes(watched)
            await nothing_of_others_in_actors(watched)
            await rotated(watched)
            await replaced(watched)
        async with AsyncClient(address, token=watched.token(Role.CLIENT), tls_ca=watched.ca) as client:
            await client.cancel("canary")
            assert (await client.wait("canary", timeout_s=PATIENCE_S)).state == "CANCELLED"
            errors += [line.text async for line in client.logs("canary")]
    records = watched.records()
    assert [record.round for record in records] == list(range(len(records)))
    assert {each.attempt for record in records for each in record.invocations} <= {0, 1}  # 0: a part of a learner
    for role in Role:
        assert len((hosts.tokens / role).read_text().split()) == 1
    secrets = watched.secrets | {"canary-of-a-stranger"}
    assert len(secrets) == 3 * len(Role) + 1
    left = [path for path in tmp_path.rglob("*") if path.is_file() and path.parent != hosts.tokens]
    places = [
        *commands,
        *map(str, environments),
        *errors,
        hosts.said,
        *(path.read_bytes().decode(errors="ignore") for path in left),
    ]
    assert [place for place in places if any(secret in place for secret in secrets)] == []
    workers = [each for each in environments if orphans.MARK in each]
    assert len(workers) >= 2
    # Of all settings they have one that says who uses GPUs; tokens and files of them reach no environment.
    known = {orphans.MARK, WORKERS_PER_GPU}
    assert {name for each in workers for name in each if name.startswith("MARLESS_")} <= known


def test_what_a_client_says_of_itself_and_of_its_mistakes_holds_no_token(tmp_path, monkeypatch):
    secret = "canary-of-the-user"
    monkeypatch.setenv("MARLESS_TOKEN", secret)
    monkeypatch.setattr("marless.app.cli.options.CONTACT_S", 0.1)
    with Client(f"unix:{tmp_path}/none.sock") as client:
        assert secret not in repr(client) + repr(vars(client)) + repr(vars(client._client))
    for words in (["list"], ["doctor"], ["up", "--listen", "127.0.0.1:7070"], ["submit", "/none.yaml"]):
        at = ["--coordinator", f"unix:{tmp_path}/none.sock"] if words[0] in ("list", "submit") else []
        said = CliRunner().invoke(app, [*words, *at, "--runs", str(tmp_path / "runs")])
        assert secret not in said.output + repr(said.exception), words
        assert said.exception is None or words[0] != "up" or "MARLESS_TOKEN is for clients" in repr(said.exception)
