"""Aggregations: gradients become the next versions of policies, and are removed, in one transaction.

Before that transaction, nothing has changed in Redis; after it, all has. So a process that is killed at any time loses
no gradient and applies none twice: a repeated request finds either all as it was, or the versions of its round.

Reads AggregateRequests: their numbers and names are checked, and bounded, before anything is looked up.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from marless.core.errors import ConflictError, NotFoundError, SpecError, TooLargeError, shown
from marless.core.limits import MAX_COUNT, MAX_KEPT, MAX_POLICIES
from marless.core.state import NetStep, ReturnScale
from marless.rpc import gradients
from marless.rpc.concurrency import to_the_end
from marless.rpc.param_store import Aggregation, AggregationReply, WeightedGradient
from marless.rpc.requests import check_names, check_number
from marless.rpc.v1 import common_pb2, param_store_pb2
from marless.services.param_store.blobs import HASH_INLINE_BYTES, BlobUploads
from marless.services.param_store.store import VersionStore
from marless.services.param_store.versions import VersionMetadata, Write, check_name, missing

STATE = ("acting", "learning")
"""The parts of a policy that change; its next version has no other."""
PREFIXES = frozenset({"policy", "critic"})
"""The nets that take steps."""


@dataclass
class _Turns:
    """A lock for each job that has aggregations under way."""

    locks: dict[str, asyncio.Lock] = field(default_factory=dict)
    wanted: Counter[str] = field(default_factory=Counter)

    @asynccontextmanager
    async def of(self, job: str) -> AsyncIterator[None]:
        self.wanted[job] += 1
        try:
            async with self.locks.setdefault(job, asyncio.Lock()):
                yield
        finally:
            self.wanted[job] -= 1
            if not self.wanted[job]:
                del self.wanted[job], self.locks[job]


class Aggregator:
    """The parameter function of one store: one aggregation of a job at a time, those of several jobs at once."""

    def __init__(self, store: VersionStore, uploads: BlobUploads) -> None:
        self._store = store
        self._uploads = uploads
        self._turns = _Turns()

    async def run(self, wanted: Aggregation) -> AggregationReply:
        """Aggregate, unless the round has been published already.

        Raises ConflictError if a head is not the expected one, NotFoundError for a gradient that does not exist,
        SpecError if one does not fit its policy or the result is not finite, CorruptError if stored bytes are damaged,
        OverloadedError or TooLargeError if there is no room, FencedError if the epoch is over.
        """
        # A request that is repeated meanwhile waits here, and then finds what the first one has published.
        async with self._turns.of(wanted.job):
            try:
                return await self._aggregated(wanted)
            except (ConflictError, NotFoundError):  # so it is if the round has been published
                if done := await self._store.published(wanted.job, wanted.req_ids):
                    return AggregationReply(done)
                await self._present(wanted)  # else Redis may have lost the published round between the two reads
                raise

    async def _aggregated(self, wanted: Aggregation) -> AggregationReply:
        start_s = time.time()
        starts, parts = await self._present(wanted)
        state_bytes, gradient_bytes = _bytes(starts, STATE), _bytes(parts, (gradients.PART,))
        room_bytes = 2 * state_bytes + gradient_bytes  # the next versions are as large as the present ones
        limit_bytes = self._uploads.budget.limit_bytes
        if room_bytes > limit_bytes:
            raise TooLargeError(
                f"an aggregation of {room_bytes:,} bytes; this store has room for {limit_bytes:,} (--intake-bytes)"
            )
        async with self._uploads.room(wanted.job, room_bytes):
            writes, vcpu_s = await self._computed(wanted, starts, parts, state_bytes + gradient_bytes)
            # It compares the heads once more, inside of its transaction: they were read a computation ago.
            versions = await self._store.advance(
                wanted.job,
                epoch=wanted.epoch,
                round=wanted.round,
                writes=writes,
                applied=wanted.parts,
                discarded=tuple(wanted.discarded),
                keep=wanted.keep,
            )
        return AggregationReply(versions, start_s, time.time(), vcpu_s)

    async def _present(self, wanted: Aggregation) -> tuple[list[VersionMetadata], list[VersionMetadata]]:
        """What each policy starts from, and the parts of the gradients, read at one moment with the heads."""
        sources = dict.fromkeys(wanted.sources.values())
        named = [*((name, 0) for name in wanted.heads), *sources, *wanted.parts.items()]
        found = await self._store.find(wanted.job, named)
        heads, others = found[: len(wanted.heads)], found[len(wanted.heads) :]
        for (policy, expected), head in zip(wanted.heads.items(), heads, strict=True):
            if head is None and expected:
                raise NotFoundError(f"policy {policy!r} of job {wanted.job!r} has no version any more")
            if head is not None and head.version != expected:
                raise ConflictError(
                    f"policy {policy!r} of job {wanted.job!r} is at version {head.version}; this aggregation expects "
                    f"{expected}"
                )
        for (name, version), each in zip(named[len(heads) :], others, strict=True):
            if each is None:
                raise NotFoundError(missing(wanted.job, name, version))
        there = [each for each in others if each]
        copied = dict(zip(sources, there, strict=False))
        starts = [
            copied[wanted.sources[policy]] if policy in wanted.sources else head
            for policy, head in zip(wanted.heads, heads, strict=True)
        ]
        return [each for each in starts if each], there[len(sources) :]

    async def _computed(
        self,
        wanted: Aggregation,
        starts: Sequence[VersionMetadata],
        parts: Sequence[VersionMetadata],
        read_bytes: int,
    ) -> tuple[list[Write], float]:
        """The next versions, and the CPU seconds that they took."""
        named = [*((each, part) for each in starts for part in STATE), *((each, gradients.PART) for each in parts)]
        blobs = iter(await self._store.blobs(wanted.job, named))
        states = {policy: list(islice(blobs, len(STATE))) for policy in wanted.heads}
        compute = partial(_compute, wanted, states, dict(zip(wanted.parts, blobs, strict=True)))
        made, vcpu_s = compute() if read_bytes <= HASH_INLINE_BYTES else await to_the_end(compute)
        return made, vcpu_s


def _bytes(versions: Sequence[VersionMetadata], names: Sequence[str]) -> int:
    return sum(version.part(name).size_bytes for version in versions for name in names)


def _compute(
    wanted: Aggregation, states: Mapping[str, Sequence[bytes]], data: Mapping[str, bytes]
) -> tuple[list[Write], float]:
    from marless.services.param_store.parameter_function import next_versions  # imported here, because of NumPy

    files = [{name: data[name] for name in each.parts} for each in wanted.gradients]
    weights = [each.weight for each in wanted.gradients]
    made, vcpu_s = next_versions(states, files, weights, wanted.steps, wanted.separate)
    req_ids = wanted.req_ids
    writes = [
        Write(policy, wanted.heads[policy], req_ids[policy], each.parts, each.blobs) for policy, each in made.items()
    ]
    return writes, vcpu_s


def aggregation_of(request: param_store_pb2.AggregateRequest) -> Aggregation:
    """The aggregation that is asked for; raises SpecError for what cannot be one."""
    check_name("job", request.job)
    check_number("epoch", request.epoch)
    check_number("round", request.round)
    check_number("the number of versions to keep", request.keep, 0, MAX_KEPT)
    check_number("the number of gradients", len(request.gradients), 1, MAX_POLICIES)
    sources = _sources(request)
    heads = _versions("policies", request.policies, new=sources)
    check_number("the number of policies", len(heads), 1, MAX_POLICIES)
    if odd := [name for name in heads if gradients.is_gradient(name)]:
        raise SpecError(f"{odd[0]!r} is a gradient, and gets no next version")
    check_number(
        "the number of parts of gradients", sum(len(each.parts) for each in request.gradients), 1, MAX_POLICIES
    )
    parts = [_versions("parts of a gradient", each.parts) for each in request.gradients]
    discarded = _versions("discarded gradients", request.discarded)
    named = [name for each in (*parts, discarded) for name in each]
    check_names("gradients", named, MAX_POLICIES)
    if odd := [name for name in named if not gradients.is_gradient(name)]:
        raise SpecError(f"{odd[0]!r} is no gradient; only gradients are applied and removed")
    for number, each in enumerate(request.gradients):
        check_number(f"the number of parts of gradient {number}", len(each.parts), 1, MAX_POLICIES)
        if not 0 < each.weight <= 1:
            raise SpecError(f"the weight of gradient {number} is {each.weight:g}; it is above 0 and at most 1")
    return Aggregation(
        job=request.job,
        epoch=request.epoch,
        round=request.round,
        heads=heads,
        sources=sources,
        gradients=[WeightedGradient(each, sent.weight) for each, sent in zip(parts, request.gradients, strict=True)],
        discarded=discarded,
        steps=_steps(request),
        separate=request.separate,
        keep=request.keep,
    )


def _versions(what: str, pairs: Sequence[common_pb2.PolicyVersion], *, new: Collection[str] = ()) -> dict[str, int]:
    """Versions by name; only those of `new` policies may be 0."""
    check_names(what, [each.policy for each in pairs[: MAX_POLICIES + 1]], MAX_POLICIES)
    for each in pairs:
        check_name("policy", each.policy)
        check_number(f"the version of {each.policy}", each.version, 0 if each.policy in new else 1)
    return {each.policy: each.version for each in pairs}


def _sources(request: param_store_pb2.AggregateRequest) -> dict[str, tuple[str, int]]:
    """The policies whose next versions start from other policies, with the versions of these."""
    wanted = {each.policy for each in request.policies}
    if odd := request.sources.keys() - wanted:
        raise SpecError(f"a source of {shown(min(odd))}, which is not among the policies that get a next version")
    for source in request.sources.values():
        check_name("policy", source.policy)
        check_number(f"the version of {source.policy}", source.version, 1)
        if gradients.is_gradient(source.policy):
            raise SpecError(f"{source.policy!r} is a gradient, and no policy starts from it")
    return {name: (source.policy, source.version) for name, source in request.sources.items()}


def _steps(request: param_store_pb2.AggregateRequest) -> dict[str, NetStep]:
    if not request.steps or not request.steps.keys() <= PREFIXES:
        listed = ", ".join(map(shown, sorted(request.steps)[: len(PREFIXES) + 1])) or "no net"
        raise SpecError(f"steps of {listed}; give one for policy, for critic, or for both")
    return {prefix: _step(prefix, request.steps[prefix]) for prefix in sorted(request.steps, reverse=True)}


def _step(prefix: str, step: param_store_pb2.NetStep) -> NetStep:
    for what, number in (("lr", step.lr), ("eps", step.eps), ("max_grad_norm", step.max_grad_norm)):
        if not 0 <= number < math.inf:
            raise SpecError(f"the step of {prefix!r}: {what} is {number:g}; it is a finite number of at least 0")
    check_number(f"the step of {prefix!r}: target_steps", step.target_steps, 0, MAX_COUNT)
    returns = None
    if step.HasField("returns"):
        check_number(f"the step of {prefix!r}: returns.decay", step.returns.decay, 0, 1)
        returns = ReturnScale(decay=step.returns.decay, popart=step.returns.popart)
    return NetStep(
        lr=step.lr,
        eps=step.eps,
        max_grad_norm=step.max_grad_norm,
        returns=returns,
        target_steps=step.target_steps or None,
    )
