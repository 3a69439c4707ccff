"""A relay: `Work` of the actor pool and `UploadMany` of the learner pool; no other method.

The streams of a host's actor workers go on as one stream to their pool, and small trajectories on their way to the
learner pool many in one call.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from prometheus_client.metrics_core import Metric

from marless.core.errors import CorruptError, MarlessError, OverloadedError, TooLargeError, UnreachableError
from marless.core.log import structlog
from marless.rpc.client import Peer
from marless.rpc.concurrency import Batcher
from marless.rpc.errors import by_name, from_rpc
from marless.rpc.metrics import counter, gauge
from marless.rpc.nearby import SMALL_BYTES, UPLOAD_S
from marless.rpc.server import register_bulk
from marless.rpc.v1 import actor_pool_pb2, common_pb2, learner_pool_pb2
from marless.rpc.v1.actor_pool_pb2_grpc import ActorPoolServiceStub
from marless.rpc.v1.learner_pool_pb2_grpc import LearnerPoolServiceStub

MOST_WORKERS = 2048
"""Workers of one relay."""
MOST_MESSAGES_WAITING = 4096
"""Messages that wait to be sent to the pool; meanwhile no worker's next one is read."""
REST_S = 5.0
"""Seconds for which a relay that does not reach its pool says that it does not serve."""
_ENDED = "the relay's stream to the actor_pool has ended"
_log = structlog.get_logger("relay")
Send = Callable[[common_pb2.PoolMessage], Awaitable[None]]
Messages = AsyncIterator[common_pb2.WorkerMessage]
Context = grpc.aio.ServicerContext[Any, Any]  # Any: one context type serves all methods
MOST_UPLOADS_WAITING = 4096
"""Uploads that wait to be sent; further ones are refused, and their workers send them to the pool themselves."""


@dataclass(eq=False)
class _WorkerConnection:
    """One worker's stream. Its pool sends one task at a time, so that few orders wait."""

    number: int = 0
    """Set with its first message, so that the pool sees numbers in order."""
    orders: asyncio.Queue[actor_pool_pb2.ToWorker] = field(default_factory=asyncio.Queue)


class Workers:
    """Passes on what workers and their pool tell one another; opens the stream to the pool with its first worker."""

    def __init__(self, pool: Peer) -> None:
        self._pool = pool
        self._trunk: _Trunk | None = None
        self._failed_s = float("-inf")

    async def ready(self) -> bool:
        """False for a while after the pool could not be reached."""
        return asyncio.get_running_loop().time() - self._failed_s > REST_S

    @property
    def connected(self) -> int:
        """Number of workers."""
        return len(self._trunk.lines) if self._trunk else 0

    async def attach(self, messages: Messages, send: Send) -> None:
        """Serve one worker's stream until it or the pool ends it.

        Raises the error for which the pool has ended it, and UnreachableError if the pool is gone.
        """
        trunk = self._trunk
        if trunk is None or trunk.ended:
            trunk = self._trunk = _Trunk(self._pool, self._lost)
        await trunk.serve(messages, send)

    def _lost(self) -> None:
        self._failed_s = asyncio.get_running_loop().time()

    async def stop(self) -> None:
        """End the stream to the pool, and so those of all workers."""
        if self._trunk:
            await self._trunk.stop()


class _Trunk:
    """A stream to the pool, with the lines of workers in it. It ends once; the next worker then opens another one."""

    def __init__(self, pool: Peer, lost: Callable[[], None]) -> None:
        self._pool = pool
        self._lost = lost
        self._stream = ActorPoolServiceStub(pool.channel).Relay(metadata=pool.metadata)
        self._serials = itertools.count(1)
        self.lines: dict[int, _WorkerConnection] = {}
        self._out: Batcher[actor_pool_pb2.FromWorker] = Batcher(self._send, size=actor_pool_pb2.FromWorker.ByteSize)
        self._room = asyncio.Event()
        self._room.set()
        self._running = [asyncio.create_task(self._read()), asyncio.create_task(self._out.run())]

    @property
    def ended(self) -> bool:
        """True once the pool takes nothing from it."""
        return self._running[0].done()

    async def serve(self, messages: Messages, send: Send) -> None:
        """Serve one worker's stream."""
        line = _WorkerConnection()
        forwarding = asyncio.create_task(self._forward(line, messages))
        try:
            while not (order := await line.orders.get()).ended:
                await send(order.message)
            if order.error_code:
                raise by_name(order.error_code, order.error)
        finally:
            forwarding.cancel()
            # The pool is told only of the end of a line that it knows, and has not ended itself.
            if self.lines.pop(line.number, None):
                self._out.add(actor_pool_pb2.FromWorker(stream=line.number, ended=True))

    async def _forward(self, line: _WorkerConnection, messages: Messages) -> None:
        """Pass on a worker's messages; its line ends with its stream."""
        end = actor_pool_pb2.ToWorker(ended=True)
        try:
            async for message in messages:
                await self._room.wait()
                # The pool may have gone while this message waited for room.
                if self.ended:
                    raise UnreachableError(_ENDED)
                if not line.number:
                    line.number = next(self._serials)
                    self.lines[line.number] = line
                self._out.add(actor_pool_pb2.FromWorker(stream=line.number, message=message))
                if len(self._out) >= MOST_MESSAGES_WAITING:
                    self._room.clear()
        except MarlessError as error:
            end.error_code, end.error = type(error).__name__, str(error)
        line.orders.put_nowait(end)

    async def _send(self, some: Sequence[actor_pool_pb2.FromWorker]) -> None:
        await self._stream.write(actor_pool_pb2.RelayMessage(**{"from": some}))
        if len(self._out) < MOST_MESSAGES_WAITING:
            self._room.set()

    async def _read(self) -> None:
        trouble: MarlessError = UnreachableError(_ENDED)
        try:
            async for order in self._stream:
                for each in order.to:
                    if line := self.lines.get(each.stream):
                        line.orders.put_nowait(each)
                        if each.ended:
                            del self.lines[each.stream]
        except grpc.aio.AioRpcError as error:
            trouble = from_rpc(error, "actor_pool")
            _log.warning("relay.pool_lost", reason=str(trouble), workers=len(self.lines))
        finally:
            self._lost()
            end = actor_pool_pb2.ToWorker(ended=True, error_code="UnreachableError", error=str(trouble))
            for line in self.lines.values():
                line.orders.put_nowait(end)
            self.lines.clear()
            # A worker whose first message waits for room has no line yet: it, too, is to see that this has ended.
            self._room.set()
            self._running[1].cancel()

    async def stop(self) -> None:
        """End it."""
        self._stream.cancel()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)


class RelayServicer:
    """The methods that a relay serves."""

    def __init__(self, workers: Workers, uploads: RelayedUploads) -> None:
        self._workers = workers
        self._uploads = uploads

    def register(self, server: grpc.aio.Server) -> None:
        """Add this servicer to a server."""
        work = grpc.stream_stream_rpc_method_handler(
            self._work, common_pb2.WorkerMessage.FromString, common_pb2.PoolMessage.SerializeToString
        )
        upload = grpc.unary_unary_rpc_method_handler(
            self._upload,
            learner_pool_pb2.UploadManyRequest.FromString,
            learner_pool_pb2.UploadManyResponse.SerializeToString,
        )
        register_bulk(server, "ActorPoolService", {"Work": work})
        register_bulk(server, "LearnerPoolService", {"UploadMany": upload})

    def figures(self) -> list[Metric]:
        """The relay's metrics for Prometheus."""
        return [
            gauge("relay_workers", "Workers that are connected through the relay.", self._workers.connected),
            counter("relay_uploads", "Small trajectories that were passed on.", self._uploads.passed_on),
            counter("relay_upload_calls", "Calls in which they were passed on.", self._uploads.calls),
        ]

    async def _work(self, messages: AsyncIterator[common_pb2.WorkerMessage], context: Context) -> None:
        """Serve one worker's stream."""
        await self._workers.attach(messages, context.write)

    async def _upload(
        self, request: learner_pool_pb2.UploadManyRequest, _context: Context
    ) -> learner_pool_pb2.UploadManyResponse:
        """Pass uploads on, and answer as the learner pool does."""
        return learner_pool_pb2.UploadManyResponse(outcomes=await self._uploads.deliver(request.uploads))


@dataclass(frozen=True, eq=False)
class _Upload:
    sent: learner_pool_pb2.SmallUpload
    outcome: asyncio.Future[learner_pool_pb2.UploadOutcome]


class RelayedUploads:
    """Sends uploads on, and has each caller wait for the learner pool's own answer."""

    def __init__(self, pool: Peer) -> None:
        self._pool = pool
        self._stub = LearnerPoolServiceStub(pool.channel)
        self._waiting: Batcher[_Upload] = Batcher(self._send, size=lambda upload: len(upload.sent.data))
        self._sending: asyncio.Task[None] | None = None
        self.passed_on = self.calls = 0
        """Uploads that were answered, and calls that it took."""

    def start(self) -> None:
        """Begin to send."""
        self._sending = asyncio.create_task(self._waiting.run())

    async def stop(self) -> None:
        """Send no more."""
        if self._sending:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)

    async def deliver(self, uploads: Sequence[learner_pool_pb2.SmallUpload]) -> list[learner_pool_pb2.UploadOutcome]:
        """Wait for the outcomes of uploads.

        Raises TooLargeError for one that is not small, OverloadedError if too many wait, and the errors of the call.
        """
        if any(len(each.data) > SMALL_BYTES for each in uploads):
            raise TooLargeError(f"a relay takes trajectories of {SMALL_BYTES:,} bytes; send others to the learner pool")
        if len(self._waiting) + len(uploads) > MOST_UPLOADS_WAITING:
            raise OverloadedError(f"no room in the relay: {len(self._waiting)} uploads wait already")
        loop = asyncio.get_running_loop()
        waiting = [_Upload(each, loop.create_future()) for each in uploads]
        for each in waiting:
            self._waiting.add(each)
        return [await each.outcome for each in waiting]

    async def _send(self, some: Sequence[_Upload]) -> None:
        # A worker that does not wait any longer sends its own to the learner pool itself.
        wanted = [each for each in some if not each.outcome.cancelled()]
        request = learner_pool_pb2.UploadManyRequest(uploads=[each.sent for each in wanted])
        try:
            answer = await self._pool.call(self._stub.UploadMany, request, timeout_s=UPLOAD_S)
            if len(answer.outcomes) != len(wanted):
                raise CorruptError(f"{len(answer.outcomes)} outcomes of {len(wanted)} uploads")
        except MarlessError as error:
            for each in wanted:
                if not each.outcome.done():
                    each.outcome.set_exception(error)
            return
        self.calls, self.passed_on = self.calls + 1, self.passed_on + len(wanted)
        for each, outcome in zip(wanted, answer.outcomes, strict=True):
            if not each.outcome.done():
                each.outcome.set_result(outcome)
