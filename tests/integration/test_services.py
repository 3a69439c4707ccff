"""Pools, store and coordinator wired as `marless train` wires them, with real workers, on jobs of a few env steps."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from marless.core.errors import ConflictError, FencedError, NotFoundError, SpecError, StaleError, UnavailableError
from marless.core.group import Group
from marless.core.settings import Measure
from marless.jobs import spec as specs
from marless.jobs.job import PreparedJob, prepare
from marless.learning.algos import registry as algorithms
from marless.learning.algos.learner import LearnerContext, RoundInput, Scope
from marless.learning.data.player import actor_seed
from marless.learning.data.returns import EpisodeReturns, returns_of
from marless.learning.data.rollout import play, rollout
from marless.learning.envs import registry
from marless.learning.nets import serial
from marless.learning.nets.acting import ActingPolicies
from marless.rpc.client import Peer
from marless.rpc.param_store import ParamStore, PolicyWrite
from marless.rpc.security import Security
from marless.rpc.server import ServerOptions, serving
from marless.rpc.v1 import actor_pool_pb2, common_pb2
from marless.rpc.v1.actor_pool_pb2_grpc import ActorPoolServiceStub
from marless.services.actor_pool import __main__ as actor_pool
from marless.services.actor_pool.__main__ import ActorPoolConfig
from marless.services.coordinator.execution.service_pools import ServicePools
from marless.services.learner_pool import __main__ as learner_pool
from marless.services.learner_pool.config import LearnerPoolConfig
from marless.services.learner_pool.tasks import LearnTasks
from marless.services.learner_pool.updates import Updates
from marless.services.param_store import __main__ as param_store
from marless.services.param_store.__main__ import ParamStoreConfig
from marless.services.param_store.redis_server import RedisOptions

pytestmark = pytest.mark.asyncio(loop_scope="module")
ENVS, STEPS, ACTORS = 2, 5, 2
DOCUMENT = {
    "seed": 3,
    "env": {"name": "mpe/simple_spread", "options": {"agents": 2, "max_cycles": STEPS}},
    "algorithm": {"name": "ippo", "epochs": 1, "minibatches": 2},
    "model": {"hidden": [8]},
    "actors": {"count": ACTORS, "envs": ENVS, "steps": STEPS},
    "evaluation": {"every": 0, "episodes": 7, "random_episodes": 5},
    "checkpoint": {"every": 0, "keep": 1},
    "stop": {"rounds": 2},
}


def spec(**changes) -> specs.JobSpec:
    return specs.parse(DOCUMENT | changes, "spec")


@dataclass(frozen=True)
class Cluster:
    pools: ServicePools
    store: ParamStore
    actors: Peer
    spool: Path

    async def scale(self, workers: int) -> list[str]:
        stub = ActorPoolServiceStub(self.actors.channel)
        reply = await self.actors.call(stub.Scale, actor_pool_pb2.ScaleRequest(workers=workers))
        return sorted(info.worker for info in reply.workers)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(redis_url, tmp_path_factory, templates) -> AsyncIterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    async with AsyncExitStack() as stack:

        def options(name: str) -> ServerOptions:
            return ServerOptions(f"unix:{folder}/{name}.sock", Security())

        store_config = ParamStoreConfig(options("store"), RedisOptions(url=redis_url), keep=3, intake_bytes=2**26)
        store = await stack.enter_async_context(
            serving(store_config.server, lambda at: param_store.build(store_config, at))
        )
        learner_config = LearnerPoolConfig(
            options("learners"), store, workers=1, threads=1, warm=1, keep_alive_s=600, spool=folder, spool_bytes=2**26
        )
        learners = await stack.enter_async_context(
            serving(
                learner_config.server, lambda at: learner_pool.build(learner_config, at, templates.learner_launcher)
            )
        )
        actor_config = ActorPoolConfig(options("actors"), store, workers=2, warm=1, keep_alive_s=600)
        actors = await stack.enter_async_context(
            serving(actor_config.server, lambda at: actor_pool.build(actor_config, at, templates.actor_launcher))
        )
        peers = [Peer(address, Security()) for address in (actors, learners, store)]
        client = ParamStore(peers[2], patience_s=0.0)
        yield Cluster(ServicePools(peers[0], peers[1], client), client, peers[0], folder)
        for peer in peers:
            await peer.close()


@dataclass
class Opened:
    """A job as the coordinator holds it."""

    cluster: Cluster
    id: str
    job: PreparedJob
    epoch: int
    versions: dict[str, int]

    groups: Sequence[Group]

    async def train(self, round_: int):
        return await self.cluster.pools.train(
            self.id, self.job, round_, ACTORS, self.groups, self.versions, epoch=self.epoch
        )

    async def update(self, round_: int, actors: int = ACTORS):
        return await self.cluster.pools.update(
            self.id,
            round_=round_,
            epoch=self.epoch,
            env_steps=round_ * ACTORS * ENVS * STEPS,
            actors=actors,
            groups=self.groups,
            versions=self.versions,
            measure=Measure(),
        )

    async def round(self, round_: int) -> None:
        await self.train(round_)
        self.versions |= (await self.update(round_)).versions

    async def weights(self) -> dict[str, tuple[bytes, bytes]]:
        stored = await self.cluster.store.get(self.id, self.versions, ("acting", "learning"))
        return {name: (bytes(each.blobs["acting"]), bytes(each.blobs["learning"])) for name, each in stored.items()}


_serials = count()


async def opened(cluster: Cluster, **changes) -> Opened:
    job_id, job = f"services-{next(_serials)}", prepare(spec(**changes))
    epoch = await cluster.store.acquire_epoch(job_id, "open")
    versions = await cluster.pools.open_job(job_id, job, epoch, job.sharing.decide(()).groups, round_=0)
    return Opened(cluster, job_id, job, epoch, dict(versions), job.sharing.decide(()).groups)


async def test_a_round_goes_from_actors_through_intake_and_learners_into_the_store(cluster):
    job = await opened(cluster)
    assert job.versions == {"agent_0": 1, "agent_1": 1}
    before = await job.weights()
    played = await job.train(0)
    assert played.env_steps == ACTORS * ENVS * STEPS
    assert played.returns.episodes == ACTORS * ENVS
    assert [(each.function, each.index, each.attempt) for each in played.invocations] == [
        ("actor", 0, 1),
        ("actor", 1, 1),
    ]
    update = await job.update(0)
    assert update.versions == {"agent_0": 2, "agent_1": 2}
    assert {"approx_kl", "entropy", "explained_variance"} <= update.metrics["agent_0"].keys()
    assert {each.function for each in update.invocations} == {"learner", "post_process", "critic", "policy"}
    job.versions |= update.versions
    after = await job.weights()
    assert all(before[name] != after[name] for name in before)
    assert list(cluster.spool.glob("marless-spool-*/[0-9]*")) == []  # what was used has gone
    await cluster.pools.close_job(job.id)


async def test_services_compute_what_one_process_computes(cluster):
    """The same round by plain function calls, trajectories ordered by actor: equal to the last bit."""
    job = await opened(cluster)
    states = {name: serial.decode(*parts) for name, parts in (await job.weights()).items()}
    await job.round(0)
    given, spaces = job.job.spec, job.job.spaces
    [agents] = spaces.classes
    env = registry.make(given.env.name, given.env.options, ENVS)
    policies = [ActingPolicies.from_states(agents, [states[agent] for agent in agents.agents])]
    seeds = [actor_seed(given.seed, actor_pool_pb2.ROLLOUT_MODE_TRAIN, 0, index) for index in range(ACTORS)]
    played = [rollout(env, policies, steps=STEPS, seed=seed, with_state=False)[0] for seed in seeds]
    learner = algorithms.algorithm("ippo").learner(
        given.algorithm, LearnerContext(given.model, spaces, Scope(0, (0,), agents.name), "cpu")
    )
    for each, state in states.items():
        learner.load(each, state)
    learner.update(RoundInput(0, 0, given.seed, job.groups, played))
    assert await job.weights() == {each: serial.encode(learner.state(each)) for each in states}


async def test_requests_that_are_repeated_change_nothing(cluster):
    job = await opened(cluster)
    await job.train(0)
    assert (await job.train(0)).env_steps == ACTORS * ENVS * STEPS  # its uploads were there already
    first = await job.update(0)
    assert await job.update(0) == first
    listing = await cluster.store.list(job.id)
    assert {name: held.head.version for name, held in listing.policies.items()} == {"agent_0": 2, "agent_1": 2}
    again = await cluster.pools.open_job(job.id, job.job, job.epoch, job.groups, round_=1)
    assert again == {"agent_0": 2, "agent_1": 2}


async def test_what_has_passed_and_what_is_missing_is_refused_by_name(cluster):
    job = await opened(cluster)
    with pytest.raises(StaleError, match=r"round 1: no trajectory of actors \[0, 1\]"):
        await job.update(0)
    await job.train(0)
    with pytest.raises(StaleError, match=r"no trajectory of actors \[2\]"):
        await job.update(0, actors=3)
    await job.update(0)
    assert (await job.train(0)).env_steps == ACTORS * ENVS * STEPS  # whose trajectories nobody needs any more
    job.versions["agent_0"] = 77
    with pytest.raises(NotFoundError, match="agent_0"):
        await job.train(1)
    await cluster.pools.close_job(job.id)
    with pytest.raises(NotFoundError, match="is not open in this learner pool"):
        await job.update(1)


@pytest.fixture
def updated(monkeypatch) -> list[int]:
    """The rounds of the updates that learners were given."""
    rounds, real = [], LearnTasks._run_one

    async def run_one(updates, task, verb, files):
        if verb == "update":
            rounds.append(task.round)
        return await real(updates, task, verb, files)

    monkeypatch.setattr(LearnTasks, "_run_one", run_one)
    return rounds


async def taken_over(job: Opened, round_: int) -> None:
    """Another coordinator opens the job."""
    job.epoch = await job.cluster.store.acquire_epoch(job.id, f"{job.epoch + 1}")
    await job.cluster.pools.open_job(job.id, job.job, job.epoch, job.groups, round_=round_)


async def undisturbed(cluster, **changes) -> dict[str, tuple[bytes, bytes]]:
    job = await opened(cluster, **changes)
    await job.round(0)
    return await job.weights()


def spool(cluster: Cluster) -> list[str]:
    return [str(path) for path in cluster.spool.rglob("marless-spool-*/[0-9]*")]


async def test_an_update_of_an_older_epoch_is_fenced_and_the_next_coordinator_has_it_published(cluster, updated):
    whole = await undisturbed(cluster)
    job = await opened(cluster)
    await job.train(0)
    newer = await cluster.store.acquire_epoch(job.id, f"{job.epoch + 1}")
    with pytest.raises(FencedError, match=f"epoch {job.epoch} of job '{job.id}' is over"):
        await job.update(0)
    assert (await cluster.store.list(job.id)).policies["agent_0"].head.version == 1
    await taken_over(job, 0)
    assert job.epoch == newer
    update = await job.update(0)
    assert {"learner", "post_process", "critic", "policy"} == {each.function for each in update.invocations}
    job.versions |= update.versions
    assert await job.weights() == whole
    assert updated == [0, 0]  # the other job's, and this one's
    assert spool(cluster) == []
    old = dataclasses.replace(job, epoch=job.epoch - 1)
    for late in (  # of whom it replaced
        old.update(1),
        cluster.pools.close_job(job.id, epoch=old.epoch),
        cluster.pools.open_job(job.id, job.job, old.epoch, job.groups, round_=1),
    ):
        with pytest.raises(FencedError, match=f"epoch {old.epoch} of job {job.id} is over: epoch {job.epoch} has"):
            await late
    assert (await old.train(1)).env_steps == ACTORS * ENVS * STEPS  # its actors end quietly
    with pytest.raises(StaleError, match=r"round 2: no trajectory of actors \[0, 1\]"):  # and nothing of theirs is used
        await job.update(1)
    await job.round(1)


async def test_a_job_that_is_closed_ends_its_update_whoever_waits_for_it(cluster, monkeypatch):
    job, begun, ended = await opened(cluster), asyncio.Queue(), []
    await job.train(0)
    once, run_one = Updates._once, LearnTasks._run_one

    async def noted(updates, known, request, before):
        if before:
            begun.put_nowait("waits")
        return await once(updates, known, request, before)

    async def stuck(updates, task, verb, files):
        if verb != "update":
            return await run_one(updates, task, verb, files)
        begun.put_nowait("runs")
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(task.epoch)

    monkeypatch.setattr(Updates, "_once", noted)
    monkeypatch.setattr(LearnTasks, "_run_one", stuck)
    first = asyncio.create_task(job.update(0))
    assert await begun.get() == "runs"
    await taken_over(job, 0)
    second = asyncio.create_task(job.update(0))
    assert await begun.get() == "waits"
    await cluster.pools.close_job(job.id, epoch=job.epoch)
    for waiting in (first, second):
        with pytest.raises(NotFoundError, match="was closed while it computed its update"):
            await waiting
    assert ended == [job.epoch - 1]


async def test_a_coordinator_that_decides_otherwise_has_it_computed_again(cluster, updated):
    job = await opened(cluster)
    await job.train(0)
    await cluster.store.acquire_epoch(job.id, f"{job.epoch + 1}")
    with pytest.raises(FencedError):
        await job.update(0)
    await taken_over(job, 0)
    other = dataclasses.replace(job, groups=(Group("agent_0", ("agent_0", "agent_1")),))
    assert (await other.update(0)).versions == {"agent_0": 2}
    assert updated == [0, 0]
    assert spool(cluster) == []
    await taken_over(job, 0)
    with pytest.raises(ConflictError, match="round 1 was published for other groups"):
        await job.update(0)


async def test_an_answer_whose_versions_the_store_has_lost_is_not_given_again(cluster, updated):
    """As after a checkpoint was put back: the round is sampled and trained again."""
    whole = await undisturbed(cluster)
    job = await opened(cluster)
    before = await cluster.store.get(job.id, job.versions, ("acting", "learning"))
    await job.train(0)
    assert (await job.update(0)).versions == {"agent_0": 2, "agent_1": 2}
    await cluster.store.delete_job(job.id)
    epoch = await cluster.store.acquire_epoch(job.id, "restores")
    writes = [PolicyWrite(name, 0, f"restored/{name}", stored.blobs, 1) for name, stored in before.items()]
    await cluster.store.publish(job.id, epoch, 0, writes)
    await taken_over(job, 0)
    with pytest.raises(StaleError, match="no trajectory"):
        await job.update(0)
    await job.round(0)
    assert await job.weights() == whole
    assert updated == [0, 0, 0]


async def test_a_learner_that_takes_too_long_is_not_tried_for_ever(cluster):
    with pytest.raises(UnavailableError, match=r"/open/0 took longer than learner.timeout_s = 0.0001 s on each of 2"):
        await opened(cluster, learner={"timeout_s": 0.0001})


async def test_a_bad_environment_is_the_callers_mistake(cluster):
    job = await opened(cluster)
    bad = dataclasses.replace(job.job, spec=spec(env={"name": "mpe/simple_spred"}))
    with pytest.raises(SpecError, match="did you mean 'mpe/simple_spread'"):
        await cluster.pools.play_randomly(job.id, bad, 0, 1)


async def test_weights_depend_on_the_seed_and_not_on_the_number_of_workers(cluster):
    trained = []
    for workers, seed in ((1, 3), (2, 3), (2, 4)):
        assert len(await cluster.scale(workers)) == workers
        job = await opened(cluster, seed=seed, algorithm={"name": "mappo", "epochs": 1, "minibatches": 2})
        for round_ in range(2):
            await job.round(round_)
        trained.append(await job.weights())
    assert trained[0].keys() > {"agent_0", "agent_1"}  # the joint critic as well
    assert trained[0] == trained[1]
    assert trained[0] != trained[2]


async def test_scale_and_list_workers(cluster):
    stub = ActorPoolServiceStub(cluster.actors.channel)

    async def listed() -> list[str]:
        reply = await cluster.actors.call(stub.ListWorkers, common_pb2.ListWorkersRequest())
        assert all(info.pid > 0 and not info.busy for info in reply.workers)
        assert reply.queued == 0
        return sorted(info.worker for info in reply.workers)

    for workers in (2, 0, 1):
        names = await cluster.scale(workers)
        assert len(names) == workers
        assert await listed() == names
    with pytest.raises(SpecError, match="3 workers asked for; this pool has 0 to 2"):
        await cluster.scale(3)


def by_hand(job: PreparedJob, batch: int, episodes: int) -> EpisodeReturns:
    """What random play scores, by the environment itself."""
    env = registry.make(job.spec.env.name, job.spec.env.options, min(ENVS, episodes))
    seed = actor_seed(job.spec.seed, actor_pool_pb2.ROLLOUT_MODE_RANDOM, batch, 0)
    return returns_of([play(env, None, episodes=episodes, seed=seed)])


def weights(pid: int) -> set[int]:
    """Nice values of a process, and of its session where the system weighs sessions: those outweigh the former."""
    group = Path(f"/proc/{pid}/autogroup")
    return {psutil.Process(pid).nice(), *([int(group.read_text().split()[-1])] if group.exists() else [])}


async def test_a_batch_of_the_random_baseline_comes_to_the_same_wherever_it_is_played(cluster):
    """In the background it takes no worker of the pool's, and gives way to all other processes."""
    job = prepare(spec())
    await cluster.scale(0)
    played = await cluster.pools.play_randomly("baseline", job, 1, 5)
    [worker] = [each for each in psutil.Process().children(recursive=True) if "--background" in each.cmdline()]
    assert weights(worker.pid) == {19}
    assert await cluster.scale(0) == []
    again = await cluster.pools.play_randomly("baseline", job, 1, 5, background=False)
    assert returns_of([played.sums]) == returns_of([again.sums]) == by_hand(job, 1, 5)
    assert played.played_s > 0


@pytest.mark.parametrize("episodes", [1, 2, 7, 20])
async def test_evaluation_episodes_are_counted_exactly(cluster, episodes):
    job = await opened(cluster, evaluation={"every": 0, "episodes": episodes, "random_episodes": 1})
    played = await cluster.pools.evaluate(job.id, job.job, 0, job.groups, job.versions, epoch=job.epoch)
    again = await cluster.pools.evaluate(job.id, job.job, 0, job.groups, job.versions, epoch=job.epoch)
    assert played.returns.episodes == episodes
    assert played.returns == again.returns
    assert {each.function for each in played.invocations} == {"evaluation"}
