"""Learner workers on another host than their pool: they see none of its files, and reach the same weights, bit for bit.

The workers run in a mount namespace in which the pool's spool and /dev/shm are empty.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest
import pytest_asyncio

from marless.rpc.refs import Loans
from marless.services.learner_pool.tasks import LearnTasks
from tests.integration import elsewhere
from tests.integration.running import Cluster, created, go_on, outcome, restarted
from tests.integration.running import spec as spec_of
from tests.templates import Templates, shared_templates

pytestmark = pytest.mark.asyncio(loop_scope="module")
ELSEWHERE = str(Path(elsewhere.__path__[0]))
ENVIRONMENT = {"PYTHONPATH": ELSEWHERE, "ELSEWHERE": "/dev/shm"}
LEARNS = {"updates": 3, "batch": 16, "warmup": 20, "replay": {"capacity": 60}}
"""A replay that is full after three rounds, and drops rounds from then on."""
TWO_CLASSES = {"name": "mpe/simple_adversary", "options": {"max_cycles": 5}}
JOBS = {
    "ippo": {"env": TWO_CLASSES},
    "iql": {"algorithm": {"name": "iql", **LEARNS}, "env": TWO_CLASSES},
    "qmix": {"algorithm": {"name": "qmix", **LEARNS, "replay": {"capacity": 60, "draw": "prioritised"}}},
    "maddpg": {"algorithm": {"name": "maddpg", **LEARNS}, "env": TWO_CLASSES},
}
_serials = count()


def refused() -> str:
    """Why this machine gives a process no mount namespace; empty if it does."""
    done = subprocess.run(
        [sys.executable, "-c", "import sitecustomize; sitecustomize.move()"],
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr.strip().rpartition("\n")[2]


@asynccontextmanager
async def cluster(folder: Path, redis_url: str, templates: Templates) -> AsyncIterator[Cluster]:
    """Services whose workers come from these templates, and whose spool is a directory of its own."""
    made = Cluster(folder, redis_url, templates, spool=folder / "spool")
    await made.start()
    yield made
    await made.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(redis_url, tmp_path_factory, templates) -> AsyncIterator[Cluster]:
    """Services whose learner workers are on this host."""
    folder = tmp_path_factory.mktemp("here")
    (folder / "spool").mkdir()
    async with cluster(folder, redis_url, templates) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def apart(redis_url, tmp_path_factory) -> AsyncIterator[Cluster]:
    """Services whose learner workers are on another host."""
    if why := refused():
        pytest.skip(f"no mount namespace on this machine: {why}")
    folder = tmp_path_factory.mktemp("apart")
    (folder / "spool").mkdir()
    with shared_templates(PYTHONPATH=ELSEWHERE, ELSEWHERE=f"/dev/shm:{folder / 'spool'}") as moved:
        async with cluster(folder, redis_url, moved) as made:
            yield made


async def run(services: Cluster, place: Path, name: str) -> object:
    """Train the job of this name; returns all that it came to."""
    folder = created(place / f"{name}-{next(_serials)}", spec_of(**JOBS[name], stop={"rounds": 6}))
    done = await go_on(folder, services.pools)
    assert (done.status.state, done.status.reason) == ("SUCCEEDED", "6 rounds done")
    lost = [
        numbers["lost"]
        for record in folder.records()
        for state, numbers in record.metrics.items()
        if state.startswith("replay.")
    ]
    assert not any(lost)
    return outcome(folder)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def expected(here, tmp_path_factory) -> Callable[[str], Awaitable[object]]:
    """What the job of a name comes to on one host; each is trained when it is first asked for."""
    done: dict[str, object] = {}

    async def of(name: str) -> object:
        if name not in done:
            with pytest.MonkeyPatch.context() as patched:
                transfers = counted(patched)
                done[name] = await run(here, tmp_path_factory.mktemp(name), name)
            assert transfers == {"read": 0, "write": 0}, "on one host, files are mapped"
        return done[name]

    return of


def counted(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many pieces of files are read and written over gRPC from now on."""
    found = {"read": 0, "write": 0}
    read, write = Loans.read, Loans.write

    async def reading(loans, piece):
        found["read"] += 1
        async for frame in read(loans, piece):
            yield frame

    async def writing(loans, stream):
        await write(loans, stream)
        found["write"] += 1

    monkeypatch.setattr(Loans, "read", reading)
    monkeypatch.setattr(Loans, "write", writing)
    return found


def slow(*of_a_job: object) -> object:
    """What other tests of this file try with this job too."""
    return pytest.param(*of_a_job, marks=pytest.mark.slow)


@pytest.mark.parametrize("name", ["ippo", "iql", slow("qmix"), "maddpg"])
async def test_a_learner_on_another_host_reaches_the_same_weights(apart, expected, tmp_path, monkeypatch, name):
    there = await expected(name)
    transfers = counted(monkeypatch)
    assert await run(apart, tmp_path, name) == there
    scopes = 1 if name in ("qmix", "maddpg") else 2
    trajectories = 6 * 2 * scopes
    assert transfers["read"] >= trajectories
    assert transfers["write"] == (0 if name == "ippo" else 6 * scopes), "a round's frames are one piece"


def killing(services: Cluster, monkeypatch, pids: Callable[[], list[int]], at: int) -> list[int]:
    """Kills the learner worker in the middle of the piece of this number; returns who was killed."""
    killed, read, pieces = [], Loans.read, count(1)

    async def reading(loans, piece):
        frames = read(loans, piece)
        yield await anext(frames)
        if next(pieces) == at:
            killed.extend(pids())
            os.kill(killed[-1], signal.SIGKILL)
        async for frame in frames:
            yield frame

    monkeypatch.setattr(Loans, "read", reading)
    return killed


@pytest.fixture
def learners(monkeypatch) -> Callable[[], list[int]]:
    """The process ids of connected learner workers."""
    dispatchers, real = [], LearnTasks.run

    async def run(updates, *rest):
        dispatchers[:] = [updates._dispatcher]
        return await real(updates, *rest)

    monkeypatch.setattr(LearnTasks, "run", run)
    return lambda: [each.pid for each in dispatchers[0].workers()]


@pytest.mark.parametrize(("name", "at"), [("ippo", 5), slow("qmix", 7), ("maddpg", 11)])
async def test_a_worker_that_dies_while_it_fetches_changes_nothing(
    apart, expected, tmp_path, learners, monkeypatch, name, at
):
    there = await expected(name)
    killed = killing(apart, monkeypatch, learners, at)
    assert await run(apart, tmp_path, name) == there
    assert len(killed) == 1


@pytest.mark.parametrize("name", [slow("ippo"), "maddpg"])
async def test_a_pool_that_restarts_during_an_update_changes_nothing(apart, expected, tmp_path, monkeypatch, name):
    """The new pool has lost the trajectories, and still has the replay."""
    there, read, pieces = await expected(name), Loans.read, count(1)

    async def reading(loans, piece):
        if next(pieces) == 8:
            restarting.append(asyncio.create_task(restarted(apart, "learner_pool")()))
        async for frame in read(loans, piece):
            yield frame

    restarting: list[asyncio.Task[None]] = []
    monkeypatch.setattr(Loans, "read", reading)
    assert await run(apart, tmp_path, name) == there
    await restarting[0]


@pytest.mark.parametrize("name", [slow("ippo"), "qmix"])
async def test_pieces_that_are_damaged_on_their_way_are_sent_again(apart, expected, tmp_path, monkeypatch, name):
    there = await expected(name)
    transfers, read, pieces = counted(monkeypatch), Loans.read, count(1)

    async def reading(loans, piece):
        damaged = next(pieces) % 3 == 0
        async for frame in read(loans, piece):
            yield frame[:-1] + bytes([frame[-1] ^ 1]) if damaged else frame

    monkeypatch.setattr(Loans, "read", reading)
    assert await run(apart, tmp_path, name) == there
    assert transfers["read"] > 6 * 2
