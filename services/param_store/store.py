"""The version store: immutable versions of policies; their heads change by fenced compare-and-set.

Every change is one Redis transaction: it is atomic, and costs one write to Redis's log.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from marless.core.errors import (
    FencedError,
    MarlessError,
    NotFoundError,
    OverloadedError,
    TooLargeError,
    UnavailableError,
    unknown_name,
)
from marless.core.failpoint import failpoint
from marless.rpc import gradients
from marless.rpc.requests import check_number, check_text
from marless.services.param_store.blobs import PIECE_BYTES, BlobPart, Checksums, Piece, Published, batches, pieces_of
from marless.services.param_store.connection import redis_errors
from marless.services.param_store.versions import (
    LONGEST_REQUEST,
    JobKeys,
    ListedPolicy,
    VersionMetadata,
    Write,
    add_attempt,
    advanced,
    check_name,
    check_writes,
    position,
    version_from,
    version_of,
)

FENCE_TTL_S = 86_400
EVENTS_KEPT = 1000
WATCHES = 64
PUBLISHED_BYTES = 64 * 2**20
"""Bytes of the parts published last that are kept in memory."""
WATCH_POLL_MS = 500
READY_TIMEOUT_S = 1.0


def _script(name: str) -> str:
    return (Path(__file__).parent / "lua" / f"{name}.lua").read_text(encoding="utf-8")


_PUBLISH, _READ, _ACQUIRE_EPOCH, _PIN, _DELETE_JOB = map(
    _script, ("publish", "read", "acquire_epoch", "pin", "delete_job")
)
# In front of both, because a script of Redis cannot call another one.
_FLIP = _script("flip")
_PUBLISH, _ADVANCE = _FLIP + _PUBLISH, _FLIP + _script("advance")


class VersionStore:
    """The versions of all jobs in one Redis; it keeps the `keep` newest of each policy, and pinned ones.

    Every method raises UnavailableError while Redis cannot be used.
    """

    def __init__(self, redis: Redis, trouble: Callable[[], str], *, keep: int, watches: int = WATCHES) -> None:
        self._trouble = trouble
        self._redis: Any = redis  # Any: redis-py leaves execute_command untyped
        self._keep = keep
        self._free_watches = watches
        self._draining = False
        self._published = Published(PUBLISHED_BYTES)

    async def ready(self) -> bool:
        """True while Redis answers."""
        try:
            with redis_errors(self._trouble):
                return bool(await asyncio.wait_for(self._redis.execute_command("PING"), READY_TIMEOUT_S))
        except (MarlessError, TimeoutError):
            return False

    async def drain(self) -> None:
        """End all watches within half a second."""
        self._draining = True

    async def publish(
        self,
        job: str,
        epoch: int,
        round: int,  # noqa: A002
        writes: Sequence[Write],
        *,
        begins: bool = True,
        keep: int = 0,
    ) -> dict[str, int]:
        """Publish several writes in one transaction, each applied or refused independently; returns their versions.

        A write whose req_id was published before returns that version, if it still exists. An epoch that is newer than
        the store's begins with this publish, unless `begins` is False. `keep` newest versions of each policy are kept,
        if that is more than the store keeps.

        Raises ConflictError if a head is not the expected one, NotFoundError if there is none where one is expected,
        FencedError if the epoch is over or may not begin (each for the first refused write; others may have been
        published), OverloadedError if Redis is full, TooLargeError if the job's versions can never fit.
        """
        keys, kept = JobKeys(job), max(keep, self._keep)
        check_writes(epoch, round, writes)
        transaction = self._redis.pipeline(transaction=True)
        for write in writes:
            attempt = keys.attempt()
            add_attempt(transaction, attempt, epoch, round, write)
            policy = write.policy
            names = (keys.fence, keys.heads, keys.events, keys.kept(policy), keys.pinned(policy), keys.requests(policy))
            facts = (policy, write.req_id, write.expected, epoch, kept, EVENTS_KEPT, write.first_version)
            flags = (int(begins), int(not gradients.is_gradient(policy)))
            transaction.execute_command(
                "EVAL", _PUBLISH, 1 + len(names), attempt, *names, keys.versions, *facts, *flags
            )
        failpoint("param_store.publish.before")
        try:
            with redis_errors(self._trouble):
                answers = await transaction.execute()
        except OverloadedError:
            # What can never fit is another error, which ends the job at once instead of being retried.
            await self._check_fits(job, writes, kept)
            raise
        failpoint("param_store.publish.after")
        self._keep_parts(writes)
        # Only scripts answer with lists; the commands that have put the attempts there answer with numbers.
        outcomes = [answer for answer in answers if isinstance(answer, list)]
        return {
            write.policy: version_of(job, epoch, write, outcome)
            for write, outcome in zip(writes, outcomes, strict=True)
        }

    async def advance(
        self,
        job: str,
        epoch: int,
        round: int,  # noqa: A002
        writes: Sequence[Write],
        *,
        applied: Mapping[str, int],
        discarded: Collection[str],
        keep: int = 0,
    ) -> dict[str, int]:
        """Publish all writes and remove gradients in one transaction, or do nothing; returns the versions.

        Args:
            job: Name of the job.
            epoch: Of the caller.
            round: That the versions are of.
            writes: The next version of each policy; if all of them were published before, nothing is changed.
            applied: Versions by the names of gradients that must exist; they are removed.
            discarded: Names of gradients that are removed if they exist.
            keep: Newest versions of each policy that are kept, if that is more than the store keeps.

        Raises the errors of `publish`, and NotFoundError if a gradient does not exist (any more).
        """
        keys, kept = JobKeys(job), max(keep, self._keep)
        check_writes(epoch, round, writes)
        transaction, attempts = self._redis.pipeline(transaction=True), [keys.attempt() for _ in writes]
        for attempt, write in zip(attempts, writes, strict=True):
            add_attempt(transaction, attempt, epoch, round, write)
        names = (keys.fence, keys.heads, keys.events, *attempts)
        transaction.execute_command(
            "EVAL",
            _ADVANCE,
            len(names),
            *names,
            keys.prefix,
            epoch,
            kept,
            EVENTS_KEPT,
            len(applied),
            *(word for write in writes for word in (write.policy, write.req_id, write.expected)),
            *(word for pair in applied.items() for word in pair),
            *discarded,
        )
        failpoint("param_store.aggregate.before")
        try:
            with redis_errors(self._trouble):
                *_, answer = await transaction.execute()
        except OverloadedError:
            await self._check_fits(job, writes, kept)
            raise
        failpoint("param_store.aggregate.after")
        self._keep_parts(writes)
        return advanced(job, epoch, writes, list(applied.items()), answer)

    async def published(self, job: str, req_ids: Mapping[str, str]) -> dict[str, int] | None:
        """The versions that these requests have published, by policy; None unless each of them exists."""
        keys = JobKeys(job)
        reads = self._redis.pipeline(transaction=True)
        for policy, req_id in req_ids.items():
            reads.execute_command("HGET", keys.requests(policy), req_id)
        with redis_errors(self._trouble):
            found = await reads.execute()
        return None if None in found else dict(zip(req_ids, map(int, found), strict=True))

    def _keep_parts(self, writes: Sequence[Write]) -> None:
        """Keep what was published, unless copying it would hold up the event loop."""
        if sum(len(blob) for write in writes for blob in write.blobs) > PIECE_BYTES:
            return
        for write in writes:
            for part, blob in zip(write.parts, write.blobs, strict=True):
                self._published.add(part, blob)

    async def _check_fits(self, job: str, writes: Sequence[Write], keep: int) -> None:
        """Raise TooLargeError if an otherwise empty Redis could not hold these versions and their predecessors."""
        with redis_errors(self._trouble):
            most_bytes = int((await self._redis.info("memory")).get("maxmemory", 0))
        kept = min(keep, max((write.expected for write in writes), default=0))
        needed = (1 + kept) * sum(len(blob) for write in writes for blob in write.blobs)
        if 0 < most_bytes < needed:
            raise TooLargeError(
                f"job {job!r}: its versions take {needed:,} bytes, and Redis may use {most_bytes:,}; raise its "
                "maxmemory (--redis-maxmemory), or keep fewer versions (--keep)"
            )

    async def read(self, job: str, wanted: Sequence[tuple[str, int]]) -> list[VersionMetadata]:
        """Read the metadata of versions by policy and number (0: the head), atomically; raises NotFoundError."""
        found = await self.find(job, wanted)
        versions = [version for version in found if version]
        if len(versions) < len(found):
            policy, number = wanted[found.index(None)]
            raise NotFoundError(await self._missing(job, policy, number))
        return versions

    async def find(self, job: str, wanted: Sequence[tuple[str, int]]) -> list[VersionMetadata | None]:
        """Read as `read` does, with None for versions that do not exist."""
        if not wanted:
            return []
        for policy, version in wanted:
            check_name("policy", policy)
            check_number(f"the version of policy {policy}", version)
        return await self._metadata(JobKeys(job), *(word for pair in wanted for word in pair))

    async def pieces(
        self, job: str, versions: Sequence[VersionMetadata], parts: Sequence[str]
    ) -> AsyncIterator[list[bytes]]:
        """Stream the bytes of these parts in order, in batches of PIECE_BYTES at most.

        Raises NotFoundError if a version was retired meanwhile, CorruptError if a checksum does not match.
        """
        wanted = [(each, each.part(name)) for each in versions for name in parts]
        async for values in self._pieces(JobKeys(job), wanted):
            yield values

    async def blobs(self, job: str, wanted: Sequence[tuple[VersionMetadata, str]]) -> list[bytes]:
        """The bytes of parts, each given by its version and its name, in order. Raises the errors of `pieces`."""
        parts = [(version, version.part(name)) for version, name in wanted]
        values = iter([value async for batch in self._pieces(JobKeys(job), parts) for value in batch])
        return [b"".join(islice(values, len(pieces_of("", part)))) for _, part in parts]

    async def _pieces(
        self, keys: JobKeys, parts: Sequence[tuple[VersionMetadata, BlobPart]]
    ) -> AsyncIterator[list[bytes]]:
        blobs = [(keys.version(each.policy, each.version), part) for each, part in parts]
        checksums = Checksums()
        for batch in batches(piece for key, part in blobs for piece in pieces_of(key, part)):
            # What is kept has one piece only, so that the running checksum of a longer part misses none of its pieces.
            kept = [self._published.get(piece.part) for piece in batch]
            lacking = [piece for piece, value in zip(batch, kept, strict=True) if value is None]
            read = iter(await self._read(keys, lacking, checksums) if lacking else ())
            yield [next(read) if value is None else value for value in kept]

    async def _read(self, keys: JobKeys, pieces: Sequence[Piece], checksums: Checksums) -> list[bytes]:
        # No transaction: versions never change, and one that has gone meanwhile shows by a missing piece.
        reads = self._redis.pipeline(transaction=False)
        for piece in pieces:
            reads.execute_command("HGET", piece.key, piece.field)
        with redis_errors(self._trouble):
            values: list[bytes] = await reads.execute()
        if None in values:
            raise NotFoundError(f"a version of job {keys.job!r} was retired while it was read; read the head again")
        await checksums.check(pieces, values)
        return values

    async def watch(self, job: str, cursor: str) -> AsyncIterator[VersionMetadata]:
        """Stream the heads published after `cursor`, in order, without end; superseded heads may be left out.

        Raises SpecError for an invalid cursor, OverloadedError for too many watches, UnavailableError at `drain`.
        """
        keys, at = JobKeys(job), position(cursor)
        if not self._free_watches:
            raise OverloadedError("no room in the parameter store: too many watches; end some or poll with List")
        self._free_watches -= 1
        try:
            while True:
                heads = [head for head in await self._metadata(keys) if head and head.position > at]
                for head in sorted(heads, key=lambda head: head.position):
                    at = head.position
                    yield head
                # From the last head that was told on, so that one published between the two calls is not missed.
                await self._changed(keys, at)
        finally:
            self._free_watches += 1

    async def _changed(self, keys: JobKeys, at: tuple[int, int]) -> None:
        since = f"{at[0]}-{at[1]}"
        while not self._draining:
            with redis_errors(self._trouble):
                # Not for longer, because `drain` has no other way to end it.
                if await self._redis.execute_command(
                    "XREAD", "COUNT", 1, "BLOCK", WATCH_POLL_MS, "STREAMS", keys.events, since
                ):
                    return
        raise UnavailableError("the store is stopping; continue from the last cursor")

    async def listing(self, job: str) -> tuple[int, list[ListedPolicy]]:
        """The job's epoch, and its policies by name."""
        keys = JobKeys(job)
        heads = sorted(filter(None, await self._metadata(keys)), key=lambda head: head.policy)
        reads = self._redis.pipeline(transaction=True)
        reads.execute_command("HGET", keys.fence, "epoch")
        for head in heads:
            reads.execute_command("ZRANGE", keys.kept(head.policy), 0, -1)
            reads.execute_command("SMEMBERS", keys.pinned(head.policy))
        with redis_errors(self._trouble):
            epoch, *sets = await reads.execute()
        listed = [
            ListedPolicy(head, _numbers(kept), _numbers(pinned))
            for head, kept, pinned in zip(heads, sets[::2], sets[1::2], strict=True)
        ]
        return int(epoch or 0), listed

    async def pin(self, job: str, policy: str, version: int, pinned: bool) -> None:
        """Pin a version, so that it is kept whatever its age, or unpin it; raises NotFoundError if there is none."""
        keys = JobKeys(job)
        check_name("policy", policy)
        check_number(f"the version of policy {policy}", version)
        if not await self._eval(_PIN, [keys.kept(policy), keys.pinned(policy)], version, int(pinned)):
            raise NotFoundError(await self._missing(job, policy, version))

    async def acquire_epoch(self, job: str, req_id: str, at_least: int = 0) -> int:
        """Start the next epoch of a job, or epoch `at_least` if that is later; idempotent by req_id.

        From then on, publishes under older ones are refused.
        """
        check_text("req_id", req_id, LONGEST_REQUEST)
        check_number("the least epoch", at_least)
        return int(await self._eval(_ACQUIRE_EPOCH, [JobKeys(job).fence], req_id, at_least))

    async def delete(self, job: str, epoch: int = 0) -> None:
        """Delete all versions of a job and end its epoch; does nothing if there are none.

        Raises FencedError if `epoch` is over; epoch 0 is for a job that no coordinator runs.
        """
        keys = JobKeys(job)
        names = [keys.fence, keys.heads, keys.events]
        if newest := await self._eval(_DELETE_JOB, names, keys.prefix, FENCE_TTL_S, epoch):
            raise FencedError(f"epoch {epoch} of job {job!r} is over: epoch {newest} has begun, and only it may delete")

    async def _metadata(self, keys: JobKeys, *wanted: str | int) -> list[VersionMetadata | None]:
        found = await self._eval(_READ, [keys.heads], keys.versions, *wanted)
        return [version_from(fields) if fields[-1] else None for fields in found]

    async def _missing(self, job: str, policy: str, version: int) -> str:
        _, listed = await self.listing(job)
        by_name = {each.head.policy: each for each in listed}
        if policy not in by_name:
            return f"job {job!r}: {unknown_name('policy', policy, by_name)}"
        kept = ", ".join(map(str, by_name[policy].versions))
        return f"policy {policy!r} of job {job!r} has no version {version} (any more); it has {kept}"

    async def _eval(self, script: str, keys: list[str], *args: str | int) -> Any:  # Any: what the script answers
        with redis_errors(self._trouble):
            return await self._redis.execute_command("EVAL", script, len(keys), *keys, *args)


def _numbers(members: Iterable[bytes]) -> tuple[int, ...]:
    return tuple(sorted(map(int, members)))
