"""Actor and learner workers that a Slurm job array starts (deploy/slurm/). `make test-slurm` runs this.

It needs root and Debian's Slurm: `apt-get install --no-install-recommends slurm-wlm munge`.
"""

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from marless.rpc.client import Peer
from marless.rpc.roles import Role
from marless.rpc.v1 import common_pb2
from marless.rpc.v1.actor_pool_pb2_grpc import ActorPoolServiceStub
from marless.services.coordinator.state.run_folder import RunFolder
from tests import tokens
from tests.faults.rig import WITNESS
from tests.integration.hosts import SERVICES, Hosts, running_hosts
from tests.integration.running import outcome
from tests.slurm.cluster import Cluster, absent, cluster

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow, pytest.mark.timeout(300)]
SCRIPT = Path(__file__).parents[2] / "deploy" / "slurm" / "workers.sbatch"
ACTORS = 3
ROUNDS = 60
GONE_S = 3
ENDS_S = 30.0
FIRST_S = 60.0


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    if why := absent():
        pytest.skip(f"no Slurm on this machine: {why}")
    with cluster() as made:
        yield made


@pytest.fixture(scope="module")
def hold(tmp_path_factory) -> Path:
    """While this file is there, env steps take for ever."""
    return tmp_path_factory.mktemp("hold") / "here"


@pytest.fixture(scope="module")
def job(hold) -> dict[str, object]:
    return {
        "env": {"name": "waiting", "options": {"agents": 2, "hold": str(hold), "hangs": True}},
        "algorithm": {"name": "ippo", "epochs": 1, "minibatches": 2},
        "model": {"hidden": [8]},
        "actors": {"count": ACTORS, "envs": 2, "steps": 25},
        "evaluation": {"every": 0, "episodes": 4, "random_episodes": 4},
        "stop": {"rounds": ROUNDS},
    }


async def submit(hosts: Hosts, job: dict[str, object]) -> RunFolder:
    spec = hosts.place / "job.yaml"
    spec.write_text(json.dumps(job))
    await hosts.marless("submit", str(spec), "--job", "job")
    return RunFolder(hosts.place / "runs" / "job")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def undisturbed(tls, job, tmp_path_factory) -> object:
    """What the job comes to with workers that the pools start."""
    variables = {service: {"PYTHONPATH": str(WITNESS)} for service in SERVICES}
    async with running_hosts(tmp_path_factory.mktemp("local"), tls, variables) as hosts:
        folder = await submit(hosts, job)
        await hosts.marless("wait", "job")
        return outcome(folder)


@pytest_asyncio.fixture(loop_scope="module")
async def services(tls, tmp_path) -> AsyncIterator[Hosts]:
    """Pools that start no workers."""
    external = {"PYTHONPATH": str(WITNESS), "MARLESS_LAUNCHER": "external"}
    async with running_hosts(tmp_path / "hosts", tls, dict.fromkeys(SERVICES, external)) as hosts:
        yield hosts


@pytest.fixture(autouse=True)
def _place(tmp_path) -> None:
    (tmp_path / "hosts").mkdir()


def settings(hosts: Hosts, place: Path, **changed: str) -> Path:
    """A copy of deploy/slurm/settings.sh as its user would edit it, and the credentials that it names."""
    of = hosts.environment
    for kind, role in (("actor", Role.ACTOR), ("learner", Role.LEARNER)):
        folder = place / "credentials" / f"{kind}-worker"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.copy(hosts.tokens / role, folder / role)  # with its mode
        for name, file in (("authority", "TLS_CA"), ("certificate", "WORKER_TLS_CERT"), ("key", "WORKER_TLS_KEY")):
            shutil.copy(of[f"MARLESS_{file}"], folder / f"{name}.pem")
    edited = {
        "PYTHON": sys.executable,
        "CREDENTIALS": str(place / "credentials"),
        "ACTOR_POOL": of["MARLESS_ACTOR_POOL"],
        "LEARNER_POOL": of["MARLESS_LEARNER_POOL"],
        "PARAM_STORE": of["MARLESS_PARAM_STORE"],
        "GONE_S": str(GONE_S),
    } | changed
    lines = (SCRIPT.parent / "settings.sh").read_text().splitlines()
    lines = [f"{name}={edited[name]}" if (name := line.partition("=")[0]) in edited else line for line in lines]
    path = place / "settings.sh"
    path.write_text("\n".join([*lines, f"export PYTHONPATH={WITNESS}", ""]))
    return path


def start(slurm: Cluster, kind: str, settings: Path, array: str) -> str:
    """Start an array of workers; returns its id."""
    return slurm.run("sbatch", "--parsable", f"--array={array}", str(SCRIPT), kind, str(settings))


async def until(reached: Callable[[], bool], slurm: Cluster, within_s: float) -> None:
    try:
        async with asyncio.timeout(within_s):
            while not await asyncio.to_thread(reached):  # noqa: ASYNC110  # other processes
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"not within {within_s:g} s:\n{slurm.said}") from None


async def all_hang(hold) -> None:
    """Hold up a round in which all actors still have steps to do; others, in which some are through, go on."""
    async with asyncio.timeout(FIRST_S):
        while True:
            hold.touch()
            for _ in range(20):
                await asyncio.sleep(0.1)
                if len(list(hold.parent.glob("*.hangs"))) >= ACTORS:
                    return
            hold.unlink()
            await asyncio.sleep(0.1)  # those that hang notice
            for each in hold.parent.glob("*.hangs"):
                each.unlink()


class Actors:
    """What the actor pool says of its workers."""

    def __init__(self, hosts: Hosts) -> None:
        of = hosts.environment
        security = tokens.client(Role.OPERATOR, tls_ca=of["MARLESS_TLS_CA"])
        security = replace(security, tls_cert=of["MARLESS_TLS_CERT"], tls_key=of["MARLESS_TLS_KEY"])
        self._peer = Peer(hosts.address("actor_pool"), security)

    async def until(self, reached: Callable[[dict[str, common_pb2.WorkerInfo]], bool]) -> None:
        async with asyncio.timeout(FIRST_S):
            while not reached({each.worker: each for each in await self._list()}):  # noqa: ASYNC110  # other processes
                await asyncio.sleep(0.05)

    async def _list(self) -> Sequence[common_pb2.WorkerInfo]:
        stub, asked = ActorPoolServiceStub(self._peer.channel), common_pb2.ListWorkersRequest()
        return (await self._peer.call(stub.ListWorkers, asked)).workers

    async def close(self) -> None:
        await self._peer.close()


async def test_an_array_trains_a_job_and_loses_nothing_when_a_task_is_cancelled_in_mid_round(
    slurm, services, undisturbed, job, hold, tmp_path
):
    path = settings(services, tmp_path)
    arrays = [start(slurm, "learner", path, "1"), start(slurm, "actor", path, f"1-{ACTORS}")]
    actors = Actors(services)
    await actors.until(lambda found: len(found) == ACTORS)
    folder = await submit(services, job)
    await until(lambda: len(list(folder.records())) >= 2, slurm, FIRST_S)
    cancelled = f"slurm-{arrays[1]}-2-0-1"
    await all_hang(hold)
    slurm.run("scancel", f"{arrays[1]}_2")
    await actors.until(lambda found: cancelled not in found)
    hold.unlink()
    await services.marless("wait", "job")
    await actors.close()
    assert outcome(folder) == undisturbed
    ran = [each for record in folder.records() for each in record.invocations if each.worker]
    assert {each.worker for each in ran if each.attempt == 1} > {cancelled}
    assert [each.attempt for each in ran if each.attempt > 1] == [2]  # what the cancelled one was at
    ours = tuple(f"slurm-{array}-" for array in arrays)
    assert not {each.worker for each in ran if not each.worker.startswith(ours)}
    await _hides(slurm, arrays)
    await _ends(slurm, services)


async def _hides(slurm: Cluster, arrays: list[str]) -> None:
    """No token is in anything that Slurm shows or keeps."""
    shown = "".join(slurm.run("scontrol", "--details", "--details", "show", "job", array) for array in arrays)
    secret = [tokens.token_of(role) for role in Role]
    assert "settings.sh" in shown
    assert not [token for token in secret if token in shown]
    written = slurm.written()
    assert any(b"workers.sbatch" in content for content in written.values())
    assert not [name for name, content in written.items() for token in secret if token.encode() in content]


async def _ends(slurm: Cluster, services: Hosts) -> None:
    """All arrays end by themselves once their pools are gone."""
    assert slurm.run("squeue", "--noheader")
    for pool in ("actor_pool", "learner_pool"):
        await services.stop(pool)
    await until(lambda: not slurm.run("squeue", "--noheader"), slurm, GONE_S + ENDS_S)


async def test_a_task_starts_another_worker_when_its_own_ends(slurm, services, tmp_path):
    array = start(slurm, "actor", settings(services, tmp_path, GONE_S="30"), "7")
    actors = Actors(services)
    pids: list[int] = []

    def connected(found: dict[str, common_pb2.WorkerInfo]) -> bool:
        pids[:] = [each.pid for each in found.values()]
        return list(found) == [f"slurm-{array}-7-0-1"]

    await actors.until(connected)
    os.kill(pids[0], 9)
    await actors.until(lambda found: list(found) == [f"slurm-{array}-7-0-2"])
    await actors.close()
    slurm.run("scancel", array)


async def test_an_array_whose_workers_are_refused_ends_and_says_why(slurm, services, tmp_path):
    path = settings(services, tmp_path)
    tokens.write(tmp_path / "credentials" / "actor-worker", Role.ACTOR, "another-pool-admits-this-token-but-not-ours")
    array = start(slurm, "actor", path, "1")
    await until(lambda: not slurm.run("squeue", "--noheader", "--jobs", array), slurm, FIRST_S)
    said = (slurm.place / f"marless-workers-{array}_1.log").read_text()
    assert "the token is missing or wrong" in said
    assert "5 workers failed within 60 s each" in said
