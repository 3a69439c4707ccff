"""A cache of another param_store, its upstream, for the actors of a host or of a part of a network.

It serves reads of what actors act with, and nothing else. Bytes are kept by their digests, so they can never be those
of another version. The upstream is asked at each read which digests a version has; only for actors of the same epoch,
within which versions do not change, its answer holds for `FRESH_S`.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import grpc
from prometheus_client.metrics_core import Metric

from marless.core.errors import CorruptError, NotFoundError, PermissionDeniedError, SpecError
from marless.core.limits import MAX_PARTS, MAX_POLICIES
from marless.rpc import chunks, roles
from marless.rpc.client import Peer
from marless.rpc.metrics import counter, gauge
from marless.rpc.requests import check_names, check_number
from marless.rpc.roles import Role
from marless.rpc.security import Security
from marless.rpc.server import bulk_download, register_bulk
from marless.rpc.v1 import common_pb2, param_store_pb2
from marless.services.param_store.blobs import BlobPart, SharedFrames

FRESH_S = 2.0
"""Seconds for which the upstream's answer holds: as long as the actors of a host take to read a new version."""
HEADERS = 64
"""Answers of the upstream that are kept, at most."""
HEADER_TIMEOUT_S, READ_TIMEOUT_S = 10.0, 120.0
_GET = "ParamStoreService/Get"
Context = grpc.aio.ServicerContext[Any, Any]  # Any: one context type serves all methods


@asynccontextmanager
async def cache(upstream: str, security: Security, limit_bytes: int) -> AsyncIterator[CacheServicer]:
    """The servicer of a cache. It calls the upstream as an actor does, so that it cannot read more than they."""
    peer = Peer(upstream, replace(security, token=security.showing(Role.ACTOR)), f"param_store at {upstream}")
    try:
        yield CacheServicer(Upstream(peer), SharedFrames(limit_bytes))
    finally:
        await peer.close()


@dataclass(frozen=True)
class _Answer:
    header: param_store_pb2.GetHeader
    until_s: float


class Upstream:
    """Reads from the upstream; what several callers ask at once is asked once."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self.address = peer.address
        self._answers: OrderedDict[bytes, _Answer] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[param_store_pb2.GetHeader]] = {}
        self.asked = self.read = 0
        """Calls for a header, and for the bytes of versions."""

    async def header(self, request: param_store_pb2.GetRequest) -> param_store_pb2.GetHeader:
        """The header with which the upstream answers this request. Raises the errors of `ParamStore.get`."""
        # A head may be another version at any time; and without an epoch nothing says that a version is still the same.
        if not request.epoch or not all(each.version for each in request.policies):
            return await self._ask(request)
        key = request.SerializeToString(deterministic=True)
        if (answer := self._answers.get(key)) and time.monotonic() < answer.until_s:
            return answer.header
        if (asking := self._asking.get(key)) is None:
            asking = self._asking[key] = asyncio.create_task(self._ask(request))
            asking.add_done_callback(partial(self._answered, key, time.monotonic()))
        return await asyncio.shield(asking)  # for the others that wait for it, when the caller goes away

    def _answered(self, key: bytes, asked_s: float, asking: asyncio.Task[param_store_pb2.GetHeader]) -> None:
        del self._asking[key]
        if asking.cancelled() or asking.exception():
            return
        # Counted from the question: the answer may be as old as that.
        self._answers[key] = _Answer(asking.result(), asked_s + FRESH_S)
        self._answers.move_to_end(key)
        while len(self._answers) > HEADERS or next(iter(self._answers.values())).until_s < asked_s:
            self._answers.popitem(last=False)

    async def _ask(self, request: param_store_pb2.GetRequest) -> param_store_pb2.GetHeader:
        self.asked += 1
        bare = param_store_pb2.GetRequest()
        bare.CopyFrom(request)
        bare.header_only = True
        header, _ = await self._peer.fetch(_GET, bare, param_store_pb2.GetHeader, timeout_s=HEADER_TIMEOUT_S)
        return header

    async def pieces(
        self, request: param_store_pb2.GetRequest, header: param_store_pb2.GetHeader
    ) -> AsyncIterator[list[bytes]]:
        """Stream the bytes of the versions that a header names, in its order.

        Raises NotFoundError if they are no longer there, CorruptError if bytes do not match their checksum, and the
        errors of `ParamStore.get`.
        """
        self.read += 1
        named = (common_pb2.PolicyVersion(policy=each.policy, version=each.version) for each in header.policies)
        exact = param_store_pb2.GetRequest(
            job=request.job, policies=named, parts=request.parts, epoch=request.epoch, header_only=False
        )
        checked = _Checked(parts_of(header))
        async with self._peer.download(_GET, exact, timeout_s=READ_TIMEOUT_S) as frames:
            found, contents = await chunks.read_header(frames, param_store_pb2.GetHeader)
            if found != header:
                raise NotFoundError(f"a version of job {request.job!r} was replaced while it was read; read it again")
            async for frame in contents:
                data = chunks.data_of(frame)
                checked.add(data)
                yield [bytes(data)]
        checked.end()


def parts_of(header: param_store_pb2.GetHeader) -> list[BlobPart]:
    """The parts that follow a header, in order."""
    return [BlobPart(blob.part, blob.bytes, blob.sha256) for each in header.policies for blob in each.blobs]


class _Checked:
    """Verifies the SHA-256 of parts from bytes that come in order."""

    def __init__(self, parts: Iterable[BlobPart]) -> None:
        self._parts: Iterator[BlobPart] = iter(parts)
        self._begin()

    def _begin(self) -> None:
        self._part = next(self._parts, None)
        self._left = self._part.size_bytes if self._part else 0
        self._running = hashlib.sha256()
        # A part without bytes ends here, because no data will come to end it.
        if self._part and not self._left:
            self._end_part(self._part)

    def _end_part(self, part: BlobPart) -> None:
        if self._running.digest() != part.sha256:
            raise CorruptError(f"{part.name!r}: the upstream's bytes do not match their sha256; read them again")
        self._begin()

    def add(self, data: memoryview) -> None:
        """Add the next bytes; raises CorruptError if they do not match, or are too many."""
        while len(data):
            if self._part is None:
                raise CorruptError("the upstream sent more bytes than it declared")
            taken, data = data[: self._left], data[self._left :]
            self._running.update(taken)
            self._left -= len(taken)
            if not self._left:
                self._end_part(self._part)

    def end(self) -> None:
        """Raise CorruptError if bytes are missing."""
        if self._part:
            raise CorruptError("the upstream sent fewer bytes than it declared")


class CacheServicer:
    """ParamStoreService with `Get` alone; all other methods name the upstream."""

    def __init__(self, upstream: Upstream, frames: SharedFrames) -> None:
        self._upstream = upstream
        self._frames = frames
        self._reads = 0

    def register(self, server: grpc.aio.Server) -> None:
        """Add this servicer to a server."""
        methods = param_store_pb2.DESCRIPTOR.services_by_name["ParamStoreService"].methods
        # Calls of all four kinds look alike on the wire, so that one kind of handler can refuse them all.
        refused: dict[str, Any] = {
            method.name: grpc.stream_stream_rpc_method_handler(self._refuse) for method in methods
        }  # Any: as gRPC types it
        get = bulk_download(self._get, param_store_pb2.GetRequest.FromString)
        register_bulk(server, "ParamStoreService", refused | {"Get": get})

    def figures(self) -> list[Metric]:
        """The cache's metrics for Prometheus."""
        return [
            counter("cache_reads", "Reads of versions.", self._reads),
            counter(
                "cache_upstream_headers", "Times that the upstream was asked about versions.", self._upstream.asked
            ),
            counter("cache_upstream_reads", "Reads of the bytes of versions from upstream.", self._upstream.read),
            gauge("cache_bytes", "Bytes that are kept.", self._frames.kept_bytes),
        ]

    async def _get(self, request: param_store_pb2.GetRequest, context: Context) -> None:
        check_number("the number of policies", len(request.policies), 0, MAX_POLICIES)
        check_names("parts", request.parts, MAX_PARTS)
        if not roles.READ_BY_ACTORS.issuperset(request.parts):
            raise PermissionDeniedError(
                f"a cache serves the parts that actors read, {' and '.join(sorted(roles.READ_BY_ACTORS))}; read others "
                f"from its upstream, {self._upstream.address}"
            )
        self._reads += 1
        # Asked in the same words whether or not bytes are wanted, because the request is the key of the kept answer.
        header_only, request.header_only = request.header_only, False
        header = await self._upstream.header(request)
        if header_only:
            await chunks.write(context, chunks.header_frame(header))
            return
        what = (request.job, header.SerializeToString(deterministic=True))
        read = self._frames.of(what, parts_of(header), partial(self._upstream.pieces, request, header))
        async for frame in chunks.after(header, read):
            await chunks.write(context, frame)

    async def _refuse(self, _requests: AsyncIterator[bytes], _context: Context) -> None:
        raise SpecError(
            f"this is a cache of the param_store at {self._upstream.address}, and serves reads of weights only; dial "
            "that one"
        )
