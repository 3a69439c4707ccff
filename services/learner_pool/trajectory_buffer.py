"""The trajectory buffer: checks each upload against its job's declared spaces, and applies it exactly once.

Accepted trajectories are files in a memory-backed directory. Their bytes are written there directly from the stream,
and learner workers on this host map the files, so that there is no further copy, and none is lost when a worker dies.

The order of requests to open a job: one that arrives late or twice must not undo what came after it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from marless.core.errors import (
    AlreadyExistsError,
    CorruptError,
    FencedError,
    JobStateError,
    MarlessError,
    NotFoundError,
    OverloadedError,
    StaleError,
    shown,
)
from marless.learning.data.trajectory import TrajectorySchema
from marless.rpc import chunks
from marless.rpc.admission import ByteBudget
from marless.rpc.requests import check_number
from marless.rpc.v1 import learner_pool_pb2 as pb
from marless.services.learner_pool import spool
from marless.services.learner_pool.content import (
    check_bytes,
    check_checksum,
    check_header,
    declared_bytes,
    headers_of,
    valid_ones,
)
from marless.services.learner_pool.reservations import SpoolReservations

CHECK_INLINE_BYTES = 2**16
"""Larger trajectories are checked on another thread; for smaller ones, changing threads takes longer than the check."""
MOST_UPLOADS = 256
"""Small uploads of one call."""


@dataclass(frozen=True)
class Opening:
    """One of the requests to open a job."""

    opener: str = ""
    """Who has sent it; "" if unknown."""
    number: int = 0
    """Among its opener's requests, in their order."""


UNKNOWN = Opening()


@dataclass(frozen=True)
class TrajectoryFile:
    """An accepted trajectory: its arrays one after another in a file."""

    path: Path
    header: pb.UploadHeader
    size_bytes: int


@dataclass
class _OpenJob:
    schema: TrajectorySchema
    epoch: int
    """Epoch of the coordinator that opened the job last: only its actors may upload."""
    round: int
    """The next round to be trained."""
    ahead: int
    """How many rounds after that one may be rolled out already; trajectories of all others are refused. If it is more
    than one, the job's schedule has no rounds: no room is reserved, and each rollout is a "round" of one actor."""
    opening: Opening
    """The newest request that has opened the job."""
    waiting: dict[tuple[int, int], TrajectoryFile] = field(default_factory=dict)
    """The accepted trajectories by (round, actor index)."""
    kept: dict[Path, int] = field(default_factory=dict)
    """Sizes in bytes of other files of the round, by path."""


@dataclass(frozen=True)
class UploadCounts:
    """Number of uploads so far, by outcome."""

    applied: int = 0
    duplicate: int = 0
    stale: int = 0
    fenced: int = 0
    refused: int = 0


class TrajectoryBuffer:
    """Buffers the trajectories of all open jobs until their update, bounded in bytes.

    Its constructor raises UnavailableError if the spool directory cannot be used.
    """

    def __init__(self, place: Path, limit_bytes: int) -> None:
        self._claim = spool.claim(place)
        self._directory = self._claim.path
        self.budget = ByteBudget("learner pool", "--spool-bytes", limit_bytes)
        self.reservations = SpoolReservations(self.budget, self._empty)
        self._jobs: dict[str, _OpenJob] = {}
        self._serial = itertools.count()
        self.counts = UploadCounts()

    @property
    def held_bytes(self) -> int:
        """Bytes of trajectories that are buffered or being uploaded, and bytes reserved for others."""
        return self.budget.held_bytes

    def open(
        self, job: str, schema: TrajectorySchema, *, epoch: int, round_: int, ahead: int = 0, opening: Opening = UNKNOWN
    ) -> None:
        """Accept uploads of a job's next round, and of those `ahead` after it, under this epoch.

        A job that is open already keeps its trajectories of these rounds. A request that arrives late or twice changes
        nothing: the job's round may have advanced since.

        Trajectories that were accepted under an earlier epoch stay valid, as they depend only on the job's seed, the
        round and the versions. The epoch decides which coordinator's actors may upload from now on.
        """
        known = self._jobs.get(job)
        before = known.opening if known else UNKNOWN
        if known is None or (known.schema, known.ahead) != (schema, ahead):
            self.close(job)
            self._jobs[job] = _OpenJob(schema, epoch, round_, ahead, opening)
            self.reservations.open(job, least_bytes=schema.bytes_with(0), usual_bytes=schema.bytes_with(schema.batch))
        elif opening.opener and opening.opener == before.opener and opening.number <= before.number:
            return  # the same opener has sent the newest request later, or it is that one once more
        elif known.round != round_:  # also back to a round whose update was not recorded, or whose versions were lost
            self._go_to(job, round_)
        self._jobs[job].epoch, self._jobs[job].opening = epoch, opening

    def epoch(self, job: str) -> int:
        """The epoch under which a job is open; 0 if it is not."""
        return self._jobs[job].epoch if job in self._jobs else 0

    def check_epoch(self, job: str, epoch: int) -> None:
        """Raise FencedError for an older epoch than the job's, NotFoundError for a newer one."""
        known = self._known(job)
        if epoch < known.epoch:
            raise FencedError(f"epoch {epoch} of job {job} is over: epoch {known.epoch} has begun")
        if epoch > known.epoch:
            raise NotFoundError(
                f"job {job!r} is open under epoch {known.epoch} in this learner pool, not under {epoch}"
            )

    def close(self, job: str) -> None:
        """Close a job and drop its trajectories; calling it twice is safe."""
        if job in self._jobs:
            self._empty(job)
            del self._jobs[job]
            self.reservations.close(job)

    def advance(self, job: str, round_: int) -> int:
        """Drop the trajectories of all rounds before `round_`, and refuse them from now on.

        Returns the number of actors of `round_` for which room is reserved.
        """
        known = self._known(job)
        if round_ > known.round:
            return self._go_to(job, round_)
        return self.reservations.keep(job, known.round)

    async def reserve(self, request: pb.ReserveRequest) -> None:
        """Reserve room for a round before its actors run; see `SpoolReservations.reserve`."""
        self.check_epoch(request.job, request.epoch)
        known, needed_bytes = self._known(request.job), 0
        if request.round > known.round:  # the files that rounds before this one are trained from
            files = (file.size_bytes for (number, _), file in known.waiting.items() if number < request.round)
            needed_bytes = sum(files) + sum(known.kept.values())
        await self.reservations.reserve(
            request.job, request.round, request.actors, request.idle_s, concurrent_bytes=needed_bytes
        )

    def spare(self) -> Path:
        """An unused path for another file of a round; see `keep`."""
        return self._directory / f"{next(self._serial)}"

    def keep(self, job: str, path: Path) -> bool:
        """Count a file with the trajectories of the job's round, to be dropped with them.

        Returns False, and removes the file, if there is no room for it.
        """
        known, size = self._known(job), path.stat().st_size
        if size > self.budget.free_bytes:
            path.unlink()
            return False
        known.kept[path] = size
        self.reservations.count(job, size)
        return True

    def discard(self, job: str, path: Path) -> None:
        """Remove a file that `keep` was called with; calling it twice is safe."""
        path.unlink(missing_ok=True)
        if job in self._jobs and (size := self._jobs[job].kept.pop(path, 0)):
            self.reservations.count(job, -size)

    def trajectories(self, job: str, round_: int, actors: int) -> list[TrajectoryFile]:
        """The trajectories of actors 0 … actors-1, in that order; raises StaleError if some are missing."""
        waiting = self._known(job).waiting
        missing = [index for index in range(actors) if (round_, index) not in waiting]
        if missing:
            raise StaleError(
                f"job {job}, round {round_ + 1}: no trajectory of actors {shown(missing)}; run its rollout again"
            )
        return [waiting[round_, index] for index in range(actors)]

    def rollouts(self, job: str, rollouts: Sequence[int]) -> list[TrajectoryFile]:
        """The trajectories of rollouts of one actor each, in this order; raises StaleError if some are missing."""
        waiting = self._known(job).waiting
        missing = [rollout for rollout in rollouts if (rollout, 0) not in waiting]
        if missing:
            raise StaleError(f"job {job}: no trajectories of rollouts {shown(missing)}; run them again")
        return [waiting[rollout, 0] for rollout in rollouts]

    def used(self, job: str, rollouts: Iterable[int], oldest: int) -> None:
        """Drop the trajectories of these rollouts, and all before `oldest`, which are refused from now on."""
        known = self._known(job)
        for rollout in rollouts:
            if file := known.waiting.pop((rollout, 0), None):
                self._discard_file(file)
        self.advance(job, oldest)

    async def receive(self, stream: AsyncIterator[bytes]) -> bool:
        """Receive one upload; returns False for a duplicate.

        Raises NotFoundError, StaleError, FencedError, JobStateError (a round after the next one), AlreadyExistsError
        (the actor has uploaded another trajectory), CorruptError, OverloadedError, TooLargeError, UnavailableError
        (disk full) or UnreachableError (the stream stalled).
        """
        header, frames = await chunks.read_header(stream, pb.UploadHeader, within_s=chunks.STALL_S)
        with self._counting():
            applied = await self._receive(header, frames)
        self._count("applied" if applied else "duplicate")
        return applied

    def receive_many(self, request: pb.UploadManyRequest) -> pb.UploadManyResponse:
        """Take each of several small uploads, or refuse it, by itself; raises SpecError for too many of them."""
        check_number("the number of uploads", len(request.uploads), 0, MOST_UPLOADS)
        headers, contents = headers_of(request.uploads), [each.data for each in request.uploads]
        schemas = {job: known.schema for job, known in self._jobs.items()}
        valid = valid_ones(schemas, headers, contents)
        outcomes = (
            self._outcome(header, content, is_valid=position in valid)
            for position, (header, content) in enumerate(zip(headers, contents, strict=True))
        )
        return pb.UploadManyResponse(outcomes=outcomes)

    def _outcome(self, header: pb.UploadHeader | None, content: bytes, *, is_valid: bool) -> pb.UploadOutcome:
        try:
            with self._counting():
                applied = self._accept_upload(header, content, is_valid=is_valid)
        except MarlessError as error:
            return pb.UploadOutcome(error_code=type(error).__name__, error=str(error))
        self._count("applied" if applied else "duplicate")
        return pb.UploadOutcome(duplicate=not applied)

    def _accept_upload(self, header: pb.UploadHeader | None, content: bytes, *, is_valid: bool) -> bool:
        """Receive, as `_receive` does, an upload whose bytes are all here; it waits for nothing."""
        if header is None:
            raise CorruptError("an upload does not start with an UploadHeader")
        known = self._admit(header)
        if _is_there(known, header):
            return False
        if is_valid:
            # Its arrays were looked at together with those of others; a checksum is of one upload.
            check_checksum(header, memoryview(content))
        else:
            check_header(known.schema, header)
            if declared_bytes(header) != len(content):
                raise CorruptError(f"an upload has {len(content)} bytes, its header declares others")
            check_bytes(known.schema, header, memoryview(content))
        covered = self.reservations.covers(header.job, header.round, header.index, len(content))
        # This call cannot wait for room. A job whose schedule has no rounds reserves none, so it gets what is free now.
        if not covered and not (known.ahead > 1 and self.budget.takes(len(content))):
            raise OverloadedError(f"round {header.round + 1} of job {header.job} has not reserved room for this upload")
        path = self.spare()
        spool.write(path, content)
        self._store(known, TrajectoryFile(path, header, len(content)))
        return True

    async def _receive(self, header: pb.UploadHeader, stream: chunks.Frames) -> bool:
        # Before its bytes are received: what belongs to another round or epoch costs nothing.
        known = self._admit(header)
        if _is_there(known, header):
            return False
        check_header(known.schema, header)
        size = declared_bytes(header)
        async with self.reservations.upload(header.job, header.round, header.index, size):
            with spool.mapped(self.spare(), size) as (path, buffer):
                await chunks.read_data(stream, buffer)
                if size <= CHECK_INLINE_BYTES:
                    check_bytes(known.schema, header, buffer)
                else:
                    await asyncio.to_thread(check_bytes, known.schema, header, buffer)
                # Asked once more, because the job may have gone on, or been opened anew, while the bytes came.
                if self._admit(header) is not known:
                    raise StaleError(f"job {header.job} was opened anew while actor {header.index} uploaded")
                if _is_there(known, header):  # an equal upload was faster
                    path.unlink()
                    return False
                self._store(known, TrajectoryFile(path, header, size))
        return True

    def _store(self, known: _OpenJob, file: TrajectoryFile) -> None:
        key = (file.header.round, file.header.index)
        if displaced := known.waiting.pop(key, None):
            self._discard_file(displaced)
        known.waiting[key] = file
        self.reservations.count(file.header.job, file.size_bytes)

    def _admit(self, header: pb.UploadHeader) -> _OpenJob:
        """The job of an upload; raises if the upload belongs to another round or epoch."""
        self.check_epoch(header.job, header.epoch)
        known = self._known(header.job)
        if header.round < known.round:
            raise StaleError(f"job {header.job}: round {header.round + 1} has passed, round {known.round + 1} is next")
        if (
            header.round > known.round + known.ahead
        ):  # an error of the caller: the versions that it starts from do not exist
            raise JobStateError(
                f"job {header.job}: round {header.round + 1} has not begun, round {known.round + 1} is next"
            )
        return known

    def shutdown(self) -> None:
        """Drop all files and the directory."""
        self._claim.release()

    def _go_to(self, job: str, round_: int) -> int:
        """Accept trajectories of `round_` and those ahead of it, and drop those of other rounds.

        Returns for how many actors of `round_` room is reserved.
        """
        known = self._jobs[job]
        for key in [key for key in known.waiting if not round_ <= key[0] <= round_ + known.ahead]:
            self._discard_file(known.waiting.pop(key))
        if known.ahead <= 1:  # else they belong to no round, and an update may still need them
            for path in list(known.kept):
                self.discard(job, path)
        known.round = round_
        return self.reservations.keep(job, round_)

    def _known(self, job: str) -> _OpenJob:
        if job not in self._jobs:
            raise NotFoundError(f"job {shown(job)} is not open in this learner pool")
        return self._jobs[job]

    def _empty(self, job: str) -> None:
        """Drop all files of a job."""
        known = self._jobs[job]
        while known.waiting:
            self._discard_file(known.waiting.popitem()[1])
        for path in list(known.kept):
            self.discard(job, path)

    def _discard_file(self, file: TrajectoryFile) -> None:
        file.path.unlink(missing_ok=True)
        self.reservations.count(file.header.job, -file.size_bytes)

    @contextmanager
    def _counting(self) -> Iterator[None]:
        """Count an upload that the block refuses."""
        try:
            yield
        except MarlessError as error:
            known = {StaleError: "stale", FencedError: "fenced"}
            self._count(known.get(type(error), "refused"))
            raise

    def _count(self, outcome: str) -> None:
        self.counts = replace(self.counts, **{outcome: getattr(self.counts, outcome) + 1})


def _is_there(known: _OpenJob, header: pb.UploadHeader) -> bool:
    """True if this trajectory is buffered already; raises AlreadyExistsError if the actor has uploaded another one.

    Repeated actors upload the same bytes, unless their environment is not deterministic under its seed. Then the newer
    epoch's trajectory replaces the earlier one, because the present coordinator records the returns of its own actors.
    """
    there = known.waiting.get((header.round, header.index))
    if there is None:
        return False
    if (there.header.crc32, *there.header.arrays) == (header.crc32, *header.arrays):
        return True
    if there.header.epoch < header.epoch:
        return False
    raise AlreadyExistsError(
        f"job {header.job}, round {header.round + 1}: actor {header.index} has uploaded a trajectory with other "
        "content; that one is used"
    )
