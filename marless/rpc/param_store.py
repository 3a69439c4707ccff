"""Client of the parameter store, used by learners, actors and the coordinator: publish, aggregate, get, watch, list."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol

from marless.core.errors import CorruptError, OverloadedError, UnavailableError
from marless.core.state import NetStep
from marless.rpc.client import Peer
from marless.rpc.concurrency import delays, pause_s, retry
from marless.rpc.v1 import common_pb2, param_store_pb2
from marless.rpc.v1.param_store_pb2_grpc import ParamStoreServiceStub

LATEST = 0
"""Version number that stands for the head, the newest version of a policy."""
PATIENCE_S = 20.0
TRANSFER_S = 120.0
"""Seconds that a publish, or a read of weights, may take."""


@dataclass(frozen=True)
class PolicyWrite:
    """A request to publish the next version of one policy."""

    policy: str
    expected: int
    """Version of the head that this write follows (compare-and-set); 0 if the policy has no version yet."""
    req_id: str
    """Idempotency key: unique to this write, and the same when it is repeated, e.g. "<job>/<round>/<policy>"."""
    blobs: Mapping[str, bytes | memoryview]
    """Bytes by part: "acting" and "learning" (safetensors), "outcome" (JSON)."""
    first_version: int = 0
    """The version number to publish if the policy has no version yet (restoring a checkpoint); 0: version 1."""


@dataclass(frozen=True)
class WeightedGradient:
    """One gradient of an aggregation."""

    parts: Mapping[str, int]
    """Versions by the names under which the store keeps its parts, one of each scope."""
    weight: float
    """In (0, 1]."""


@dataclass(frozen=True, kw_only=True)
class Aggregation:
    """Gradients that are to become the next versions of policies."""

    job: str
    epoch: int
    """Of the coordinator that asks."""
    round: int
    """That the new versions are of."""
    heads: Mapping[str, int]
    """The present version of each policy and joint critic that gets a next one; 0 if it is new, and has a source."""
    sources: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """Name and present version of another policy, by each policy whose next version starts from it."""
    gradients: Sequence[WeightedGradient]
    """In order of arrival; together, the parts of each have a gradient of every policy in `heads`."""
    discarded: Mapping[str, int] = field(default_factory=dict)
    """Gradients that are removed without being applied; those that do not exist are ignored."""
    steps: Mapping[str, NetStep]
    """The step of each net; see `AlgorithmConfig.net_steps`."""
    separate: bool = False
    """One step for each gradient, instead of one for their weighted mean."""
    keep: int = 0
    """Newest versions of each policy that are kept, if that is more than the store keeps."""

    @property
    def parts(self) -> dict[str, int]:
        """All parts of all gradients."""
        return {name: version for each in self.gradients for name, version in each.parts.items()}

    @property
    def req_ids(self) -> dict[str, str]:
        """The idempotency key of each next version."""
        return {policy: publish_key(self.job, self.round, policy) for policy in self.heads}


@dataclass(frozen=True)
class AggregationReply:
    """What an aggregation has published."""

    versions: Mapping[str, int]
    """The new versions by policy."""
    start_s: float = 0.0
    """When it began, Unix time in seconds; 0 if the round had been published before."""
    end_s: float = 0.0
    vcpu_s: float = 0.0
    """CPU seconds of the computation."""


@dataclass(frozen=True)
class VersionHead:
    """One version of a policy, without its bytes."""

    policy: str
    version: int
    round: int
    published_s: float
    """Unix time, seconds."""


@dataclass(frozen=True)
class StoredVersion(VersionHead):
    """One version of a policy with the requested parts."""

    blobs: Mapping[str, memoryview]
    """Bytes by part; views of one buffer."""


@dataclass(frozen=True)
class HeadChange:
    """A new head, as reported by `ParamStore.watch`."""

    head: VersionHead
    cursor: str
    """Position after this change, from which a watch can continue."""


@dataclass(frozen=True)
class PolicyListing:
    """The head of a policy and all its stored versions."""

    head: VersionHead
    req_id: str
    """`req_id` of the write that published the head."""
    versions: tuple[int, ...]
    pinned: tuple[int, ...]


@dataclass(frozen=True)
class Listing:
    """All policies of a job, and the job's present epoch."""

    epoch: int
    policies: Mapping[str, PolicyListing]
    risk: str = ""
    """Why the store may lose what it has acknowledged, as a sentence; "" if it does not."""


class PolicyStore(Protocol):
    """What a job's execution needs of a parameter store: `ParamStore` is the service's, others keep all in memory."""

    async def publish(
        self,
        job: str,
        epoch: int,
        round: int,  # noqa: A002
        writes: Sequence[PolicyWrite],
        *,
        keep: int = 0,
    ) -> dict[str, int]:
        """Publish the next version of each policy; returns version by policy.

        Each policy is published atomically, but not all of them together: after an error, some may have been
        published, and repeating the call with the same req_ids returns their versions. `keep` newest versions of each
        policy are kept, if that is more than the store keeps.

        Raises ConflictError if a head is not the expected one, FencedError if the epoch is over, OverloadedError if the
        store has no room now, TooLargeError if it never has.
        """
        ...

    async def aggregate(self, wanted: Aggregation) -> AggregationReply:
        """Apply gradients to policies, publish the next versions and remove the gradients: all of it, or nothing.

        Repeated for a round that was published, it only returns its versions. Raises ConflictError if a head is not the
        expected one, NotFoundError, naming it, if a gradient is not there, SpecError if one does not fit its policy or
        the result is not finite, and the errors of `publish`.
        """
        ...

    async def get(
        self, job: str, versions: Mapping[str, int], parts: Sequence[str], *, epoch: int = 0
    ) -> dict[str, StoredVersion]:
        """Read these parts of policies by version (`LATEST`: the head), as one consistent snapshot.

        `epoch` is that of the coordinator for which they are read, if any; a cache answers sooner if it knows it.
        Raises NotFoundError, naming what exists; CorruptError if bytes do not match their checksum.
        """
        ...

    async def list(self, job: str) -> Listing:
        """List heads and stored versions; a job without published policies has an empty list."""
        ...

    async def acquire_epoch(self, job: str, req_id: str, at_least: int = 0) -> int:
        """Begin a new epoch of a job, with a number of `at_least` or more.

        From now on, publishing with an older one raises FencedError. A store that has lost its data counts from 1
        again unless the caller says which epochs there were.
        """
        ...

    async def delete_job(self, job: str, epoch: int = 0) -> None:
        """Delete all versions of a job and end its epoch.

        Raises FencedError if `epoch` is over; pass 0 for a job that no coordinator runs.
        """
        ...


class ParamStore:
    """Client of one parameter store.

    All calls are idempotent. They are retried while the store is unreachable or overloaded, for at most `patience_s`
    seconds; then UnavailableError or OverloadedError is raised.
    """

    def __init__(self, peer: Peer, *, patience_s: float = PATIENCE_S, transfer_s: float = TRANSFER_S) -> None:
        self._peer = peer
        self._stub = ParamStoreServiceStub(peer.channel)
        self._patience_s = patience_s
        self._transfer_s = transfer_s

    async def publish(
        self,
        job: str,
        epoch: int,
        round: int,  # noqa: A002
        writes: Sequence[PolicyWrite],
        *,
        keep: int = 0,
    ) -> dict[str, int]:
        # Once, not at every attempt: it takes the SHA-256 of all bytes.
        header = param_store_pb2.PublishHeader(
            job=job, epoch=epoch, round=round, policies=map(_encode, writes), keep=keep
        )
        blobs = [blob for write in writes for blob in write.blobs.values()]
        response = await retry(
            lambda: self._peer.send(
                "ParamStoreService/Publish", header, blobs, param_store_pb2.PublishResponse, timeout_s=self._transfer_s
            ),
            patience_s=self._patience_s,
        )
        return {each.policy: each.version for each in response.versions}

    async def aggregate(self, wanted: Aggregation) -> AggregationReply:
        request = param_store_pb2.AggregateRequest(
            job=wanted.job,
            epoch=wanted.epoch,
            round=wanted.round,
            policies=_pairs(wanted.heads),
            gradients=(
                param_store_pb2.WeightedGradient(parts=_pairs(each.parts), weight=each.weight)
                for each in wanted.gradients
            ),
            discarded=_pairs(wanted.discarded),
            sources={
                policy: common_pb2.PolicyVersion(policy=name, version=version)
                for policy, (name, version) in wanted.sources.items()
            },
            steps={
                prefix: param_store_pb2.NetStep(
                    lr=step.lr,
                    eps=step.eps,
                    max_grad_norm=step.max_grad_norm,
                    target_steps=step.target_steps or 0,
                    returns=param_store_pb2.ReturnsStep(decay=step.returns.decay, popart=step.returns.popart)
                    if step.returns
                    else None,
                )
                for prefix, step in wanted.steps.items()
            },
            separate=wanted.separate,
            keep=wanted.keep,
        )
        made = await retry(
            lambda: self._peer.call(self._stub.Aggregate, request, timeout_s=self._transfer_s),
            patience_s=self._patience_s,
        )
        versions = {each.policy: each.version for each in made.versions}
        return AggregationReply(versions, made.start_s, made.end_s, made.vcpu_s)

    async def get(
        self, job: str, versions: Mapping[str, int], parts: Sequence[str], *, epoch: int = 0
    ) -> dict[str, StoredVersion]:
        request = param_store_pb2.GetRequest(job=job, policies=_pairs(versions), parts=parts, epoch=epoch)
        header, data = await retry(
            lambda: self._peer.fetch(
                "ParamStoreService/Get", request, param_store_pb2.GetHeader, timeout_s=self._transfer_s
            ),
            patience_s=self._patience_s,
        )
        return {stored.policy: stored for stored in _decode(header, memoryview(data))}

    async def watch(self, job: str, cursor: str = "") -> AsyncGenerator[HeadChange, None]:
        """Yield the present heads (those after `cursor`), then every new one, until the iterator is closed.

        Heads that have been superseded may be skipped; none is repeated. A lost connection is re-established.
        """
        lost_s: float | None = None
        pause = delays()
        while True:
            try:
                request = param_store_pb2.WatchRequest(job=job, cursor=cursor)
                # Otherwise the call would go on until the stream's generator is collected.
                async with aclosing(self._peer.stream(self._stub.Watch, request)) as changes:
                    async for change in changes:
                        # The store answers, so what comes after is another loss, with a patience of its own.
                        lost_s, pause = None, delays()
                        cursor = change.cursor
                        yield HeadChange(_head(change.head), cursor)
                # A store that shuts down ends its streams without an error; the watch goes on with the one that takes
                # its place.
                raise UnavailableError("the store ended the watch")
            except (UnavailableError, OverloadedError) as trouble:
                lost_s = lost_s or time.monotonic()
                if time.monotonic() - lost_s > self._patience_s:
                    raise
                wait_s = pause_s(next(pause), trouble)
            await asyncio.sleep(wait_s)

    async def list(self, job: str) -> Listing:
        request = param_store_pb2.ListRequest(job=job)
        response = await retry(lambda: self._peer.call(self._stub.List, request), patience_s=self._patience_s)
        policies = {
            each.head.policy: PolicyListing(_head(each.head), each.req_id, tuple(each.versions), tuple(each.pinned))
            for each in response.policies
        }
        return Listing(response.epoch, policies, response.risk)

    async def pin(self, job: str, policy: str, version: int, *, pinned: bool = True) -> None:
        """Protect a version from deletion, or stop protecting it; raises NotFoundError if it no longer exists."""
        request = param_store_pb2.PinRequest(
            job=job, policy=common_pb2.PolicyVersion(policy=policy, version=version), pinned=pinned
        )
        await retry(lambda: self._peer.call(self._stub.Pin, request), patience_s=self._patience_s)

    async def acquire_epoch(self, job: str, req_id: str, at_least: int = 0) -> int:
        request = param_store_pb2.AcquireEpochRequest(job=job, req_id=req_id, at_least=at_least)
        response = await retry(lambda: self._peer.call(self._stub.AcquireEpoch, request), patience_s=self._patience_s)
        return response.epoch

    async def delete_job(self, job: str, epoch: int = 0) -> None:
        request = param_store_pb2.DropJobRequest(job=job, epoch=epoch)
        await retry(lambda: self._peer.call(self._stub.DropJob, request), patience_s=self._patience_s)


def _encode(write: PolicyWrite) -> param_store_pb2.PolicyPublish:
    blobs = [
        param_store_pb2.BlobInfo(part=part, bytes=len(data), sha256=hashlib.sha256(data).digest())
        for part, data in write.blobs.items()
    ]
    return param_store_pb2.PolicyPublish(
        policy=write.policy,
        expected=write.expected,
        req_id=write.req_id,
        blobs=blobs,
        first_version=write.first_version,
    )


def _pairs(versions: Mapping[str, int]) -> Iterator[common_pb2.PolicyVersion]:
    return (common_pb2.PolicyVersion(policy=policy, version=version) for policy, version in versions.items())


def _head(stored: param_store_pb2.StoredPolicy) -> VersionHead:
    return VersionHead(stored.policy, stored.version, stored.round, stored.published_s)


def _decode(header: param_store_pb2.GetHeader, data: memoryview) -> Iterator[StoredVersion]:
    at = 0
    for stored in header.policies:
        blobs = {}
        for blob in stored.blobs:
            blobs[blob.part] = data[at : at + blob.bytes]
            at += blob.bytes
            # Checked by the reader, because the bytes may have come through a cache.
            if hashlib.sha256(blobs[blob.part]).digest() != blob.sha256:
                raise CorruptError(f"{stored.policy}@{stored.version}: {blob.part!r} does not match its sha256")
        yield StoredVersion(stored.policy, stored.version, stored.round, stored.published_s, blobs)
    if at != len(data):
        raise CorruptError(f"the store sent {len(data)} bytes where it declared {at}")


def publish_key(job: str, what: int | str, policy: str) -> str:
    """The idempotency key of a policy's next version, by which the store knows that a write is repeated.

    `what` is the round's number, or "init" for the job's first versions.
    """
    return f"{job}/{what}/{policy}"
