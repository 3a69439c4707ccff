"""Rollouts and updates that nobody wants any more are cancelled, and their workers, still good, take the next ones."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from marless.core.stopwatch import Stopwatch
from marless.fleet import dispatch
from marless.rpc.v1 import common_pb2
from marless.rpc.v1.actor_pool_pb2_grpc import ActorPoolServiceStub
from marless.services.coordinator.api.servicer import watch
from marless.services.coordinator.execution.interruptions import GRACE_S
from marless.services.coordinator.execution.service_pools import ServicePools
from marless.services.coordinator.jobs.jobs import Jobs, JobsOptions
from marless.services.coordinator.jobs.submission import IfExists, Submission
from marless.services.coordinator.state.run_folder import RunFolder
from tests.integration.running import ACTORS, STEPS, Cluster, created, go_on, outcome, ready, spec
from tests.templates import SCRIPTED

pytestmark = pytest.mark.asyncio(loop_scope="module")
PATIENCE_S = 30.0
LONG = {"name": "ippo", "epochs": 1000, "minibatches": 400}
"""An update of more than a minute, if nobody stops it."""
COMPUTED_S = 0.3


@pytest.fixture(scope="module")
def hold(tmp_path_factory) -> Path:
    """While this file is there, steps of environments take their time."""
    return tmp_path_factory.mktemp("hold") / "here"


@pytest.fixture
def scripted(monkeypatch) -> None:
    """Environments of these tests are known to the process that examines a job's environment, too."""
    monkeypatch.setenv("PYTHONPATH", str(SCRIPTED))


def waiting(hold: Path, *, hangs: bool = False, **changes: object) -> dict[str, object]:
    options = {"agents": 2, "max_cycles": STEPS, "hold": str(hold), "hangs": hangs}
    return {
        "env": {"name": "waiting", "options": options},
        "actors": {"count": ACTORS, "envs": 2, "steps": 500},
        "stop": {"rounds": 2},
    } | changes


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def undisturbed(cluster, hold, tmp_path_factory):
    folder = created(tmp_path_factory.mktemp("runs") / "undisturbed", spec(**waiting(hold)))
    assert (await go_on(folder, cluster.pools)).status.state == "SUCCEEDED"
    return outcome(folder)


async def workers(cluster: Cluster) -> list[common_pb2.WorkerInfo]:
    peer = cluster.peers["actor_pool"]
    asked = common_pb2.ListWorkersRequest()
    return list((await peer.call(ActorPoolServiceStub(peer.channel).ListWorkers, asked)).workers)


async def until(cluster: Cluster, condition: Callable[[list[common_pb2.WorkerInfo]], bool]) -> set[int]:
    """The workers' process ids once this is true of them."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition(found := await workers(cluster)):  # noqa: ASYNC110  # what is waited for knows no events
            await asyncio.sleep(0.01)
    return pids(found)


def pids(found: list[common_pb2.WorkerInfo]) -> set[int]:
    return {worker.pid for worker in found}


def all_busy(found: list[common_pb2.WorkerInfo]) -> bool:
    return len(found) == ACTORS and all(worker.busy for worker in found)


def all_idle(found: list[common_pb2.WorkerInfo]) -> bool:
    return len(found) == ACTORS and not any(worker.busy for worker in found)


def learner() -> psutil.Process:
    """The only learner worker; processes of earlier tests may be ending."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "marless.services.learner_pool.worker" in process.cmdline():
                found.append(process)
    [worker] = found
    return worker


async def computing(worker: psutil.Process) -> None:
    """Return once a worker has used some CPU time from now on."""
    until_s = worker.cpu_times().user + COMPUTED_S
    async with asyncio.timeout(PATIENCE_S):
        while worker.cpu_times().user < until_s:  # noqa: ASYNC110  # what is waited for knows no events
            await asyncio.sleep(0.01)


async def in_mid_update(folder: RunFolder) -> psutil.Process:
    """Wait for the first update of a job that is run; returns its worker."""
    async with asyncio.timeout(PATIENCE_S):
        while not folder.read_pending(0):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    worker = learner()
    await computing(worker)
    return worker


async def test_workers_outlive_a_coordinator_that_is_killed_in_mid_rollout(cluster, hold, undisturbed, tmp_path):
    """Red before: both workers were killed. What they run next is not changed by what they did not finish."""
    folder = created(tmp_path / "killed", spec(**waiting(hold)))
    others, before = await until(cluster, all_idle), set()
    for _ in range(2):
        hold.touch()
        run = asyncio.create_task(ready(folder, cluster.pools).run())
        before = before or await until(cluster, lambda found: all_busy(found) and others.isdisjoint(pids(found)))
        assert await until(cluster, all_busy) == before
        run.cancel()
        await asyncio.wait([run])
        assert await until(cluster, all_idle) == before
    hold.unlink()
    assert (await go_on(folder, cluster.pools)).status.state == "SUCCEEDED"
    assert outcome(folder) == undisturbed
    assert await until(cluster, all_idle) == before


async def test_workers_outlive_a_job_that_is_replaced(cluster, hold, undisturbed, scripted, tmp_path):
    others = await until(cluster, all_idle)
    hold.touch()
    async with Jobs(tmp_path, cluster.pools, JobsOptions(lease_s=1.0)) as jobs:
        await jobs.submit(Submission(job="a", spec_json=spec(**waiting(hold, seed=8)).to_json(), request_id="1"))
        before = await until(cluster, lambda found: all_busy(found) and others.isdisjoint(pids(found)))
        other = spec(**waiting(hold)).to_json()
        await jobs.submit(Submission(job="a", spec_json=other, request_id="2", if_exists=IfExists.REPLACE))
        hold.unlink()
        async with asyncio.timeout(PATIENCE_S):
            [*_, last] = [event async for event in watch(jobs, "a", 0)]
        assert last.view.status.state == "SUCCEEDED"
        assert outcome(jobs.folder("a")) == undisturbed
    assert await until(cluster, all_idle) == before


async def test_a_worker_whose_environment_hangs_is_replaced_within_the_grace(cluster, hold, tmp_path, monkeypatch):
    monkeypatch.setattr(dispatch, "CANCEL_GRACE_S", 0.3)
    folder = created(tmp_path / "hung", spec(**waiting(hold, hangs=True)))
    hold.touch()
    run = asyncio.create_task(ready(folder, cluster.pools).run())
    before = await until(cluster, all_busy)
    await until(cluster, lambda _: all(hold.with_name(f"{pid}.hangs").exists() for pid in before))
    run.cancel()
    await asyncio.wait([run])
    after = await until(cluster, lambda found: all_idle(found) and before.isdisjoint(pids(found)))
    hold.unlink()
    assert (await go_on(folder, cluster.pools)).status.state == "SUCCEEDED"
    assert await until(cluster, all_idle) == after


async def test_an_update_outlives_its_coordinator_but_not_its_job(cluster, hold, undisturbed, tmp_path):
    """Red before: the worker was killed five seconds after its job was closed. The next job finds it warm."""
    folder = created(tmp_path / "closed", spec(**waiting(hold, algorithm=LONG)))
    run = asyncio.create_task(ready(folder, cluster.pools).run())
    worker = await in_mid_update(folder)
    versions = await cluster.store.list("closed")
    run.cancel()
    await asyncio.wait([run])
    await computing(worker)  # for the next coordinator
    await cluster.pools.close_job("closed")
    folder = created(tmp_path / "next", spec(**waiting(hold)))
    async with asyncio.timeout(PATIENCE_S):
        assert (await go_on(folder, cluster.pools)).status.state == "SUCCEEDED"
    assert outcome(folder) == undisturbed
    assert learner() == worker
    billed = [each for record in folder.records() for each in record.invocations if each.function == "learner"]
    assert billed
    assert not any(each.cold for each in billed)
    assert await cluster.store.list("closed") == versions  # nothing was published


async def test_a_learner_worker_outlives_a_job_that_is_replaced(cluster, hold, undisturbed, scripted, tmp_path):
    async with Jobs(tmp_path, cluster.pools, JobsOptions(lease_s=1.0)) as jobs:
        long = spec(**waiting(hold, algorithm=LONG)).to_json()
        await jobs.submit(Submission(job="a", spec_json=long, request_id="1"))
        worker = await in_mid_update(jobs.folder("a"))
        other = spec(**waiting(hold)).to_json()
        await jobs.submit(Submission(job="a", spec_json=other, request_id="2", if_exists=IfExists.REPLACE))
        async with asyncio.timeout(PATIENCE_S):
            [*_, last] = [event async for event in watch(jobs, "a", 0)]
        assert last.view.status.state == "SUCCEEDED"
        assert outcome(jobs.folder("a")) == undisturbed
    assert learner() == worker


async def test_a_cancelled_job_ends_within_seconds_of_the_present_step(cluster, hold, tmp_path):
    """Without the abandoning, the round would go on for its 500 held-up steps."""
    folder = created(tmp_path / "cancelled", spec(**waiting(hold)))
    hold.touch()
    run = ready(folder, cluster.pools)
    task = asyncio.create_task(run.run())
    before = await until(cluster, all_busy)
    asked = Stopwatch.start()
    run.cancel()
    await task
    assert asked.seconds < GRACE_S + 3.0
    hold.unlink()
    assert (run.status.state, run.status.reason) == ("CANCELLED", "cancelled by its user")
    assert await until(cluster, all_idle) == before


async def test_a_round_whose_evaluation_is_abandoned_is_recorded_without_it(cluster, hold, tmp_path, monkeypatch):
    folder, real = created(tmp_path / "unevaluated", spec(**waiting(hold))), ServicePools.evaluate
    run = ready(folder, cluster.pools)

    async def evaluate(pools: ServicePools, *args: object, **options: object) -> object:
        hold.touch()
        run.cancel()
        return await real(pools, *args, **options)

    monkeypatch.setattr(ServicePools, "evaluate", evaluate)
    monkeypatch.setattr("marless.services.coordinator.execution.interruptions.GRACE_S", 0.05)
    await run.run()
    hold.unlink()
    assert run.status.state == "CANCELLED"
    assert [(record.round, record.evaluations) for record in folder.records()] == [(0, ()), (1, ())]
    assert folder.checkpoints.rounds() == (2,)
