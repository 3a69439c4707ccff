"""Processes that an environment or an algorithm has started end with its worker, however that ends, and leave no
zombies.
"""

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from marless.app.client import AsyncClient
from marless.core.errors import MarlessError
from marless.fleet.launchers.template import HUNG_S
from marless.fleet.session import OVERDUE_S
from marless.jobs.spec import spaces_to_json
from marless.rpc.client import Peer
from marless.rpc.roles import Role
from marless.rpc.security import Security
from marless.rpc.v1 import actor_pool_pb2, common_pb2, learner_pool_pb2
from marless.rpc.v1.actor_pool_pb2_grpc import ActorPoolServiceStub
from marless.rpc.v1.learner_pool_pb2_grpc import LearnerPoolServiceStub
from tests import tokens
from tests.faults.pools import small_job

WITNESS = Path(__file__).parent / "witness"
STARTED = 6
"""Processes of one brood that live: its kinds but the zombie, and the shell of the grandchild."""
GONE_S = 20.0
"""Generous, as other tests run beside these; a process that is left stays for ever."""
START_S = 30.0


HANG_S = 0.3
OTHER_ENDS = ("SIGTERM", "it hangs", "it is idle", "its pool is killed")


@dataclass
class Pool(ABC):
    """A pool with one worker, and what the environments or algorithms of its jobs have started."""

    process: asyncio.subprocess.Process
    peer: Peer
    name: str
    """On the command lines of all that is started."""

    def left(self) -> list[psutil.Process]:
        return [each for each in psutil.process_iter() if self._is_ours(each)]

    def zombies(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            return [each for each in psutil.Process(self.process.pid).children() if each.status() == "zombie"]
        return []

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return any(self.name in word for word in process.cmdline()) and process.status() != "zombie"
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            return False

    async def play(self, *, hangs: bool | str = False) -> None:
        """Have the worker start its brood; raises what its task ends with if it hangs."""
        await self.begin(hangs=hangs)
        await self.until(lambda: len(self.left()) == STARTED)

    @abstractmethod
    async def begin(self, *, hangs: bool | str) -> None:
        """Give the worker a task in which a brood starts."""

    @abstractmethod
    async def worker(self) -> int:
        """The process id of the worker."""

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(GONE_S):
            while not await asyncio.to_thread(condition):  # noqa: ASYNC110  # processes tell nobody
                await asyncio.sleep(0.02)

    async def end(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()
        await self.peer.close()
        for each in self.left():
            each.kill()


class Actors(Pool):
    """An environment starts its processes in its first episode."""

    @property
    def stub(self) -> ActorPoolServiceStub:
        return ActorPoolServiceStub(self.peer.channel)

    async def begin(self, *, hangs: bool | str) -> None:
        settings = actor_pool_pb2.RolloutSettings(
            env="brood",
            env_options_json=json.dumps({"name": self.name, "hangs": hangs}),
            **{"envs": 2, "steps": 3, "seed": 1, "timeout_s": HANG_S if hangs else 30.0},
        )
        request = actor_pool_pb2.RolloutRequest(
            job="job", mode=actor_pool_pb2.ROLLOUT_MODE_RANDOM, actors=1, episodes=2, settings=settings
        )
        await self.peer.call(self.stub.Rollout, request, timeout_s=30.0, wait_for_ready=True)

    async def worker(self) -> int:
        [worker] = (await self.peer.call(self.stub.ListWorkers, common_pb2.ListWorkersRequest())).workers
        return worker.pid

    async def drain(self) -> None:
        await self.peer.call(self.stub.Scale, actor_pool_pb2.ScaleRequest(workers=0))


class Learners(Pool):
    """An algorithm starts its processes with its learner, which is made when its job is opened."""

    async def begin(self, *, hangs: bool) -> None:
        job = small_job()
        spec = json.loads(job.spec.to_json())
        spec["algorithm"] = {"name": "breeding", "brood": self.name, "hangs": hangs}
        spec["learner"]["timeout_s"] = HANG_S if hangs else 30.0
        groups = [common_pb2.Group(policy=each.policy, agents=each.agents) for each in job.sharing.decide(()).groups]
        request = learner_pool_pb2.OpenJobRequest(
            job="job", spec_json=json.dumps(spec), spaces_json=spaces_to_json(job.spaces), groups=groups
        )
        stub = LearnerPoolServiceStub(self.peer.channel)
        opening = asyncio.create_task(self.peer.call(stub.OpenJob, request, timeout_s=30.0, wait_for_ready=True))
        if hangs:
            await opening
        async with asyncio.timeout(START_S):
            while len(await asyncio.to_thread(self.left)) < STARTED:  # noqa: ASYNC110  # processes tell nobody
                await asyncio.sleep(0.02)
        opening.cancel()  # it would wait for the store
        await asyncio.wait([opening])

    async def worker(self) -> int:
        children = psutil.Process(self.process.pid).children()  # the template, and what has lost its parent
        [worker] = next(filter(None, (each.children() for each in children)))
        return worker.pid


async def started(kind: type[Pool], place: Path, *options: str, workers: int = 1) -> Pool:
    address = f"unix:{place}/pool.sock"
    own = ("--actor-workers", f"{workers}") if kind is Actors else ("--learner-workers", "1", "--spool", str(place))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "marless.services.actor_pool" if kind is Actors else "marless.services.learner_pool",
        "--listen",
        address,
        "--exit-with-stdin",
        "--param-store",
        "unix:/nowhere",
        *own,
        *options,
        stdin=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(WITNESS)},
    )
    return kind(process, Peer(address, Security()), new_name())


def new_name() -> str:
    return f"{10**9 + secrets.randbelow(10**9)}"


@pytest.fixture
async def pool(tmp_path) -> AsyncIterator[Actors]:
    pool = await started(Actors, tmp_path)
    yield pool
    await pool.end()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def kept(tmp_path_factory) -> AsyncIterator[Actors]:
    """A pool that outlives what tests do to its workers."""
    pool = await started(Actors, tmp_path_factory.mktemp("kept"))
    yield pool
    await pool.end()


@pytest.mark.asyncio(loop_scope="module")
async def test_nothing_is_left_of_a_worker_however_it_ends(kept):
    pool = kept

    async def killed() -> None:
        os.kill(await pool.worker(), signal.SIGKILL)

    async def terminated() -> None:
        os.kill(await pool.worker(), signal.SIGTERM)

    for ended in (pool.drain, killed, terminated):
        await pool.play()
        await ended()
        await pool.until(lambda: not pool.left() and not pool.zombies())
    with pytest.raises(MarlessError, match="timeout_s"):
        await pool.play(hangs=True)
    await pool.until(lambda: not pool.left() and not pool.zombies())


@pytest.mark.parametrize("how", ["SIGKILL", *(pytest.param(each, marks=pytest.mark.slow) for each in OTHER_ENDS)])
async def test_nothing_is_left_of_a_learner_worker_however_it_ends(tmp_path, how):
    pool = await started(Learners, tmp_path, *(("--keep-alive-s", "3") if how == "it is idle" else ()))
    try:
        if how == "it hangs":
            with pytest.raises(MarlessError, match="timeout_s"):
                await pool.play(hangs=True)
        else:
            await pool.play()
        if how == "its pool is killed":
            pool.process.kill()
        elif how.startswith("SIG"):
            os.kill(await pool.worker(), signal.Signals[how])
        await pool.until(lambda: not pool.left() and not pool.zombies())
    finally:
        await pool.end()


@pytest.mark.parametrize("how", [pytest.param("SIGTERM", marks=pytest.mark.slow), "SIGKILL", "its command is killed"])
async def test_nothing_is_left_of_a_pool_however_it_ends(pool, how):
    await pool.play()
    worker = psutil.Process(await pool.worker())
    template = worker.parent()
    if how.startswith("SIG"):
        pool.process.send_signal(signal.Signals[how])
    else:
        pool.process.stdin.close()
    await pool.until(lambda: not pool.left() and not worker.is_running() and not template.is_running())


async def test_a_worker_that_hangs_while_its_pool_is_killed_is_ended_by_its_template(pool):
    await pool.play()
    worker = psutil.Process(await pool.worker())
    worker.suspend()
    pool.process.kill()
    async with asyncio.timeout(HUNG_S + GONE_S):
        while worker.is_running() or pool.left():  # noqa: ASYNC110  # processes tell nobody
            await asyncio.sleep(0.02)


async def test_nothing_is_left_once_another_pool_has_started(pool, tmp_path):
    await pool.play()
    worker = psutil.Process(await pool.worker())
    template = worker.parent()
    worker.suspend()  # it notices nothing, as in the native code of an environment that hangs
    template.suspend()
    pool.process.kill()
    await pool.process.wait()
    (tmp_path / "next").mkdir()
    following = await started(Actors, tmp_path / "next")
    try:
        await following.play()
        await pool.until(lambda: not pool.left() and not worker.is_running() and not template.is_running())
    finally:
        await following.end()


@pytest.mark.parametrize("how", [pytest.param("sleeping", marks=pytest.mark.slow), "locked"])
async def test_a_worker_started_by_hand_ends_by_itself_if_it_hangs_and_its_pool_is_gone(tmp_path, how):
    """It says where it hung. What its environment had started ends with the next worker on the machine."""
    tokens.made(tmp_path / "tokens")
    pool = await started(Actors, tmp_path, "--tokens", str(tmp_path / "tokens"), workers=0)
    pool.peer = Peer(f"unix:{tmp_path}/pool.sock", tokens.client(Role.SERVICE))
    worker = await by_hand(tmp_path)
    playing = asyncio.create_task(pool.play(hangs=how))
    try:
        async with asyncio.timeout(START_S):
            while len(await asyncio.to_thread(pool.left)) < STARTED:  # noqa: ASYNC110  # processes tell nobody
                await asyncio.sleep(0.02)
        pool.process.kill()
        async with asyncio.timeout(HANG_S + OVERDUE_S + GONE_S):
            assert await worker.wait() == 1
        assert len(pool.left()) == STARTED
        said = (tmp_path / "worker.log").read_text()
        assert "Timeout" in said
        assert "brood.py" in said
        following = await by_hand(tmp_path)
        try:
            await pool.until(lambda: len(pool.left()) <= 1)  # one has another environment, and its parent is gone
        finally:
            following.kill()
            await following.wait()
    finally:
        playing.cancel()
        await asyncio.wait([playing])
        with suppress(ProcessLookupError):
            worker.kill()
        await pool.end()


async def by_hand(place: Path) -> asyncio.subprocess.Process:
    with (place / "worker.log").open("ab") as log:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "marless.services.actor_pool.worker",
            "--pool",
            f"unix:{place}/pool.sock",
            "--param-store",
            "unix:/nowhere",
            "--tokens",
            str(place / "tokens"),
            stderr=log,
            env=os.environ | {"PYTHONPATH": str(WITNESS)},
        )


@pytest.mark.parametrize("how", ["SIGTERM", pytest.param("SIGKILL", marks=pytest.mark.slow)])
@pytest.mark.asyncio(loop_scope="module")
async def test_nothing_is_left_of_what_a_coordinator_has_looked_at(kept, tmp_path, how):
    """It has an environment made to know its spaces. Killed meanwhile, it leaves the rest to the next one."""
    pool = replace(kept, name=new_name())
    process, address = await coordinator(tmp_path)
    try:
        async with AsyncClient(address, token="", tls_ca="", contact_s=30.0) as client:
            await client.submit(brood(pool))
            await pool.until(lambda: not pool.left())  # while the coordinator goes on
            submitting = asyncio.create_task(client.submit(brood(pool, hangs=True), job="hangs"))
            await pool.until(lambda: len(pool.left()) >= STARTED)
            process.send_signal(signal.Signals[how])
            async with asyncio.timeout(GONE_S):
                await process.wait()
            unknown = 0
            if how == "SIGKILL":
                process, _ = await coordinator(tmp_path)
                unknown = 1  # it has another environment, and its parent is gone
            await pool.until(lambda: len(pool.left()) <= unknown)
            submitting.cancel()
            await asyncio.wait([submitting])
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def test_what_has_a_mark_within_that_of_this_process_ends_with_it():
    """A coordinator's examinations run in threads that it does not wait for when it is told to end."""
    program = (
        "import os, subprocess, sys; from marless.core import orphans\n"
        "with orphans.contained():\n"
        "    marks = os.environ | {orphans.MARK: orphans.new_mark_within()}\n"
        "    subprocess.run(['sh', '-c', f'setsid sleep {sys.argv[1]} & exec true'], env=marks, check=True)\n"
    )
    name = new_name()
    subprocess.run([sys.executable, "-c", program, name], check=True, timeout=60.0)
    assert not [each for each in psutil.process_iter(["cmdline"]) if name in (each.info["cmdline"] or ())]


def brood(pool: Pool, **options: object) -> dict[str, object]:
    return {
        "env": {"name": "brood", "options": {"name": pool.name, "early": True} | options},
        "algorithm": "ippo",
        "actors": {"episodes": "fresh"},
        "stop": {"rounds": 1},
    }


async def coordinator(place: Path) -> tuple[asyncio.subprocess.Process, str]:
    """One that reaches nobody."""
    address = f"unix:{place}/coordinator.sock"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "marless.services.coordinator",
        "--listen",
        address,
        "--runs",
        str(place / "runs"),
        *(word for name in ("actor-pool", "learner-pool", "param-store") for word in (f"--{name}", "unix:/nowhere")),
        stderr=asyncio.subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(WITNESS)},
    )
    return process, address


@pytest.mark.asyncio(loop_scope="module")
async def test_what_others_have_started_stays(kept):
    pool = replace(kept, name=new_name())
    await pool.play()
    others = await asyncio.create_subprocess_exec("sleep", pool.name, start_new_session=True)
    os.kill(await pool.worker(), signal.SIGKILL)
    await pool.until(lambda: [each.pid for each in pool.left()] == [others.pid])
    assert others.returncode is None
    others.kill()
    await others.wait()
