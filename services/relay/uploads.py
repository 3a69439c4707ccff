"""Small trajectories on their way to the learner pool, many in one call."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from marless.core.errors import CorruptError, MarlessError, OverloadedError, TooLargeError
from marless.rpc.batcher import Batcher
from marless.rpc.client import Peer
from marless.rpc.relay import SMALL_BYTES, UPLOAD_S
from marless.rpc.v1 import learner_pool_pb2
from marless.rpc.v1.learner_pool_pb2_grpc import LearnerPoolServiceStub

MOST_WAITING = 4096
"""Uploads that wait to be sent; further ones are refused, and their workers send them to the pool themselves."""


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
        if len(self._waiting) + len(uploads) > MOST_WAITING:
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
