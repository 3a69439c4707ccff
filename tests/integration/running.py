"""Services that tests start and stop one by one, and a job's run without the coordinator's other parts around it."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from marless.jobs import spec as specs
from marless.jobs.asynchronous_run import replayed
from marless.jobs.job import prepare
from marless.jobs.record import Evaluation, RoundRecord
from marless.rpc.client import Peer
from marless.rpc.param_store import ParamStore
from marless.rpc.security import Security
from marless.rpc.server import ServerOptions, serving
from marless.services.actor_pool import __main__ as actor_pool
from marless.services.actor_pool.__main__ import ActorPoolConfig
from marless.services.coordinator.execution.job_run import JobRun
from marless.services.coordinator.execution.pools import Pools
from marless.services.coordinator.execution.service_pools import ServicePools
from marless.services.coordinator.state.job_log import JobLog
from marless.services.coordinator.state.run_folder import RunFolder
from marless.services.coordinator.state.status import JobStatus
from marless.services.learner_pool import __main__ as learner_pool
from marless.services.learner_pool.config import LearnerPoolConfig
from marless.services.param_store import __main__ as param_store
from marless.services.param_store.__main__ import ParamStoreConfig
from marless.services.param_store.redis_server import RedisOptions
from marless.storage.checkpoint import newest
from tests.templates import SCRIPTED, Templates, shared_templates

ENVS, STEPS, ACTORS = 2, 5, 2
DOCUMENT: dict[str, Any] = {
    "seed": 3,
    "env": {"name": "mpe/simple_spread", "options": {"agents": 2, "max_cycles": STEPS}},
    "algorithm": {"name": "ippo", "epochs": 1, "minibatches": 2},
    "model": {"hidden": [8]},
    "actors": {"count": ACTORS, "envs": ENVS, "steps": STEPS},
    "evaluation": {"every": 2, "episodes": 4, "random_episodes": 4},
    "checkpoint": {"every": 2, "keep": 2},
    "stop": {"rounds": 5},
}


def spec(**changes: object) -> specs.JobSpec:
    return specs.parse(DOCUMENT | changes, "spec")


class KilledError(BaseException):
    """Ends a run as a kill does: nothing is tidied up but what the kernel would."""


@dataclass
class Cluster:
    """Store, learner pool and actor pool, each at an address of its own that outlives it."""

    folder: Path
    redis_url: str
    templates: Templates
    spool_bytes: int = 2**26
    spool: Path | None = None
    """None: the folder."""
    learners: int = 1
    """Most learner workers."""
    caches: tuple[str, ...] = ()
    """Addresses of caches, from which actors read weights."""
    relay: str = ""
    """Address of a relay, through which actors get tasks and upload."""
    _running: dict[str, AsyncExitStack] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.peers = {name: Peer(self._address(name), Security(), name) for name in self._services()}

    @property
    def pools(self) -> ServicePools:
        return ServicePools(self.peers["actor_pool"], self.peers["learner_pool"], self.store)

    @property
    def store(self) -> ParamStore:
        return ParamStore(self.peers["param_store"], patience_s=1.0)

    async def start(self, *names: str) -> None:
        for name in names or self._services():
            stack = self._running[name] = AsyncExitStack()
            config, build = self._services()[name]
            await stack.enter_async_context(serving(config.server, lambda at, c=config, b=build: b(c, at)))

    async def stop(self, *names: str) -> None:
        for name in names or list(self._running):
            await self._running.pop(name).aclose()

    async def close(self) -> None:
        await self.stop()
        for peer in self.peers.values():
            await peer.close()

    def _address(self, name: str) -> str:
        return f"unix:{self.folder}/{name}.sock"

    def _services(self) -> dict[str, Any]:
        store = self._address("param_store")
        options = {
            name: ServerOptions(self._address(name), Security())
            for name in ("param_store", "learner_pool", "actor_pool")
        }
        return {
            "param_store": (
                ParamStoreConfig(options["param_store"], RedisOptions(url=self.redis_url), keep=3, intake_bytes=2**26),
                param_store.build,
            ),
            "learner_pool": (
                LearnerPoolConfig(
                    options["learner_pool"],
                    store,
                    workers=self.learners,
                    threads=1,
                    warm=1,
                    keep_alive_s=600,
                    spool=self.spool or self.folder,
                    spool_bytes=self.spool_bytes,
                ),
                partial(learner_pool.build, make=self.templates.learner_launcher),
            ),
            "actor_pool": (
                ActorPoolConfig(
                    options["actor_pool"],
                    store,
                    workers=2,
                    warm=1,
                    keep_alive_s=600,
                    caches=self.caches,
                    relay=self.relay,
                ),
                partial(actor_pool.build, make=self.templates.actor_launcher),
            ),
        }


def broken(notes: Path) -> dict[str, Any]:
    """Changes of the job for one in which a fault ends the first episode of each actor and round."""
    return {
        "env": {"name": "counted", "options": {"agents": 2, "max_cycles": STEPS, "notes": f"{notes}", "breaks": True}},
        "actors": {"count": ACTORS, "envs": ENVS, "steps": STEPS, "episodes": "fresh"},
    }


async def running(folder: Path, redis_url: str, templates: Templates) -> AsyncIterator[Cluster]:
    """The body of a fixture."""
    cluster = Cluster(folder, redis_url, templates)
    await cluster.start()
    yield cluster
    await cluster.close()


async def running_scripted(folder: Path, redis_url: str, templates: Templates) -> AsyncIterator[Cluster]:
    """As `running`, with the scripted policies of the fault tests."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "path", [*sys.path, str(SCRIPTED)])
        async for each in running(folder, redis_url, templates):
            yield each


@asynccontextmanager
async def dying(cluster: Cluster, pool: str, failpoint: str) -> AsyncIterator[None]:
    """While the context lasts, workers of this pool die at this failpoint."""
    usual = cluster.templates
    with shared_templates(PYTHONPATH=str(SCRIPTED), MARLESS_FAILPOINT=failpoint) as killing:
        cluster.templates = killing
        await restarted(cluster, pool)()
        yield
        cluster.templates = usual
        await restarted(cluster, pool)()


def restarted(cluster: Cluster, name: str) -> Callable[[], Awaitable[None]]:
    """What stops a service and starts it again."""

    async def restart() -> None:
        await cluster.stop(name)
        await cluster.start(name)

    return restart


def created(path: Path, given: specs.JobSpec) -> RunFolder:
    """A run folder as a job's acceptance leaves it."""
    folder = RunFolder(path)
    source = newest(path.parent / given.start.checkpoint) if given.start.checkpoint else None
    folder.create(given, JobStatus(job=path.name, state="PENDING", reason="accepted", accepted_s=1.0), source)
    return folder


async def go_on(folder: RunFolder, pools: Pools, *, patience_s: float = 20.0) -> JobRun:
    """Run a job from where its folder says it is, as a coordinator does that finds it; returns once it is over."""
    run = ready(folder, pools, patience_s=patience_s)
    await run.run()
    return run


def ready(folder: RunFolder, pools: Pools, *, patience_s: float = 20.0, changed: Any = None) -> JobRun:
    """A run of the folder's job, not begun."""
    if folder.ownership is None or folder.ownership.lost:
        assert folder.own()
    given, status = folder.load()
    return JobRun(
        job_id=status.job,
        job=prepare(given),
        folder=folder,
        pools=pools,
        status=status,
        log=JobLog(folder, status.job, lambda: None),
        changed=changed or (lambda record: None),
        patience_s=patience_s,
    )


async def succeeded(cluster: Cluster, folder: RunFolder) -> None:
    """Run a job, or go on with it; it must succeed."""
    run = await go_on(folder, cluster.pools)
    expected = "SUCCEEDED", f"{len(list(folder.records()))} rounds done"
    assert (run.status.state, run.status.reason) == expected, f"{run.status.state}: {run.status.reason}\n{run.detail}"


async def check_replay(cluster: Cluster, folder: RunFolder, place: Path) -> None:
    """Replay an asynchronous job that has ended; its events must come in the same order, and lead to equal weights."""
    before = list(folder.records())
    again = created(place, replayed(folder.load()[0], before))
    await succeeded(cluster, again)
    events = [[each.aggregation and each.aggregation.arrivals for each in some] for some in (before, again.records())]
    assert events[1] == events[0]
    assert outcome(again)[1] == outcome(folder)[1]


def facts(record: RoundRecord) -> tuple[object, ...]:
    """What a record says of the training, but for evaluations; times and workers differ from run to run."""
    return (
        *(record.round, record.env_steps, record.actors, record.groups, record.versions, record.returns),
        *({name: dict(each) for name, each in record.metrics.items()}, record.decisions, record.lanes),
    )


def outcome(folder: RunFolder) -> tuple[list[tuple[object, ...]], dict[str, str], list[Evaluation]]:
    """All that a job came to: its records, the digests of its last checkpoint's files, and its evaluations.

    Which record has an evaluation depends on the rounds after which the job ended, and went on.
    """
    last = folder.checkpoints.path(folder.checkpoints.rounds()[-1])
    digests = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in last.iterdir() if path.suffix != ".json"
    }
    records = list(folder.records())
    evaluations = [each for record in records for each in record.evaluations]
    return [facts(record) for record in records], digests, evaluations
