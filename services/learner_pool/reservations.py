"""Who may fill the spool: a round of a job is admitted whole, before its actors run.

So no two jobs can each hold half of what they need and wait for the other: whoever holds room has all of its round's,
and gives it back when its update is done. A coordinator asks with `Reserve` and waits for its turn (see `Room`). Room
that is not used for longer than an actor may take is taken back while others wait for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import structlog

from marless.errors import NotFoundError, OverloadedError, TooLargeError
from marless.rpc.room import Room

UPLOAD_WAIT_S = 20.0
"""How long an upload waits that no round has reserved room for; its bytes are still with its sender."""
LOOK_S = 1.0
_AFTER_S = 60.0
"""Beyond the patience of every sender: one who hears this reserves anew."""
_log = structlog.get_logger("learner_pool")


@dataclass
class _Holding:
    """What an open job holds: its files and uploads, or what was promised to its round if that is more."""

    least_bytes: int
    """Of one trajectory."""
    usual_bytes: int
    """Of one trajectory: as expected, or the largest that came."""
    beside_bytes: int = 0
    """Of the spool that the job itself needs for other things."""
    used_bytes: int = 0
    promised_bytes: int = 0
    round: int = -1
    """That was promised room, for so many `actors`."""
    actors: int = 0
    uploading: set[int] = field(default_factory=set)
    """Actors of that round."""
    updating: bool = False
    touched_s: float = 0.0
    idle_s: float = float("inf")
    reserving: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def held_bytes(self) -> int:
        return max(self.used_bytes, self.promised_bytes)

    def covers(self, round_: int, index: int) -> bool:
        return round_ == self.round and 0 <= index < self.actors and index not in self.uploading

    def idle(self) -> bool:
        busy = self.updating or self.uploading or not self.held_bytes
        return not busy and time.monotonic() - self.touched_s > self.idle_s


class Reservations:
    """The room of the spool, by job. `drop` removes all files of a job, and says so by `dropped`."""

    def __init__(self, room: Room, drop: Callable[[str], None]) -> None:
        self._room = room
        self._drop = drop
        self._jobs: dict[str, _Holding] = {}

    def open(self, job: str, *, least_bytes: int, usual_bytes: int) -> None:
        """Begin to count what a job holds."""
        self._jobs[job] = _Holding(least_bytes, usual_bytes)

    def close(self, job: str) -> None:
        """Promise a job nothing any more; its uploads in progress give back what they hold when they end."""
        self._change(job, holding := self._jobs.pop(job), promised=0)
        holding.actors = 0

    def check(self, job: str, actors: int, beside_bytes: int) -> None:
        """Raise TooLargeError if a round of so many actors can never fit beside what else the job needs.

        Replays that alone exceed the spool are refused where they are made, with the name of each.
        """
        holding = self._jobs[job]
        holding.beside_bytes = beside_bytes
        most, needed = self._room.limit_bytes - beside_bytes, actors * holding.least_bytes
        if 0 <= most < needed:
            raise self._too_large(job, holding, f"a round of {actors} actors takes {needed:,} bytes")

    async def reserve(self, job: str, round_: int, actors: int, idle_s: float) -> None:
        """Promise a round room for all its trajectories, when it is the job's turn.

        What waits of the job is kept if the room can be had at once; else it goes, so that nobody waits for a job that
        waits. Raises TooLargeError if it can never fit, OverloadedError if replays of other jobs are in the way,
        NotFoundError if the job is closed meanwhile.
        """
        holding = self._jobs[job]
        async with holding.reserving:
            holding.idle_s, holding.touched_s = idle_s, time.monotonic()
            wanted = self._wanted(job, holding, actors)
            if not self._grow(job, holding, wanted):
                if holding.updating:
                    raise OverloadedError(f"no room in the learner pool: an update of job {job} still uses what it has")
                self._forget(job, holding)
                await self._turn(job, wanted)
                if self._jobs.get(job) is not holding:
                    self._room.give_back(job, wanted)
                    raise NotFoundError(f"job {job!r} was closed while it waited for room")
                before = holding.held_bytes
                holding.promised_bytes = wanted
                self._room.give_back(job, wanted - (holding.held_bytes - before))
            holding.round, holding.actors, holding.touched_s = round_, actors, time.monotonic()

    def keep(self, job: str, round_: int) -> int:
        """A round has been used: keep its room for `round_` if nobody waits for it; returns for how many actors."""
        holding = self._jobs[job]
        if round_ == holding.round:  # opened again, in the middle of it
            return holding.actors
        holding.touched_s = time.monotonic()
        if self._room.waiting or not self._grow(job, holding, holding.actors * holding.usual_bytes):
            holding.actors = 0
            self._change(job, holding, promised=0)
        holding.round = round_
        return holding.actors

    @asynccontextmanager
    async def upload(self, job: str, round_: int, index: int, size: int) -> AsyncIterator[None]:
        """Room for one upload for as long as the context: what its round was promised, or else its own turn.

        Raises OverloadedError if there is none for long, TooLargeError if there never is.
        """
        holding = self._jobs[job]
        if covered := holding.covers(round_, index):
            self._cover(job, holding, size)
            holding.uploading.add(index)
        else:
            await self._room.take(job, size, wait_s=UPLOAD_WAIT_S)
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

    def stored(self, job: str, size: int) -> None:
        """An upload, whose context is about to end, has become a file."""
        self._change(job, self._jobs[job], used=size)

    def dropped(self, job: str, size: int) -> None:
        """A file of so many bytes has gone."""
        self._change(job, self._jobs[job], used=-size)

    def update(self, job: str, *, begins: bool) -> None:
        """An update of the job begins or ends: meanwhile its files are in use."""
        if holding := self._jobs.get(job):
            holding.updating, holding.touched_s = begins, time.monotonic()

    def _cover(self, job: str, holding: _Holding, size: int) -> None:
        """Let an upload use its round's room; what it takes beyond that must be free."""
        holding.usual_bytes = max(holding.usual_bytes, size)
        more = max(0, holding.used_bytes + size - holding.held_bytes)
        if more > self._room.free_bytes:
            if holding.held_bytes + more > self._room.limit_bytes - holding.beside_bytes:
                raise self._too_large(
                    job, holding, f"round {holding.round + 1} takes more than {holding.held_bytes:,} bytes"
                )
            self._forget(job, holding)
            full = self._room.full(more, f"round {holding.round + 1} of job {job} has taken all that it reserved")
            raise OverloadedError(str(full), retry_after_s=_AFTER_S)
        self._change(job, holding, used=size)

    def _too_large(self, job: str, holding: _Holding, what: str) -> TooLargeError:
        beside, lower = "", ""
        if holding.beside_bytes:
            beside = f" beside {holding.beside_bytes:,} of its replays"
            lower = " lower algorithm.replay.capacity,"
        return TooLargeError(
            f"job {job}: {what}{beside}, and the spool holds {self._room.limit_bytes:,}; sample less a round,{lower} "
            "or raise --spool-bytes (MARLESS_SPOOL_BYTES)"
        )

    def _wanted(self, job: str, holding: _Holding, actors: int) -> int:
        self.check(job, actors, holding.beside_bytes)
        most = self._room.limit_bytes - self._room.aside_bytes
        if actors * holding.least_bytes > most:
            raise self._room.full(actors * holding.least_bytes, "replays of other jobs leave too little")
        return min(actors * holding.usual_bytes, most)

    def _grow(self, job: str, holding: _Holding, wanted: int) -> bool:
        """Promise so much now if it can be had without a turn."""
        more = max(wanted, holding.used_bytes) - holding.held_bytes
        if more > 0 and (self._room.waiting or more > self._room.free_bytes):
            return False
        self._change(job, holding, promised=wanted)
        return True

    async def _turn(self, job: str, wanted: int) -> None:
        """Wait for as long as others use the room, and take it from those who do not use what they hold."""
        taking = asyncio.create_task(self._room.take(job, wanted))
        try:
            while not taking.done():
                for other, holding in list(self._jobs.items()):
                    if holding.idle():
                        _log.warning("spool.taken_back", job=other, bytes=holding.held_bytes, for_job=job)
                        self._forget(other, holding)
                await asyncio.wait([taking], timeout=LOOK_S)
            await taking
        except BaseException:
            if not taking.cancel() and not taking.cancelled() and taking.exception() is None:
                self._room.give_back(job, wanted)  # its turn came in the very moment it was given up
            raise

    def _forget(self, job: str, holding: _Holding) -> None:
        """Drop what waits of a job, and promise it nothing; its round is sampled again."""
        holding.actors = 0
        self._drop(job)
        self._change(job, holding, promised=0)

    def _change(self, job: str, holding: _Holding, *, used: int = 0, promised: int | None = None) -> None:
        before = holding.held_bytes
        holding.used_bytes += used
        if promised is not None:
            holding.promised_bytes = promised
        self._room.give_back(job, before - holding.held_bytes)
