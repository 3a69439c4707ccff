"""Both pools in this process, with real workers, a real store, and the learner pool's buffer in plain view."""

from __future__ import annotations

import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from marless.core.group import Versions
from marless.fleet.launchers.registry import LOCAL, Choice
from marless.jobs import spec as specs
from marless.jobs.job import PreparedJob, prepare
from marless.rpc.client import Peer
from marless.rpc.param_store import ParamStore
from marless.rpc.roles import Role
from marless.rpc.security import Security
from marless.rpc.server import ServerOptions, serving
from marless.rpc.tokens import Tokens
from marless.services.actor_pool import __main__ as actor_pool
from marless.services.actor_pool.__main__ import ActorPoolConfig
from marless.services.coordinator.execution.service_pools import ServicePools
from marless.services.learner_pool import __main__ as learner_pool
from marless.services.learner_pool.config import LearnerPoolConfig
from marless.services.learner_pool.trajectory_buffer import TrajectoryBuffer
from tests.faults.store_process import StoreProcess

DOCUMENT = {
    "name": "small",
    "seed": 5,
    "env": {"name": "mpe/simple_spread", "options": {"agents": 2, "max_cycles": 7}},
    "algorithm": {"name": "ippo", "epochs": 1, "minibatches": 2},
    "model": {"hidden": [8]},
    "actors": {"count": 2, "envs": 4, "steps": 5, "episodes": "carried"},
    "evaluation": {"every": 10, "episodes": 4, "random_episodes": 20},
    "checkpoint": {"every": 20, "keep": 2},
    "stop": {"rounds": 60},
}
"""A job whose round takes some ten milliseconds; its episodes go on from round to round."""


@dataclass(frozen=True, kw_only=True)
class RunningPools:
    """What a scenario may speak to."""

    store_address: str
    store: ParamStore
    learner_address: str
    buffer: TrajectoryBuffer
    actors: Peer
    operator: Peer
    """To the actor pool, with every right."""
    actor_config: ActorPoolConfig
    pools: ServicePools

    async def open(self, job_id: str, job: PreparedJob, *, round_: int = 0) -> tuple[int, Versions]:
        """Open a job as a coordinator that takes it over before this round; returns its epoch and versions."""
        epoch = await self.store.acquire_epoch(job_id, secrets.token_hex(8))
        groups = job.sharing.decide(()).groups
        return epoch, await self.pools.open_job(job_id, job, epoch, groups, round_=round_)


def small_job(**changes: object) -> PreparedJob:
    """The small job, with some of its sections replaced."""
    return prepare(specs.parse(DOCUMENT | changes, "small"))


@asynccontextmanager
async def running_pools(
    place: Path, *, actor_workers: int, launcher: Choice = LOCAL, tokens: Tokens | None = None, ports: bool = False
) -> AsyncIterator[RunningPools]:
    """Start everything; the learner pool has one worker. `tokens` are those of the actor pool, if it admits others.

    With `ports`, services listen on ports of loopback, for workers of other users, and not on unix sockets.
    """
    intakes: list[TrajectoryBuffer] = []

    def buffer(spool: Path, limit_bytes: int) -> TrajectoryBuffer:
        intakes.append(TrajectoryBuffer(spool, limit_bytes))
        return intakes[-1]

    def options(name: str) -> ServerOptions:
        return ServerOptions(at(name), Security())

    def at(name: str) -> str:
        return "127.0.0.1:0" if ports else f"unix:{place}/{name}.sock"

    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(StoreProcess(place, address=_free_port() if ports else ""))
        learners = LearnerPoolConfig(
            options("learners"),
            store.address,
            **{"workers": 1, "threads": 1, "warm": 1, "keep_alive_s": 600.0, "spool": place, "spool_bytes": 2**28},
        )
        stack.enter_context(mock.patch.object(learner_pool, "TrajectoryBuffer", buffer))
        sink = await stack.enter_async_context(serving(learners.server, lambda at: learner_pool.build(learners, at)))
        own = ServerOptions(at("actors"), _shown(tokens, Role.SERVICE))
        workers = {"workers": actor_workers, "warm": min(1, actor_workers), "keep_alive_s": 600.0}
        actors = ActorPoolConfig(own, store.address, **workers, launcher=launcher)
        actor_address = await stack.enter_async_context(serving(actors.server, lambda at: actor_pool.build(actors, at)))
        peers = [
            *(Peer(actor_address, _shown(tokens, role)) for role in (Role.SERVICE, Role.OPERATOR)),
            *(Peer(address, Security()) for address in (sink, store.address)),
        ]
        client = ParamStore(peers[3])
        yield RunningPools(
            store_address=store.address,
            store=client,
            learner_address=sink,
            buffer=intakes[0],
            actors=peers[0],
            operator=peers[1],
            actor_config=actors,
            pools=ServicePools(peers[0], peers[2], client),
        )
        for peer in peers:
            await peer.close()


def _shown(tokens: Tokens | None, role: Role) -> Security:
    return Security(tokens.of(role), tokens=tokens) if tokens else Security()


def _free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"
