"""The pool's side of a relay: the streams of many workers of a host in one, whose messages travel many at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial

import grpc

from marless.core.errors import MarlessError, OverloadedError, SpecError
from marless.core.limits import MAX_ACTORS
from marless.core.log import structlog
from marless.fleet.dispatch import Dispatcher
from marless.fleet.workers import Worker
from marless.rpc.admission import Streams
from marless.rpc.concurrency import Batcher
from marless.rpc.requests import check_text
from marless.rpc.v1 import actor_pool_pb2 as pb
from marless.rpc.v1 import common_pb2

RELAYS = Streams(lambda: MAX_ACTORS)
"""Streams of relays that a pool serves."""
Attend = Callable[[str], Dispatcher]
"""Tells who dispatches tasks to the worker of this name."""
_log = structlog.get_logger("marless.relays")


class Relayed:
    """Serves one relay's stream. Workers are admitted, and paid heed to, as if each had its own."""

    def __init__(
        self, attend: Attend, most: Callable[[], int], write: Callable[[pb.RelayOrder], Awaitable[None]]
    ) -> None:
        """`most` tells how many workers the pool may have now; `write` sends to the relay."""
        self._attend = attend
        self._most = most
        self._write = write
        self._workers: dict[int, tuple[Worker, Dispatcher]] = {}
        self._last = 0
        self._closed = asyncio.Event()
        # Bounded by what waits for a worker: a task, its cancellation, and its stream's end.
        self._out: Batcher[pb.ToWorker] = Batcher(self._send, size=pb.ToWorker.ByteSize)

    async def serve(self, messages: AsyncIterator[pb.RelayMessage]) -> None:
        """Serve the stream until it ends; then all its workers are lost."""
        reading = asyncio.create_task(self._read(messages))
        others = [asyncio.create_task(each) for each in (self._out.run(), self._closed.wait())]
        try:
            await asyncio.wait([reading, *others], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (reading, *others):
                task.cancel()
            for number in tuple(self._workers):
                self._disconnect(number)
        if reading.done():
            reading.result()

    def close(self) -> None:
        """End the stream."""
        self._closed.set()

    async def _read(self, messages: AsyncIterator[pb.RelayMessage]) -> None:
        async for message in messages:
            for each in getattr(message, "from"):
                self._hear(each)

    def _hear(self, said: pb.FromWorker) -> None:
        number = said.stream
        try:
            if found := self._workers.get(number):
                if said.ended:
                    self._disconnect(number)
                else:
                    found[0].hear(said.message)
            elif number > self._last and not said.ended:  # else it comes late, of a stream that the pool has ended
                self._arrive(number, said.message)
        except MarlessError as error:
            self._disconnect(number)
            self._tell(number, ended=True, error_code=type(error).__name__, error=str(error))

    def _arrive(self, number: int, first: common_pb2.WorkerMessage) -> None:
        # Also if it is refused below: what else comes on this stream is then late, and not another hello.
        self._last = number
        if not first.HasField("hello"):
            raise SpecError("a worker's stream starts with its hello")
        check_text("a worker's name", first.hello.worker)
        dispatcher = self._attend(first.hello.worker)
        if len(dispatcher.connected) >= self._most():
            raise OverloadedError(f"no room for more workers: {len(dispatcher.connected)} are connected already")
        worker = dispatcher.arrive(first.hello, partial(self._order, number))
        self._workers[number] = worker, dispatcher
        worker.lost.add_done_callback(lambda _: self._end(number))

    def _order(self, number: int, message: common_pb2.PoolMessage) -> Awaitable[None]:
        self._tell(number, message=message)
        # The message is only queued here, so a dispatcher has nothing to wait for.
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    def _end(self, number: int) -> None:
        """The pool has given the worker up, or another stream has its name."""
        if self._disconnect(number):
            self._tell(number, ended=True)

    def _disconnect(self, number: int) -> bool:
        if not (found := self._workers.pop(number, None)):
            return False
        worker, dispatcher = found
        dispatcher.depart(worker)
        return True

    def _tell(self, number: int, **what: object) -> None:
        self._out.add(pb.ToWorker(stream=number, **what))  # type: ignore[arg-type]  # its fields

    async def _send(self, some: Iterable[pb.ToWorker]) -> None:
        try:
            await self._write(pb.RelayOrder(to=some))
        except grpc.aio.BaseError as error:  # the stream has ended, as its reader notices
            _log.warning("relay.not_sent", error=str(error))
