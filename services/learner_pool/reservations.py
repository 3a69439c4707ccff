"""Admission control for the spool: reserves room for all trajectories of a round before its actors run.

Because a round is admitted whole, two jobs can never deadlock, each with half of the room that it needs. A round gives
its room back when its update is done. A coordinator asks with `Reserve` and waits for its turn (see `ByteBudget`).
Room that has been unused for longer than an actor may take is revoked while others wait for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from marless.core.errors import NotFoundError, OverloadedError, TooLargeError
from marless.core.log import structlog
from marless.rpc.admission import ByteBudget

UPLOAD_WAIT_S = 20.0
"""Seconds that an upload without a reservation waits for room; until then, only its first message is read, with 1 MiB
of its data at most.
"""
LOOK_S = 1.0
_AFTER_S = 60.0
"""A retry delay longer than any sender waits, so that senders give up, and the coordinator reserves again."""
_log = structlog.get_logger("learner_pool")


@dataclass
class _Holding:
    """The room of an open job: the larger of what its files and uploads use and what its round has reserved."""

    least_bytes: int
    """Smallest size of a trajectory of this job."""
    usual_bytes: int
    """Expected size of a trajectory, or that of the largest so far if it is larger."""
    concurrent_bytes: int = 0
    """Room of the spool that the job's replay files need."""
    used_bytes: int = 0
    promised_bytes: int = 0
    round: int = -1
    """The round for which room is reserved, for `actors` actors."""
    actors: int = 0
    uploading: set[int] = field(default_factory=set)
    """Actors of that round that are uploading now."""
    updating: bool = False
    touched_s: float = 0.0
    idle_s: float = float("inf")
    trained: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the files of a round are dropped because it is trained."""
    reserving: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def held_bytes(self) -> int:
        return max(self.used_bytes, self.promised_bytes)

    def covers(self, round_: int, index: int) -> bool:
        return round_ == self.round and 0 <= index < self.actors and index not in self.uploading

    def idle(self) -> bool:
        busy = self.updating or self.uploading or not self.held_bytes
        return not busy and time.monotonic() - self.touched_s > self.idle_s


class SpoolReservations:
    """The spool's room by job. `drop` is called to remove all files of a job; it must call `count` for each."""

    def __init__(self, budget: ByteBudget, drop: Callable[[str], None]) -> None:
        self._budget = budget
        self._drop = drop
        self._jobs: dict[str, _Holding] = {}

    def open(self, job: str, *, least_bytes: int, usual_bytes: int) -> None:
        """Start to account for a job's room; the arguments are the sizes of one trajectory, see `_Holding`."""
        self._jobs[job] = _Holding(least_bytes, usual_bytes)

    def close(self, job: str) -> None:
        """Cancel a job's reservation; its uploads in progress give their room back when they end."""
        self._change(job, holding := self._jobs.pop(job), promised=0)
        holding.actors = 0
        # Who waits for the end of a round of this job must see that there will be none.
        holding.trained.set()

    def check(self, job: str, actors: int, concurrent_bytes: int) -> None:
        """Raise TooLargeError if a round of `actors` actors can never fit together with the job's replay files.

        Replay files that exceed the spool by themselves are refused in `Replays.open`, which names them.
        """
        holding = self._jobs[job]
        holding.concurrent_bytes = concurrent_bytes
        most, needed = self._budget.limit_bytes - concurrent_bytes, actors * holding.least_bytes
        if 0 <= most < needed:
            raise self._too_large(job, holding, f"a round of {actors} actors takes {needed:,} bytes")

    async def reserve(self, job: str, round_: int, actors: int, idle_s: float, *, concurrent_bytes: int = 0) -> None:
        """Reserve room for all trajectories of a round; returns when it is the job's turn.

        `concurrent_bytes` are the files of an earlier round, which is being trained: they stay, and their room is free
        soon, whoever waits. Otherwise, if the room is not free at once, the job's buffered trajectories are dropped
        first, so that no job waits for the room of a waiting job.

        Raises TooLargeError if the round can never fit, OverloadedError if replay files of other jobs or an update of
        this job take the room, NotFoundError if the job is closed while it waits.
        """
        holding = self._jobs[job]
        async with holding.reserving:
            holding.idle_s, holding.touched_s = idle_s, time.monotonic()
            wanted = self._wanted(job, holding, actors)
            if concurrent_bytes and wanted + concurrent_bytes > self._budget.limit_bytes - self._budget.aside_bytes:
                holding.trained.clear()
                await holding.trained.wait()  # the two rounds never fit
                self._check_open(job, holding)
                concurrent_bytes = 0
            if concurrent_bytes:
                await self._hold_beside_training(job, holding, wanted + concurrent_bytes)
            elif not self._grow(job, holding, wanted):
                # An update still reads the files that would be dropped below.
                if holding.updating:
                    raise OverloadedError(f"no room in the learner pool: an update of job {job} still uses what it has")
                self._release_holding(job, holding)
                await self._turn(job, wanted)
                self._check_open(job, holding, wanted)
                # All of `wanted` is taken now; what uploads have come to hold meanwhile must not count twice.
                before = holding.held_bytes
                holding.promised_bytes = wanted
                self._budget.release(job, wanted - (holding.held_bytes - before))
            holding.round, holding.actors, holding.touched_s = round_, actors, time.monotonic()

    async def _hold_beside_training(self, job: str, holding: _Holding, wanted: int) -> None:
        """Make the job hold `wanted` bytes without touching what it has; waits for its turn if they are not free."""
        if (more := wanted - holding.held_bytes) > 0 and not self._grow(job, holding, wanted):
            await self._turn(job, more)
            self._check_open(job, holding, more)
            holding.promised_bytes = holding.held_bytes + more

    def _check_open(self, job: str, holding: _Holding, taken: int = 0) -> None:
        """Raise NotFoundError if the job was closed while it waited; gives back what it has taken."""
        if self._jobs.get(job) is not holding:
            self._budget.release(job, taken)
            raise NotFoundError(f"job {job!r} was closed while it waited for room")

    def keep(self, job: str, round_: int) -> int:
        """Move the reservation to `round_` if nobody waits for room, else cancel it; returns its number of actors."""
        holding = self._jobs[job]
        holding.trained.set()
        if round_ == holding.round:  # it was reserved while the round before was trained, or the job was opened again
            usual = holding.actors * holding.usual_bytes
            self._change(job, holding, promised=min(holding.promised_bytes, usual))
            return holding.actors
        holding.touched_s = time.monotonic()
        if self._budget.waiting or not self._grow(job, holding, holding.actors * holding.usual_bytes):
            holding.actors = 0
            self._change(job, holding, promised=0)
        holding.round = round_
        return holding.actors

    @asynccontextmanager
    async def upload(self, job: str, round_: int, index: int, size: int) -> AsyncIterator[None]:
        """Hold room for one upload while the context lasts: from its round's reservation, else by waiting for a turn.

        Raises OverloadedError if there is no room in time, TooLargeError if there can never be enough.
        """
        holding = self._jobs[job]
        if covered := holding.covers(round_, index):
            self._cover(job, holding, size)
            holding.uploading.add(index)
        else:
            await self._budget.take(job, size, wait_s=UPLOAD_WAIT_S)
            # A job holds the larger of the two numbers: both grow, so that what it holds grows by this upload.
            holding.used_bytes += size
            holding.promised_bytes += size
        try:
            yield
        finally:
            holding.touched_s = time.monotonic()
            if covered:
                holding.uploading.discard(index)
                self._change(job, holding, used=-size)
            else:
                self._change(job, holding, used=-size, promised=max(0, holding.promised_bytes - size))

    def covers(self, job: str, round_: int, index: int, size: int) -> bool:
        """True if the room that a round has reserved covers this upload, which is then stored at once."""
        holding = self._jobs[job]
        if not holding.covers(round_, index) or holding.used_bytes + size > holding.held_bytes:
            return False
        holding.usual_bytes, holding.touched_s = max(holding.usual_bytes, size), time.monotonic()
        return True

    def count(self, job: str, size: int) -> None:
        """Account for a file that an upload has written, before the upload's context ends; below 0: was removed."""
        self._change(job, self._jobs[job], used=size)

    def update(self, job: str, *, begins: bool) -> None:
        """Note that an update of the job begins or ends; in between, its room is not revoked."""
        if holding := self._jobs.get(job):
            holding.updating, holding.touched_s = begins, time.monotonic()

    def _cover(self, job: str, holding: _Holding, size: int) -> None:
        """Let an upload use its round's reservation; room beyond that must be free."""
        holding.usual_bytes = max(holding.usual_bytes, size)
        more = max(0, holding.used_bytes + size - holding.held_bytes)
        if more > self._budget.free_bytes:
            if holding.held_bytes + more > self._budget.limit_bytes - holding.concurrent_bytes:
                raise self._too_large(
                    job, holding, f"round {holding.round + 1} takes more than {holding.held_bytes:,} bytes"
                )
            if holding.updating:  # it needs its trajectories
                holding.actors = 0
                self._change(job, holding, promised=0)
            else:
                self._release_holding(job, holding)
            full = self._budget.full(more, f"round {holding.round + 1} of job {job} has taken all that it reserved")
            raise OverloadedError(str(full), retry_after_s=_AFTER_S)
        self._change(job, holding, used=size)

    def _too_large(self, job: str, holding: _Holding, what: str) -> TooLargeError:
        replays, lower = "", ""
        if holding.concurrent_bytes:
            replays = f" beside {holding.concurrent_bytes:,} of its replays"
            lower = " lower algorithm.replay.capacity,"
        return TooLargeError(
            f"job {job}: {what}{replays}, and the spool holds {self._budget.limit_bytes:,}; sample less a round,"
            f"{lower} or raise --spool-bytes (MARLESS_SPOOL_BYTES)"
        )

    def _wanted(self, job: str, holding: _Holding, actors: int) -> int:
        self.check(job, actors, holding.concurrent_bytes)
        most = self._budget.limit_bytes - self._budget.aside_bytes
        if actors * holding.least_bytes > most:
            raise self._budget.full(actors * holding.least_bytes, "replays of other jobs leave too little")
        return min(actors * holding.usual_bytes, most)

    def _grow(self, job: str, holding: _Holding, wanted: int) -> bool:
        """Reserve `wanted` bytes if they can be had without waiting; returns whether it did."""
        more = max(wanted, holding.used_bytes) - holding.held_bytes
        if more > 0 and (self._budget.waiting or more > self._budget.free_bytes):
            return False
        self._change(job, holding, promised=wanted)
        return True

    async def _turn(self, job: str, wanted: int) -> None:
        """Wait for room; meanwhile revoke the reservations of jobs that have been idle for too long."""
        taking = asyncio.create_task(self._budget.take(job, wanted))
        try:
            while not taking.done():
                for other, holding in list(self._jobs.items()):
                    if holding.idle():
                        _log.warning("spool.taken_back", job=other, bytes=holding.held_bytes, for_job=job)
                        self._release_holding(other, holding)
                await asyncio.wait([taking], timeout=LOOK_S)
            await taking
        except BaseException:
            if not taking.cancel() and not taking.cancelled() and taking.exception() is None:
                self._budget.release(job, wanted)  # it was admitted while it was being cancelled
            raise

    def _release_holding(self, job: str, holding: _Holding) -> None:
        """Drop a job's buffered trajectories and cancel its reservation; its round is sampled again."""
        holding.actors = 0
        self._drop(job)
        self._change(job, holding, promised=0)

    def _change(self, job: str, holding: _Holding, *, used: int = 0, promised: int | None = None) -> None:
        before = holding.held_bytes
        holding.used_bytes += used
        if promised is not None:
            holding.promised_bytes = promised
        self._budget.release(job, before - holding.held_bytes)
