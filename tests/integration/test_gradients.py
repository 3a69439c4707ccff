"""Gradients on demand, through real services and workers: what learners compute, once, whatever is lost meanwhile."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace

import pytest
import pytest_asyncio

from marless.core.errors import ConflictError, FencedError, NotFoundError, StaleError
from marless.core.group import Group
from marless.core.limits import MAX_COUNT
from marless.jobs.job import PreparedJob, prepare
from marless.learning.aggregation import gradient_file
from marless.learning.algos import registry as algorithms
from marless.learning.algos.learner import LearnerContext, RoundInput, Scope
from marless.learning.data.player import actor_seed
from marless.learning.data.rollout import rollout
from marless.learning.envs import registry
from marless.learning.nets import serial
from marless.learning.nets.acting import ActingPolicies
from marless.rpc import gradients
from marless.rpc.param_store import PolicyWrite
from marless.rpc.v1 import actor_pool_pb2, common_pb2, learner_pool_pb2
from marless.rpc.v1.learner_pool_pb2_grpc import LearnerPoolServiceStub
from marless.services.coordinator.execution.wire import groups_of
from marless.services.learner_pool.tasks import LearnTasks
from marless.storage.checkpoint import PARTS
from tests.integration.running import ENVS, STEPS, Cluster, spec

pytestmark = pytest.mark.asyncio(loop_scope="module")
_serials = count()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(redis_url, tmp_path_factory, templates) -> AsyncIterator[Cluster]:
    """Services with two learner workers."""
    each = Cluster(tmp_path_factory.mktemp("gradients"), redis_url, templates, learners=2)
    await each.start()
    yield each
    await each.close()


@pytest.fixture(autouse=True)
def _without_rounds(monkeypatch):
    """Jobs whose rollouts may be ahead of each other without bound."""
    monkeypatch.setattr("marless.services.learner_pool.updates.made", lambda _: SimpleNamespace(ahead=MAX_COUNT))


@dataclass
class Computed:
    """What this process's learner pool has given to workers."""

    names: list[str] = field(default_factory=list)
    dispatcher: object = None


@pytest.fixture
def computed(monkeypatch) -> Computed:
    seen, real = Computed(), LearnTasks._run_one

    async def run_one(tasks, task, verb, files):
        seen.dispatcher = tasks._dispatcher
        if verb == "gradient":
            seen.names.append(f"{task.gradient.learner}/{task.scope}")
        return await real(tasks, task, verb, files)

    monkeypatch.setattr(LearnTasks, "_run_one", run_one)
    return seen


@dataclass
class Opened:
    """A job as a coordinator holds it."""

    cluster: Cluster
    id: str
    job: PreparedJob
    epoch: int
    versions: dict[str, int]
    groups: Sequence[Group]

    async def sample(self, *rollouts: int) -> None:
        for number in rollouts:
            await self.cluster.pools.train(self.id, self.job, number, 1, self.groups, self.versions, epoch=self.epoch)

    def request(self, learner: int, *rollouts: int, **fields) -> learner_pool_pb2.GradientRequest:
        versions = fields.pop("versions", self.versions)
        return learner_pool_pb2.GradientRequest(
            job=self.id,
            epoch=self.epoch,
            learner=learner,
            rollouts=rollouts,
            groups=groups_of(self.groups, versions),
            versions=versions_of(versions),
            **fields,
        )

    async def gradient(self, learner: int, *rollouts: int, **fields) -> learner_pool_pb2.GradientResponse:
        peer = self.cluster.peers["learner_pool"]
        stub = LearnerPoolServiceStub(peer.channel)
        return await peer.call(stub.Gradient, self.request(learner, *rollouts, **fields), timeout_s=60.0)

    async def stored(self, learner: int, scope: int = 0) -> bytes:
        name = gradients.name_of(learner, scope)
        return bytes((await self.cluster.store.get(self.id, {name: 0}, (gradients.PART,)))[name].blobs[gradients.PART])

    async def states(self, versions: dict[str, int]):
        stored = await self.cluster.store.get(self.id, versions, PARTS)
        return {name: serial.decode(*(bytes(each.blobs[part]) for part in PARTS)) for name, each in stored.items()}

    async def publish(self, times: int) -> None:
        """Publish further versions of all policies, of equal weights."""
        for _ in range(times):
            stored = await self.cluster.store.get(self.id, self.versions, PARTS)
            writes = [
                PolicyWrite(name, version, f"{self.id}/{version}/{name}", stored[name].blobs)
                for name, version in self.versions.items()
            ]
            self.versions = await self.cluster.store.publish(self.id, self.epoch, 1, writes)

    async def taken_over(self, oldest: int = 0) -> None:
        """Another coordinator opens the job."""
        self.epoch = await self.cluster.store.acquire_epoch(self.id, f"{self.epoch + 1}")
        await self.cluster.pools.open_job(self.id, self.job, self.epoch, self.groups, round_=oldest)

    async def directly(self, learner: int, *rollouts: int, peers=(), env_steps: int = 0) -> bytes:
        """The gradient by plain function calls."""
        given, spaces = self.job.spec, self.job.spaces
        states, [agents] = await self.states(self.versions), spaces.classes
        env = registry.make(given.env.name, given.env.options, ENVS)
        acting = [ActingPolicies.from_states(agents, [states[agent] for agent in agents.agents])]
        seeds = [actor_seed(given.seed, actor_pool_pb2.ROLLOUT_MODE_TRAIN, number, 0) for number in rollouts]
        played = [rollout(env, acting, steps=STEPS, seed=seed, with_state=False)[0] for seed in seeds]
        made = algorithms.algorithm("ippo").learner(
            given.algorithm, LearnerContext(given.model, spaces, Scope(0, (0,), agents.name), "cpu")
        )
        for name, state in states.items():
            made.load(name, state)
        inputs = RoundInput(learner, env_steps, given.seed, self.groups, played, peers=peers)
        return gradient_file.encode(made.gradients(inputs).gradients)


async def until(reached: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not reached():  # noqa: ASYNC110  # what is waited for knows no events
            await asyncio.sleep(0.001)


def versions_of(versions: dict[str, int]) -> list[common_pb2.PolicyVersion]:
    return [common_pb2.PolicyVersion(policy=name, version=version) for name, version in versions.items()]


async def opened(cluster: Cluster, **changes) -> Opened:
    job_id, job = f"gradients-{next(_serials)}", prepare(spec(**changes))
    epoch = await cluster.store.acquire_epoch(job_id, "open")
    groups = job.sharing.decide(()).groups
    versions = await cluster.pools.open_job(job_id, job, epoch, groups, round_=0)
    return Opened(cluster, job_id, job, epoch, dict(versions), groups)


def spool(cluster: Cluster) -> list[str]:
    return [str(path) for path in cluster.folder.rglob("marless-spool-*/[0-9]*")]


async def test_a_gradient_is_the_one_that_a_learner_computes(cluster):
    job = await opened(cluster)
    await job.sample(0, 7, 3)
    answer = await job.gradient(5, 7, 3, env_steps=40, oldest=0)
    assert [(each.policy, each.version) for each in answer.gradients] == [("gradient/5/0", 1)]
    assert await job.stored(5) == await job.directly(5, 7, 3, env_steps=40)
    assert answer.metrics.keys() == {"agent_0", "agent_1"}
    assert {each.function for each in answer.invocations} == {"learner", "post_process", "critic", "policy"}
    assert {each.id for each in answer.invocations} >= {f"{job.id}/gradient-5/policy/agent_0"}
    assert len(spool(cluster)) == 1  # rollout 0 waits for another learner
    await job.gradient(6, 0, oldest=8)
    assert spool(cluster) == []
    assert job.versions == await cluster.pools.open_job(job.id, job.job, job.epoch, job.groups, round_=8)  # unchanged


async def test_a_request_that_is_repeated_computes_nothing(cluster, computed):
    job = await opened(cluster)
    await job.sample(0)
    first, second = await asyncio.gather(job.gradient(0, 0), job.gradient(0, 0))
    assert first == second
    late = await job.gradient(0, 0)
    assert (late.gradients, late.metrics) == (first.gradients, first.metrics)
    assert computed.names == ["0/0"]


async def test_learners_run_at_once_on_workers_of_their_own(cluster, computed):
    job = await opened(cluster)
    await job.sample(*range(6))
    answers = await asyncio.gather(*(job.gradient(number, number) for number in range(6)))
    assert [each.gradients[0].policy for each in answers] == [f"gradient/{number}/0" for number in range(6)]
    await until(lambda: len(computed.dispatcher.connected) == 2)
    assert [await job.stored(number) for number in range(6)] == [
        await job.directly(number, number) for number in range(6)
    ]


async def test_each_scope_has_a_gradient(cluster):
    job = await opened(cluster, env={"name": "mpe/simple_adversary", "options": {"max_cycles": STEPS}})
    await job.sample(4)
    answer = await job.gradient(1, 4)
    assert [each.policy for each in answer.gradients] == ["gradient/1/0", "gradient/1/1"]
    policies = [set(gradient_file.decode(await job.stored(1, scope))) for scope in (0, 1)]
    assert policies == [{"adversary_0"}, {"agent_0", "agent_1"}]
    assert answer.metrics.keys() == {"adversary_0", "agent_0", "agent_1"}


async def test_what_is_missing_is_named(cluster):
    job = await opened(cluster)
    await job.sample(1)
    with pytest.raises(StaleError, match=r"no trajectories of rollouts \[0, 2\]; run them again"):
        await job.gradient(0, 0, 1, 2)
    with pytest.raises(NotFoundError, match="agent_0"):
        await job.gradient(0, 1, versions={"agent_0": 77, "agent_1": 1})
    await job.publish(5)
    with pytest.raises(NotFoundError, match="agent_0"):  # pruned
        await job.gradient(0, 1, versions={"agent_0": 2, "agent_1": 2})
    assert len(spool(cluster)) == 1  # whoever asks for versions that are there gets its gradient
    await job.gradient(0, 1)
    await cluster.pools.close_job(job.id, epoch=job.epoch)
    with pytest.raises(NotFoundError, match="is not open in this learner pool"):
        await job.gradient(2, 1)


async def test_peers_limit_ratios_and_those_that_are_gone_are_left_out(cluster):
    algorithm = {"name": "ippo", "epochs": 1, "minibatches": 1, "truncation": "least"}
    job, other = await opened(cluster, algorithm=algorithm), await opened(cluster, seed=8)
    await job.sample(0)
    theirs = await cluster.store.get(other.id, other.versions, PARTS)
    writes = [PolicyWrite(name, 1, f"{job.id}/peer/{name}", theirs[name].blobs) for name in job.versions]
    await cluster.store.publish(job.id, job.epoch, 1, writes)
    alone, limited = await job.directly(3, 0), await job.states({"agent_0": 2, "agent_1": 2})
    weights = {name: state.acting for name, state in limited.items()}
    assert await job.directly(3, 0, peers=(weights,)) != alone
    some = await job.directly(3, 0, peers=({"agent_1": weights["agent_1"]},))
    sets = [learner_pool_pb2.VersionSet(versions=versions_of({"agent_0": 99, "agent_1": 2}))] * 2
    await job.gradient(3, 0, peers=sets)
    assert await job.stored(3) == some


async def test_another_gradient_of_the_same_learner_is_the_next_version(cluster):
    job = await opened(cluster)
    await job.sample(0, 1)
    assert (await job.gradient(0, 0)).gradients[0].version == 1
    assert (await job.gradient(0, 1)).gradients[0].version == 2
    assert await job.stored(0) == await job.directly(0, 1)


@pytest.fixture
def stuck(monkeypatch):
    """Learners begin gradients and do not end them; the epochs whose gradients were cancelled."""
    begun, ended, real = asyncio.Queue(), [], LearnTasks._run_one

    async def run_one(tasks, task, verb, files):
        if verb != "gradient":
            return await real(tasks, task, verb, files)
        begun.put_nowait(list(task.gradient.rollouts))
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(task.epoch)

    monkeypatch.setattr(LearnTasks, "_run_one", run_one)
    return SimpleNamespace(begun=begun, ended=ended)


async def test_a_job_that_is_closed_ends_its_gradients_whoever_waits_for_them(cluster, stuck):
    job = await opened(cluster)
    await job.sample(0, 1)
    waiting = [asyncio.create_task(job.gradient(*each)) for each in ((0, 0), (1, 1), (0, 0))]
    assert sorted([await stuck.begun.get(), await stuck.begun.get()]) == [[0], [1]]
    await cluster.pools.close_job(job.id, epoch=job.epoch)
    for each in waiting:
        with pytest.raises(NotFoundError, match="was closed while it computed its gradient"):
            await each
    assert stuck.ended == [job.epoch, job.epoch]
    assert (stuck.begun.empty(), spool(cluster)) == (True, [])


async def test_a_learner_that_is_asked_for_another_gradient_gives_up_the_first(cluster, stuck):
    job = await opened(cluster)
    await job.sample(0, 1)
    first = asyncio.create_task(job.gradient(0, 0))
    assert await stuck.begun.get() == [0]
    second = asyncio.create_task(job.gradient(0, 1))
    with pytest.raises(ConflictError, match="another gradient of learner 0 is asked for now"):
        await first
    assert (await stuck.begun.get(), stuck.ended) == ([1], [job.epoch])
    await cluster.pools.close_job(job.id, epoch=job.epoch)
    with pytest.raises(NotFoundError):
        await second


async def test_a_gradient_goes_on_without_its_caller(cluster, computed):
    job = await opened(cluster)
    await job.sample(0)
    asked = asyncio.create_task(job.gradient(0, 0))
    await until(lambda: computed.names)
    asked.cancel()
    assert (await job.gradient(0, 0)).gradients[0].version == 1
    assert computed.names == ["0/0"]


async def test_a_gradient_whose_worker_is_killed_is_computed_by_another(cluster, computed):
    job = await opened(cluster)
    await job.sample(0)
    workers = computed.dispatcher.workers
    pids = [each.pid for each in workers()]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    asked = asyncio.create_task(job.gradient(0, 0))
    await until(lambda: any(each.busy for each in workers()))
    [busy] = [each.pid for each in workers() if each.busy]
    os.kill(busy, signal.SIGKILL)
    for pid in set(pids) - {busy}:
        os.kill(pid, signal.SIGCONT)
    [learner] = [each for each in (await asked).invocations if each.function == "learner" and each.attempt == 2]
    assert learner.attempt == 2
    assert await job.stored(0) == await job.directly(0, 0)


async def test_the_next_coordinator_finds_the_gradient(cluster, computed):
    job = await opened(cluster)
    await job.sample(0, 1)
    first = await job.gradient(0, 0, oldest=1)
    await job.taken_over()  # from before the gradient
    found = await job.gradient(0, 0, oldest=1)
    assert (found.gradients, found.metrics, computed.names) == (first.gradients, first.metrics, ["0/0"])
    await job.taken_over()
    await job.sample(0)  # its trajectories are there again: a learner looks, and finds it
    again = await job.gradient(0, 0, oldest=1)
    assert (again.gradients, again.metrics, computed.names) == (first.gradients, first.metrics, ["0/0"] * 2)
    assert len(spool(cluster)) == 1


async def test_a_gradient_of_an_older_epoch_is_fenced_and_computed_for_the_next(cluster):
    job = await opened(cluster)
    await job.sample(0)
    await cluster.store.acquire_epoch(job.id, f"{job.epoch + 1}")
    with pytest.raises(FencedError, match=f"epoch {job.epoch} of job"):
        await job.gradient(0, 0)
    await job.taken_over()
    assert (await job.gradient(0, 0)).gradients[0].version == 1
    job.epoch -= 1
    with pytest.raises(FencedError, match="is over"):
        await job.gradient(1, 0)
