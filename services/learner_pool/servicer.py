"""The gRPC servicer of LearnerPoolService: decodes requests, calls the parts, encodes replies. Also the metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

import grpc
from prometheus_client.metrics_core import Metric

from marless.fleet.dispatch import Dispatcher
from marless.fleet.fleet import Fleet, worker_figures
from marless.fleet.launchers.base import Launcher
from marless.fleet.launchers.hosts.pool import attach
from marless.fleet.machines import used_by
from marless.rpc.metrics import counter, gauge
from marless.rpc.refs import Loans
from marless.rpc.server import bulk_download, bulk_upload, register_bulk
from marless.rpc.v1 import common_pb2, hosts_pb2
from marless.rpc.v1 import learner_pool_pb2 as pb
from marless.rpc.v1.learner_pool_pb2_grpc import LearnerPoolServiceServicer, add_LearnerPoolServiceServicer_to_server
from marless.services.learner_pool.gradients import Gradients
from marless.services.learner_pool.replays import Replays
from marless.services.learner_pool.trajectory_buffer import TrajectoryBuffer
from marless.services.learner_pool.updates import Updates

Context = grpc.aio.ServicerContext[Any, Any]  # Any: one context type serves all methods


class LearnerPoolServicer(LearnerPoolServiceServicer):
    """The RPCs of learner_pool.proto. `address` is the one that actors dial to upload their trajectories."""

    def __init__(
        self,
        buffer: TrajectoryBuffer,
        updates: Updates,
        gradients: Gradients,
        loans: Loans,
        dispatcher: Dispatcher,
        fleet: Fleet,
        address: str,
        launcher: Launcher | None = None,
    ) -> None:
        self._buffer = buffer
        self._updates = updates
        self._gradients = gradients
        self._loans = loans
        self._dispatcher = dispatcher
        self._fleet = fleet
        self._launcher = launcher
        self._address = address

    def register(self, server: grpc.aio.Server) -> None:
        """Add this servicer to a server; bulk transfers are raw bytes."""
        add_LearnerPoolServiceServicer_to_server(self, server)
        bulk = {
            "Upload": bulk_upload(self.Upload, pb.UploadResponse.SerializeToString),
            "ReadRef": bulk_download(self.ReadRef, common_pb2.Piece.FromString),
            "WriteRef": bulk_upload(self.WriteRef, common_pb2.WriteRefResponse.SerializeToString),
        }
        register_bulk(server, "LearnerPoolService", bulk)

    async def OpenJob(self, request: pb.OpenJobRequest, context: Context) -> pb.OpenJobResponse:
        """Declare a job."""
        reply = await self._updates.open(request)
        reply.address = self._address
        return reply

    async def Reserve(self, request: pb.ReserveRequest, context: Context) -> pb.ReserveResponse:
        """Reserve room for a round."""
        await self._buffer.reserve(request)
        return pb.ReserveResponse()

    async def Upload(  # type: ignore[override]  # frames arrive as raw bytes, see `register`
        self, frames: AsyncIterator[bytes], context: Context
    ) -> pb.UploadResponse:
        """Receive one trajectory."""
        return pb.UploadResponse(duplicate=not await self._buffer.receive(frames))

    async def UploadMany(self, request: pb.UploadManyRequest, context: Context) -> pb.UploadManyResponse:
        """Receive several small trajectories."""
        return self._buffer.receive_many(request)

    async def Update(self, request: pb.UpdateRequest, context: Context) -> pb.UpdateResponse:
        """Update every policy of a job once."""
        return await self._updates.update(request)

    async def Gradient(self, request: pb.GradientRequest, context: Context) -> pb.GradientResponse:
        """Compute one gradient of every policy of a job."""
        return await self._gradients.gradient(request)

    async def CloseJob(self, request: pb.CloseJobRequest, context: Context) -> pb.CloseJobResponse:
        """Close a job."""
        await self._updates.close(request)
        return pb.CloseJobResponse()

    async def ListWorkers(
        self, request: common_pb2.ListWorkersRequest, context: Context
    ) -> common_pb2.ListWorkersResponse:
        """List workers, and what the pool has for further ones."""
        return self._fleet.listed()

    async def ListMachines(
        self, request: common_pb2.ListMachinesRequest, context: Context
    ) -> common_pb2.ListMachinesResponse:
        """What the machines of this pool did for a job."""
        return used_by(request.job, self._dispatcher.machines)

    async def Work(  # type: ignore[override]  # writes to the context instead of yielding
        self, request_iterator: AsyncIterator[common_pb2.WorkerMessage], context: Context
    ) -> None:
        """Serve one worker's stream."""
        await self._dispatcher.attach(request_iterator, context.write)

    async def Host(  # type: ignore[override]  # writes to the context instead of yielding
        self, request_iterator: AsyncIterator[hosts_pb2.HostMessage], context: Context
    ) -> None:
        """Serve the stream of a host of workers."""
        await attach(self._launcher, request_iterator, context.write)

    async def ReadRef(  # type: ignore[override]  # raw frames, see `register`
        self, request: common_pb2.Piece, context: Context
    ) -> AsyncIterator[bytes]:
        """Stream a piece of a lent file."""
        async for frame in self._loans.read(request):
            yield frame

    async def WriteRef(  # type: ignore[override]  # raw frames, see `register`
        self, frames: AsyncIterator[bytes], context: Context
    ) -> common_pb2.WriteRefResponse:
        """Receive a piece of a lent file."""
        await self._loans.write(frames)
        return common_pb2.WriteRefResponse()


def figures(dispatcher: Dispatcher, buffer: TrajectoryBuffer, replays: Replays) -> list[Metric]:
    """All metrics: workers, uploads, bytes held, and samples of replay buffers."""
    return [
        *worker_figures(dispatcher),
        counter("uploads", "Trajectories, by what became of them.", asdict(buffer.counts), by="outcome"),
        gauge("intake_bytes", "Bytes of trajectories that wait for their update.", buffer.held_bytes),
        gauge("replay_bytes", "Bytes of files that learners remember past rounds in.", replays.held_bytes),
        counter("replay_samples", "Env steps of replays, by what became of them.", replays.samples, by="outcome"),
    ]
