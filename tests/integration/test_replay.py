"""What becomes of a job's replay in each case that docs/algorithms.md names, through real services."""

import shutil
from collections.abc import AsyncIterator
from itertools import count

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from marless.services.coordinator.state.run_folder import RunFolder
from tests.integration.running import Cluster, created, go_on, outcome, running, spec

pytestmark = pytest.mark.asyncio(loop_scope="module")
CAPACITY = 70
"""Frames: a round has 20 env steps in 4 episodes, 24 frames, so two rounds and most of a third."""
LEARNS = {"name": "iql", "updates": 2, "batch": 8, "warmup": 20, "replay": {"capacity": CAPACITY}}
_serials = count()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(redis_url, tmp_path_factory, templates) -> AsyncIterator[Cluster]:
    async for each in running(tmp_path_factory.mktemp("cluster"), redis_url, templates):
        yield each


def new(tmp_path, *, capacity: int = CAPACITY, **changes) -> RunFolder:
    algorithm = LEARNS | {"replay": {"capacity": capacity}}
    return created(tmp_path / f"replay-{next(_serials)}", spec(algorithm=algorithm, **changes))


async def run_of(cluster, folder):
    run = await go_on(folder, cluster.pools)
    assert run.status.state == "SUCCEEDED", run.status.reason
    return run


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def undisturbed(cluster, tmp_path_factory):
    folder = new(tmp_path_factory.mktemp("runs"))
    await run_of(cluster, folder)
    return outcome(folder)


def files(cluster: Cluster) -> list[str]:
    return sorted(path.name for path in cluster.folder.glob("marless-replay-*/*"))


def counters(folder: RunFolder, name: str) -> list[float]:
    return [record.metrics["replay.agent"][name] for record in folder.records()]


async def test_counters_are_those_of_what_was_sampled_and_the_file_goes_with_the_job(cluster, tmp_path):
    folder, seen = new(tmp_path), []
    run_update = type(cluster.pools).update

    async def update(pools, *args, **kwargs):
        seen.append(files(cluster))
        return await run_update(pools, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(cluster.pools), "update", update)
        await run_of(cluster, folder)
    assert seen == [[f"{folder.path.name}@agent"]] * 5
    assert files(cluster) == []
    assert counters(folder, "inserted") == [20, 40, 60, 80, 100]
    assert counters(folder, "size") == [20, 40, 40, 40, 40]
    assert counters(folder, "dropped") == [0, 0, 20, 40, 60]
    assert counters(folder, "drawn") == [16, 32, 48, 64, 80]
    assert counters(folder, "lost") == [0] * 5


async def test_what_is_lost_is_said_counted_and_sampled_anew(cluster, undisturbed, tmp_path, after):
    """As when the host was rebooted, or the job goes on at another one."""
    folder = new(tmp_path)

    async def reboot() -> None:
        await cluster.stop("learner_pool")
        for directory in cluster.folder.glob("marless-replay-*"):
            shutil.rmtree(directory)
        await cluster.start("learner_pool")

    after("train", 3, reboot)
    with capture_logs() as logs:
        await run_of(cluster, folder)
    assert counters(folder, "lost") == [0, 0, 0, 20, 20]  # of two rounds, one makes room for the next
    assert counters(folder, "size") == [20, 40, 40, 20, 40]
    assert counters(folder, "inserted") == [20, 40, 60, 80, 100]
    [warning] = [entry for entry in logs if entry["event"] == "replay.lost"]
    assert (warning["job"], warning["scope"], warning["lost"]) == (folder.path.name, "agent", 20)
    assert [record[:3] for record in outcome(folder)[0]] == [record[:3] for record in undisturbed[0]]


async def test_a_job_that_starts_from_a_checkpoint_remembers_nothing(cluster, tmp_path):
    first = new(tmp_path)
    await run_of(cluster, first)
    folder = new(tmp_path, start={"checkpoint": str(first.path)})
    await run_of(cluster, folder)
    assert counters(folder, "inserted") == [20, 40, 60, 80, 100]
    assert counters(folder, "lost") == [0] * 5


async def test_a_job_that_goes_on_after_its_end_fills_it_again(cluster, tmp_path):
    folder = new(tmp_path, stop={"rounds": 3})
    await run_of(cluster, folder)
    assert folder.own()
    folder.write_spec(spec(algorithm=LEARNS))
    await run_of(cluster, folder)
    assert counters(folder, "size") == [20, 40, 40, 20, 40]
    assert counters(folder, "lost")[-1] == 20


async def test_a_replay_beyond_the_spool_is_refused_before_anything_is_sampled(cluster, tmp_path):
    folder = new(tmp_path, capacity=2_000_000)
    run = await go_on(folder, cluster.pools)
    assert run.status.state == "FAILED"
    assert "the replay of agent takes" in run.status.reason
    assert "lower algorithm.replay.capacity, or raise --spool-bytes" in run.status.reason
    assert list(folder.records()) == []
