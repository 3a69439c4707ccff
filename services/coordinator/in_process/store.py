"""The versions of a job in memory: what the parameter store is to services."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from marless.core.errors import ConflictError, NotFoundError
from marless.core.state import Arrays, PolicyState
from marless.learning.aggregation.applying import applied
from marless.learning.nets import serial
from marless.learning.nets.acting import Acting
from marless.rpc.param_store import (
    Aggregation,
    AggregationReply,
    Listing,
    PolicyListing,
    PolicyWrite,
    StoredVersion,
    VersionHead,
    publish_key,
)
from marless.storage.checkpoint import PARTS

KEPT = 2
"""Versions of each policy: a pipelined schedule's actors act with the one before the newest."""


@dataclass(frozen=True)
class _Held:
    """One version: a state, which is encoded only if a checkpoint asks for its bytes, or blobs."""

    head: VersionHead
    req_id: str
    state: PolicyState | None = None
    blobs: Mapping[str, bytes | memoryview] = field(default_factory=dict)

    def stored(self, parts: Sequence[str]) -> StoredVersion:
        """The version with these parts as bytes."""
        blobs = dict(zip(PARTS, serial.encode(self.state), strict=True)) if self.state else self.blobs
        found = {part: memoryview(blobs[part]) for part in parts}
        head = self.head
        return StoredVersion(head.policy, head.version, head.round, head.published_s, found)


class MemoryStore:
    """The versions of the job that this process runs; they end with it, and checkpoints on the disk remain."""

    def __init__(self) -> None:
        self._epoch = 0
        self._policies: dict[str, dict[int, _Held]] = {}
        """By name, then by version, ascending."""
        self._gradients: dict[str, tuple[int, Mapping[str, Arrays]]] = {}
        """Version and arrays by name in the store; see `marless.rpc.gradients`."""

    # What learners and actors of this process call

    def put(self, job: str, round_: int, what: int | str, states: Mapping[str, PolicyState]) -> dict[str, int]:
        """Publish the next version of each policy, without a copy; returns version by policy."""
        versions = {}
        for name, state in states.items():
            versions[name] = self._newest(name) + 1
            head = VersionHead(name, versions[name], round_, time.time())
            self._add(_Held(head, publish_key(job, what, name), state=state))
        return versions

    def put_gradient(self, name: str, arrays: Mapping[str, Arrays]) -> int:
        """Keep a gradient of several policies until it is applied; returns its version."""
        version = self._gradients[name][0] + 1 if name in self._gradients else 1
        self._gradients[name] = version, arrays
        return version

    def states(self, versions: Mapping[str, int]) -> dict[str, PolicyState]:
        """The states of these versions; raises NotFoundError."""
        return {name: self._state(name, version) for name, version in versions.items()}

    def acting(self, name: str, version: int) -> Acting:
        """What acts of a version; raises NotFoundError. Of versions before its newest, a checkpoint holds no more."""
        held = self._held(name, version)
        return held.state or serial.decode_acting(bytes(held.blobs["acting"]))

    def has(self, name: str, version: int) -> bool:
        """True if this version is kept still."""
        return version in self._policies.get(name, {})

    def heads(self) -> dict[str, int]:
        """The newest version of every policy."""
        return {name: self._newest(name) for name in self._policies}

    # What the execution of a job calls, as `PolicyStore` has it

    async def publish(
        self,
        job: str,
        epoch: int,
        round: int,  # noqa: A002
        writes: Sequence[PolicyWrite],
        *,
        keep: int = 0,
    ) -> dict[str, int]:
        """Publish blobs: of checkpoints, and of carries. Raises ConflictError if a head is not the expected one."""
        versions = {}
        for write in writes:
            name, newest = write.policy, self._newest(write.policy)
            if newest and self._policies[name][newest].req_id == write.req_id:
                versions[name] = newest
                continue
            if newest != write.expected:
                raise ConflictError(f"{name!r} is at version {newest}, not at {write.expected}")
            versions[name] = newest + 1 if newest else write.first_version or 1
            head = VersionHead(name, versions[name], round, time.time())
            self._add(_Held(head, write.req_id, blobs=write.blobs), keep)
        return versions

    async def aggregate(self, wanted: Aggregation) -> AggregationReply:
        """Apply gradients to policies, publish the next versions and remove the gradients."""
        start_s, cpu_s = time.time(), time.thread_time()
        arrays = [self._gradient(each.parts) for each in wanted.gradients]
        weights, versions = [each.weight for each in wanted.gradients], {}
        req_ids = wanted.req_ids
        for name, version in wanted.heads.items():
            start = self._state(*wanted.sources.get(name, (name, version)))
            state = applied(start, [each[name] for each in arrays], weights, wanted.steps, separate=wanted.separate)
            serial.check_update(name, state)
            versions[name] = version + 1
            head = VersionHead(name, version + 1, wanted.round, time.time())
            self._add(_Held(head, req_ids[name], state=state), wanted.keep)
        for name in (*wanted.discarded, *wanted.parts):
            self._gradients.pop(name, None)
        return AggregationReply(versions, start_s, time.time(), time.thread_time() - cpu_s)

    async def get(
        self, job: str, versions: Mapping[str, int], parts: Sequence[str], *, epoch: int = 0
    ) -> dict[str, StoredVersion]:
        """The parts of policies by version (`LATEST`: the head); raises NotFoundError."""
        return {
            name: self._held(name, version or self._newest(name)).stored(parts) for name, version in versions.items()
        }

    async def list(self, job: str) -> Listing:
        """Heads and stored versions of all policies, lanes and gradients."""
        found = {}
        for name, held in self._policies.items():
            newest = held[max(held)]
            found[name] = PolicyListing(newest.head, newest.req_id, tuple(held), ())
        for name, (version, _) in self._gradients.items():
            found[name] = PolicyListing(VersionHead(name, version, 0, 0.0), "", (version,), ())
        return Listing(self._epoch, found)

    async def acquire_epoch(self, job: str, req_id: str, at_least: int = 0) -> int:
        """Begin a new epoch."""
        self._epoch = max(self._epoch + 1, at_least)
        return self._epoch

    async def delete_job(self, job: str, epoch: int = 0) -> None:
        """Delete all versions."""
        self._policies.clear()
        self._gradients.clear()

    def _newest(self, name: str) -> int:
        """The newest version of a policy; 0 if there is none."""
        return max(self._policies.get(name, {}), default=0)

    def _held(self, name: str, version: int) -> _Held:
        try:
            return self._policies[name][version]
        except KeyError:
            raise NotFoundError(
                f"there is no version {version} of {name!r}; the newest is {self._newest(name)}"
            ) from None

    def _state(self, name: str, version: int) -> PolicyState:
        held = self._held(name, version)
        return held.state or serial.decode(*(bytes(held.blobs[part]) for part in PARTS))

    def _gradient(self, parts: Mapping[str, int]) -> dict[str, Arrays]:
        """The arrays of one gradient, of all its scopes, by policy."""
        found: dict[str, Arrays] = {}
        for name in parts:
            if name not in self._gradients:
                raise NotFoundError(f"there is no gradient {name!r}")
            found |= self._gradients[name][1]
        return found

    def _add(self, made: _Held, keep: int = 0) -> None:
        held, version = self._policies.setdefault(made.head.policy, {}), made.head.version
        held[version] = made
        for old in [each for each in held if each <= version - max(keep, KEPT)]:
            del held[old]
