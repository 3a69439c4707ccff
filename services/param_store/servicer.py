"""The gRPC servicer of ParamStoreService: decodes requests, calls the store, encodes replies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from functools import partial
from typing import Any

import grpc

from marless.core.limits import MAX_KEPT, MAX_PARTS, MAX_POLICIES
from marless.rpc import carries, chunks, roles
from marless.rpc.requests import check_names, check_number
from marless.rpc.server import bulk_download, bulk_upload, register_bulk
from marless.rpc.v1 import common_pb2, param_store_pb2
from marless.rpc.v1.param_store_pb2_grpc import (
    ParamStoreServiceServicer,
    add_ParamStoreServiceServicer_to_server,
)
from marless.services.param_store.aggregation import Aggregator, aggregation_of
from marless.services.param_store.blobs import BlobPart, BlobUploads, SharedFrames
from marless.services.param_store.store import VersionStore
from marless.services.param_store.versions import VersionMetadata, Write

Context = grpc.aio.ServicerContext[Any, Any]  # Any: one context type serves all methods


class ParamStoreServicer(ParamStoreServiceServicer):
    """The RPCs of param_store.proto."""

    def __init__(self, store: VersionStore, uploads: BlobUploads, risk: str = "") -> None:
        """`risk`: see `connection.risk`."""
        self._store = store
        self._risk = risk
        self._uploads = uploads
        self._frames = SharedFrames()
        self._aggregator = Aggregator(store, uploads)

    def register(self, server: grpc.aio.Server) -> None:
        """Add this servicer to a server; Publish and Get transfer raw frames."""
        add_ParamStoreServiceServicer_to_server(self, server)
        publish = bulk_upload(self.Publish, param_store_pb2.PublishResponse.SerializeToString)
        get = bulk_download(self.Get, param_store_pb2.GetRequest.FromString)
        register_bulk(server, "ParamStoreService", {"Publish": publish, "Get": get})

    async def Publish(  # type: ignore[override]  # noqa: N802  # raw frames, see register
        self, request_iterator: AsyncIterator[bytes], context: Context
    ) -> param_store_pb2.PublishResponse:
        """Publish the next versions."""
        header, frames = await chunks.read_header(
            request_iterator, param_store_pb2.PublishHeader, within_s=chunks.STALL_S
        )
        # All of this before its bytes are received, which take room from others.
        check_number("the number of policies", len(header.policies), 0, MAX_POLICIES)
        check_number("the number of versions to keep", header.keep, 0, MAX_KEPT)
        parts = [_parts(policy.blobs) for policy in header.policies]
        every = [part for each in parts for part in each]
        carries.check_publish(header)
        async with self._uploads.receive(frames, every, header.job) as blobs:
            writes = _writes(header.policies, parts, blobs)
            begins = roles.caller.get() is not roles.Role.ACTOR  # else an actor could end its coordinator's epoch
            versions = await self._store.publish(
                header.job, header.epoch, header.round, writes, begins=begins, keep=header.keep
            )
        return param_store_pb2.PublishResponse(
            versions=[common_pb2.PolicyVersion(policy=name, version=version) for name, version in versions.items()]
        )

    async def Aggregate(  # noqa: N802
        self, request: param_store_pb2.AggregateRequest, context: Context
    ) -> param_store_pb2.AggregateResponse:
        """Apply gradients to policies and publish the next versions."""
        made = await self._aggregator.run(aggregation_of(request))
        versions = [common_pb2.PolicyVersion(policy=name, version=version) for name, version in made.versions.items()]
        return param_store_pb2.AggregateResponse(
            versions=versions, start_s=made.start_s, end_s=made.end_s, vcpu_s=made.vcpu_s
        )

    async def Get(  # type: ignore[override]  # noqa: N802  # raw frames, see register
        self, request: param_store_pb2.GetRequest, context: Context
    ) -> None:
        """Stream versions."""
        check_number("the number of policies", len(request.policies), 0, MAX_POLICIES)
        check_names("parts", request.parts, MAX_PARTS)
        roles.check_parts(frozenset(request.parts))
        versions = await self._store.read(request.job, [(each.policy, each.version) for each in request.policies])
        header = param_store_pb2.GetHeader(policies=[_stored(version, request.parts) for version in versions])
        if request.header_only:
            await chunks.write(context, chunks.header_frame(header))
            return
        parts = [version.part(name) for version in versions for name in request.parts]
        read = partial(self._store.pieces, request.job, versions, request.parts)
        # By version, not by what was asked for: the head may be another one at the next read.
        what = (request.job, tuple((each.policy, each.version) for each in versions), tuple(request.parts))
        async for frame in chunks.after(header, self._frames.of(what, parts, read)):
            await chunks.write(context, frame)

    async def Watch(  # noqa: N802
        self, request: param_store_pb2.WatchRequest, context: Context
    ) -> AsyncIterator[param_store_pb2.WatchResponse]:
        """Stream new heads."""
        async for head in self._store.watch(request.job, request.cursor):
            yield param_store_pb2.WatchResponse(head=_stored(head), cursor=head.cursor)

    async def List(  # noqa: N802
        self, request: param_store_pb2.ListRequest, context: Context
    ) -> param_store_pb2.ListResponse:
        """List heads and kept versions."""
        epoch, listed = await self._store.listing(request.job)
        policies = [
            param_store_pb2.PolicyInfo(
                head=_stored(each.head), req_id=each.head.req_id, versions=each.versions, pinned=each.pinned
            )
            for each in listed
        ]
        return param_store_pb2.ListResponse(epoch=epoch, policies=policies, risk=self._risk)

    async def Pin(self, request: param_store_pb2.PinRequest, context: Context) -> param_store_pb2.PinResponse:  # noqa: N802
        """Pin or unpin a version."""
        await self._store.pin(request.job, request.policy.policy, request.policy.version, request.pinned)
        return param_store_pb2.PinResponse()

    async def AcquireEpoch(  # noqa: N802
        self, request: param_store_pb2.AcquireEpochRequest, context: Context
    ) -> param_store_pb2.AcquireEpochResponse:
        """Start a new epoch."""
        epoch = await self._store.acquire_epoch(request.job, request.req_id, request.at_least)
        return param_store_pb2.AcquireEpochResponse(epoch=epoch)

    async def DropJob(  # noqa: N802
        self, request: param_store_pb2.DropJobRequest, context: Context
    ) -> param_store_pb2.DropJobResponse:
        """Delete a job's versions."""
        await self._store.delete(request.job, request.epoch)
        return param_store_pb2.DropJobResponse()


def _parts(blobs: Sequence[param_store_pb2.BlobInfo]) -> tuple[BlobPart, ...]:
    check_names("parts", [blob.part for blob in blobs[: MAX_PARTS + 1]], MAX_PARTS)
    return tuple(BlobPart(blob.part, blob.bytes, blob.sha256) for blob in blobs)


def _writes(
    policies: Iterable[param_store_pb2.PolicyPublish], parts: Sequence[tuple[BlobPart, ...]], blobs: list[memoryview]
) -> list[Write]:
    rest = iter(blobs)
    return [
        Write(
            policy=policy.policy,
            expected=policy.expected,
            req_id=policy.req_id,
            parts=own,
            blobs=tuple(next(rest) for _ in own),
            first_version=policy.first_version or 1,
        )
        for policy, own in zip(policies, parts, strict=True)
    ]


def _stored(version: VersionMetadata, parts: Sequence[str] | None = None) -> param_store_pb2.StoredPolicy:
    chosen = version.parts if parts is None else map(version.part, parts)
    return param_store_pb2.StoredPolicy(
        policy=version.policy,
        version=version.version,
        round=version.round,
        published_s=version.published_s,
        blobs=[param_store_pb2.BlobInfo(part=part.name, bytes=part.size_bytes, sha256=part.sha256) for part in chosen],
    )
