"""Room for bytes that several jobs share: who does not fit waits for a turn, and is admitted whole or not at all."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from marless.errors import OverloadedError

MAX_WAITING = 1024


@dataclass(eq=False)
class _Waiter:
    job: str
    size: int
    admitted: asyncio.Future[None]
    passed_by: set[str] = field(default_factory=set)
    """Jobs that came later and were admitted before: each may do so once."""


class Room:
    """A number of bytes, most of them to be had by any one job while no other asks.

    Whoever came first goes first, with one exception: a job that stays within its fair share (the limit, divided by
    the jobs that hold or want something) passes those that would exceed theirs, each of them once. So a large request
    waits for at most one more of every other job, and small ones do not wait for it.
    """

    def __init__(self, place: str, option: str, limit_bytes: int, *, waiting: int = MAX_WAITING) -> None:
        self.limit_bytes = limit_bytes
        self._place = place
        self._option = option
        self._most_waiting = waiting
        self._aside_bytes = 0
        self._held: Counter[str] = Counter()
        """Bytes by job; no job is in it that holds none."""
        self._waiting: list[_Waiter] = []

    @property
    def held_bytes(self) -> int:
        """Bytes that jobs hold."""
        return self._held.total()

    @property
    def aside_bytes(self) -> int:
        """Bytes of the limit that are held by something else."""
        return self._aside_bytes

    @property
    def free_bytes(self) -> int:
        """Bytes of the limit that are left."""
        return max(0, self.limit_bytes - self.held_bytes - self._aside_bytes)

    @property
    def waiting(self) -> int:
        """How many wait for room."""
        return len(self._waiting)

    def set_aside(self, held_bytes: int) -> None:
        """So many bytes of the limit are held by something else from now on."""
        self._aside_bytes = held_bytes
        self._admit()

    def hold(self, job: str, size: int) -> None:
        """Hold bytes without a turn; the caller has seen that they are free."""
        self._held[job] += size
        if not self._held[job]:
            del self._held[job]

    def give_back(self, job: str, size: int) -> None:
        """Hold so many bytes less, and admit whom there is room for now."""
        self.hold(job, -size)
        self._admit()

    async def take(self, job: str, size: int, *, wait_s: float | None = None) -> None:
        """Hold bytes as soon as it is the job's turn; they are its own until it gives them back.

        Raises OverloadedError if that takes longer than `wait_s`, or if too many wait already.
        """
        if len(self._waiting) >= self._most_waiting:
            raise self.full(size, f"{len(self._waiting)} uploads wait already")
        waiter = _Waiter(job, size, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        self._admit()
        try:
            async with asyncio.timeout(wait_s):
                await waiter.admitted
        except BaseException as error:
            self._withdraw(waiter)
            if isinstance(error, TimeoutError):
                raise self.full(size, "others hold it for long") from None
            raise

    def full(self, size: int, why: str) -> OverloadedError:
        """What is raised for a request that cannot be served now."""
        held = f"{self.held_bytes:,} bytes are in use"
        if self._aside_bytes:
            held += f" beside {self._aside_bytes:,} of replays"
        return OverloadedError(
            f"no room in the {self._place}: {held}, {size:,} more exceed {self.limit_bytes:,} ({self._option}), "
            f"and {why}"
        )

    def _withdraw(self, waiter: _Waiter) -> None:
        if waiter in self._waiting:
            self._waiting.remove(waiter)
            self._admit()  # it may have kept others waiting
        else:
            self.give_back(waiter.job, waiter.size)

    def _admit(self) -> None:
        ahead: list[_Waiter] = []
        for waiter in tuple(self._waiting):
            if waiter.size <= self.free_bytes and (not ahead or self._may_pass(waiter, ahead)):
                for other in ahead:
                    other.passed_by.add(waiter.job)
                self._waiting.remove(waiter)
                self.hold(waiter.job, waiter.size)
                waiter.admitted.set_result(None)
            else:
                ahead.append(waiter)

    def _may_pass(self, waiter: _Waiter, ahead: list[_Waiter]) -> bool:
        share = self.limit_bytes / len(self._held.keys() | {each.job for each in self._waiting})
        return self._held[waiter.job] + waiter.size <= share and all(
            self._held[other.job] + other.size > share and waiter.job not in other.passed_by | {other.job}
            for other in ahead
        )
