"""What environments do in the processes of workers: they may start others, and no other job finds what they did."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from marless.fleet.tenancy import IDLE_S
from marless.rpc.client import Peer
from marless.rpc.roles import Role
from marless.rpc.security import Security
from marless.rpc.server import serving
from marless.rpc.v1 import actor_pool_pb2, common_pb2
from marless.rpc.v1.actor_pool_pb2_grpc import ActorPoolServiceStub
from marless.services.actor_pool.__main__ import build, parse
from tests import tokens
from tests.integration.forking_env import WAYS
from tests.integration.vandal import KINDS

LATE_S = 60.0
NONE = Security()
ROOT = Path(__file__).parents[2]


class Rollouts:
    """Asks a pool."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.stub = ActorPoolServiceStub(peer.channel)

    async def __call__(
        self, job: str, *, actors: int = 1, env: str = "vandal:Vandal", **options: object
    ) -> actor_pool_pb2.RolloutResponse:
        """Play one episode in each actor of a job."""
        settings = actor_pool_pb2.RolloutSettings(
            env=f"pettingzoo/tests.integration.{env}",
            env_options_json=json.dumps(options),
            **{"envs": 1, "steps": 1, "timeout_s": LATE_S},
        )
        request = actor_pool_pb2.RolloutRequest(
            job=job, actors=actors, mode=actor_pool_pb2.ROLLOUT_MODE_RANDOM, episodes=actors, settings=settings
        )
        return await self.peer.call(self.stub.Rollout, request, timeout_s=LATE_S)

    async def prewarm(self, job: str) -> None:
        await self.peer.call(self.stub.Prewarm, actor_pool_pb2.PrewarmRequest(job=job, actors=1))

    async def workers(self) -> list[common_pb2.WorkerInfo]:
        return list((await self.peer.call(self.stub.ListWorkers, common_pb2.ListWorkersRequest())).workers)


@asynccontextmanager
async def pool(place: Path, *options: str, security: Security = NONE) -> AsyncIterator[Rollouts]:
    """A real pool with real workers."""
    given = ["--listen", f"unix:{place}/pool.sock", "--param-store", f"unix:{place}/no.sock", *options]
    config = parse([*given, "--env-modules", "tests.integration"])
    async with serving(config.server, partial(build, config)) as address:
        peer = Peer(address, security)
        yield Rollouts(peer)
        await peer.close()


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def damage(answer: actor_pool_pb2.RolloutResponse) -> list[float]:
    """What each actor's environment found when it was made."""
    return [each.return_sum["a"] for each in answer.receipts]


def cold(answer: actor_pool_pb2.RolloutResponse) -> list[bool]:
    return [each.cold for each in answer.invocations]


async def test_a_job_finds_nothing_of_what_another_has_done_and_keeps_its_own_worker(tmp_path):
    async with pool(tmp_path, "--actor-workers", "1") as rollout:
        first = await rollout("one")
        assert damage(first) == [0.0]
        again = await rollout("one", made=1)  # another environment in the same worker
        assert damage(again) == [KINDS]
        other = await rollout("two")
        assert damage(other) == [0.0]
        back = await rollout("one")
        assert damage(back) == [0.0]
    assert [*cold(first), *cold(again), *cold(other), *cold(back)] == [True, False, True, True]
    [run] = other.invocations
    assert 0 < run.init_s < LATE_S


@pytest.mark.parametrize("way", WAYS)
async def test_environments_may_start_processes_in_a_step(tmp_path, way):
    async with pool(tmp_path, "--actor-workers", "1") as rollout:
        async with asyncio.timeout(LATE_S):
            for _ in range(2):
                assert damage(await rollout("one", env="forking_env:Forking", way=way)) == [3.0]


async def test_jobs_at_once_share_the_workers_and_none_waits_for_the_end_of_another(tmp_path):
    async def goes_on(job: str) -> list[float]:
        return [each for _ in range(30) for each in damage(await rollout(job, actors=3))]

    async with pool(tmp_path, "--actor-workers", "2") as rollout:
        async with asyncio.timeout(LATE_S):
            for found in await asyncio.gather(goes_on("one"), goes_on("two"), goes_on("three")):
                assert set(found) == {0.0}  # of an environment that its worker keeps: it was made once
            # one may just be on its way in the place of another
            while len(listed := await rollout.workers()) < 2:  # noqa: ASYNC110  # nothing tells
                await asyncio.sleep(0.02)
    assert len(listed) == 2


async def test_a_prewarm_replaces_workers_of_jobs_that_have_ended_ahead_of_time(tmp_path):
    async with pool(tmp_path, "--actor-workers", "1") as rollout:
        await rollout("one")
        [before] = await rollout.workers()
        await asyncio.sleep(1.5 * IDLE_S)
        await rollout.prewarm("two")
        async with asyncio.timeout(LATE_S):
            while [worker.pid for worker in await rollout.workers()] in ([before.pid], []):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        first = await rollout("two")
        [run] = first.invocations
        assert damage(first) == [0.0]
        assert run.cold
        assert run.ready_s > 0  # it was there before its task


async def test_a_worker_that_has_dialled_in_comes_back_fresh(tmp_path):
    """It keeps its name, and the process that was started by hand ends with its pool."""
    own = tmp_path / "own"
    own.mkdir(mode=0o700)
    tokens.write(own, Role.ACTOR, tokens.token_of(Role.ACTOR))
    tokens.made(tmp_path / "tokens")
    held = ("--actor-workers", "0", "--tokens", str(tmp_path / "tokens"))
    async with pool(tmp_path, *held, security=tokens.client(Role.SERVICE)) as rollout:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "marless.services.actor_pool.worker",
            "--worker",
            "by-hand",
            "--pool",
            f"unix:{tmp_path}/pool.sock",
            "--param-store",
            "unix:/nowhere",
            "--tokens",
            str(own),
            "--env-modules",
            "tests.integration",
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        answers = [await rollout(job) for job in ("one", "two", "two")]
        assert [damage(each) for each in answers] == 3 * [[0.0]]
        assert {run.worker for each in answers for run in each.invocations} == {"by-hand"}
        assert [run.cold for each in answers for run in each.invocations] == [True, True, False]
        assert process.returncode is None
    async with asyncio.timeout(LATE_S):
        assert await process.wait() == 0
