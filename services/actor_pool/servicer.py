"""The gRPC servicer of ActorPoolService: decodes requests, calls the pool's parts, encodes replies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc

from marless.fleet.dispatch import Dispatcher
from marless.fleet.fleet import Fleet
from marless.fleet.launchers.base import Launcher
from marless.fleet.launchers.hosts.pool import attach
from marless.fleet.machines import used_by
from marless.fleet.relayed import Relayed
from marless.fleet.workers import hello_of
from marless.rpc.v1 import actor_pool_pb2, common_pb2, hosts_pb2
from marless.rpc.v1.actor_pool_pb2_grpc import ActorPoolServiceServicer
from marless.services.actor_pool.rollouts import Background, Rollouts

Context = grpc.aio.ServicerContext[Any, Any]  # Any: one context type serves all methods


class ActorPoolServicer(ActorPoolServiceServicer):
    """The RPCs of actor_pool.proto."""

    def __init__(
        self,
        rollouts: Rollouts,
        dispatcher: Dispatcher,
        fleet: Fleet,
        background: Background | None = None,
        launcher: Launcher | None = None,
    ) -> None:
        self._rollouts = rollouts
        self._dispatcher = dispatcher
        self._fleet = fleet
        self._launcher = launcher
        self._background = background
        self._relays: set[Relayed] = set()

    async def Rollout(  # noqa: N802  # gRPC names
        self, request: actor_pool_pb2.RolloutRequest, context: Context
    ) -> actor_pool_pb2.RolloutResponse:
        """Run the actors of one round, or the episodes of an evaluation."""
        if self._background and request.background:
            return await self._background.rollouts.run(request)
        return await self._rollouts.run(request)

    async def Scale(  # noqa: N802
        self, request: actor_pool_pb2.ScaleRequest, context: Context
    ) -> actor_pool_pb2.ScaleResponse:
        """Set the number of workers."""
        await self._fleet.scale(request.workers)
        return actor_pool_pb2.ScaleResponse(workers=self._dispatcher.workers())

    async def Prewarm(  # noqa: N802
        self, request: actor_pool_pb2.PrewarmRequest, context: Context
    ) -> actor_pool_pb2.PrewarmResponse:
        """Start workers ahead of a rollout."""
        if request.job:
            self._dispatcher.machines.want(request.job)
            self._dispatcher.renewal.prepare(request.job, request.actors)
        self._fleet.expect(request.actors)
        return actor_pool_pb2.PrewarmResponse()

    async def ListWorkers(  # noqa: N802
        self, request: common_pb2.ListWorkersRequest, context: Context
    ) -> common_pb2.ListWorkersResponse:
        """List workers, also the one that evaluates, and what the pool has for further ones."""
        found = self._fleet.listed()
        for each in self._background.dispatcher.workers() if self._background else ():
            found.background.CopyFrom(each)
        return found

    async def ListMachines(  # noqa: N802
        self, request: common_pb2.ListMachinesRequest, context: Context
    ) -> common_pb2.ListMachinesResponse:
        """What the machines of this pool did for a job."""
        return used_by(request.job, self._dispatcher.machines)

    async def Work(  # type: ignore[override]  # noqa: N802  # writes to the context instead of yielding
        self, request_iterator: AsyncIterator[common_pb2.WorkerMessage], context: Context
    ) -> None:
        """Serve one worker's stream."""
        # Read here, because its name tells to which of two dispatchers the worker belongs.
        hello = await hello_of(request_iterator)
        await self._attends(hello.worker).admit(hello, request_iterator, context.write)

    async def Relay(  # type: ignore[override]  # noqa: N802  # writes to the context instead of yielding
        self, request_iterator: AsyncIterator[actor_pool_pb2.RelayMessage], context: Context
    ) -> None:
        """Serve the streams of a relay's workers."""
        relayed = Relayed(self._attends, self._fleet.most_streams, context.write)
        self._relays.add(relayed)
        try:
            await relayed.serve(request_iterator)
        finally:
            self._relays.discard(relayed)

    async def end_relays(self) -> None:
        """End the streams of all relays, which would otherwise last as long as their hosts."""
        for relayed in self._relays:
            relayed.close()

    def _attends(self, worker: str) -> Dispatcher:
        background = self._background
        return background.dispatcher if background and background.launched(worker) else self._dispatcher

    async def Host(  # type: ignore[override]  # noqa: N802  # writes to the context instead of yielding
        self, request_iterator: AsyncIterator[hosts_pb2.HostMessage], context: Context
    ) -> None:
        """Serve the stream of a host of workers."""
        await attach(self._launcher, request_iterator, context.write)
