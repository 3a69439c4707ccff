"""Admission control for a number of bytes shared by several jobs: requests that do not fit wait in a fair queue."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from marless.core.errors import OverloadedError

MAX_WAITING = 1024


@dataclass(eq=False)
class _Waiter:
    job: str
    size: int
    admitted: asyncio.Future[None]
    passed_by: set[str] = field(default_factory=set)
    """Jobs that arrived later but were admitted earlier; each may do so once."""


class ByteBudget:
    """A budget of `limit_bytes` bytes shared by jobs; a single job may use all of it while no other job asks.

    Requests are admitted in full, first come first served, with one exception: a request that keeps its job within its
    fair share (the limit divided by the number of jobs that hold or want bytes) may pass requests that would exceed
    their job's share, each of them once per job. So a large request waits for at most one later request of every other
    job, and small requests do not wait for a large one.
    """

    def __init__(self, place: str, option: str, limit_bytes: int, *, waiting: int = MAX_WAITING) -> None:
        self.limit_bytes = limit_bytes
        self._place = place
        self._option = option
        self._most_waiting = waiting
        self._aside_bytes = 0
        self._held: Counter[str] = Counter()
        """Bytes by job; only jobs that hold bytes."""
        self._waiting: list[_Waiter] = []

    @property
    def held_bytes(self) -> int:
        """Bytes held by jobs."""
        return self._held.total()

    @property
    def aside_bytes(self) -> int:
        """Bytes of the limit that are reserved for other uses."""
        return self._aside_bytes

    @property
    def free_bytes(self) -> int:
        """Bytes of the limit that are free."""
        return max(0, self.limit_bytes - self.held_bytes - self._aside_bytes)

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return len(self._waiting)

    def takes(self, size: int) -> bool:
        """True if so many bytes are free and no request waits for them."""
        return not self._waiting and size <= self.free_bytes

    def set_aside(self, held_bytes: int) -> None:
        """Set the number of bytes of the limit that are reserved for other uses."""
        self._aside_bytes = held_bytes
        self._admit()

    def hold(self, job: str, size: int) -> None:
        """Hold bytes without queueing; the caller has checked that they are free."""
        self._held[job] += size
        # A job without bytes would still count in the fair shares of the others.
        if not self._held[job]:
            del self._held[job]

    def release(self, job: str, size: int) -> None:
        """Release bytes of a job, and admit the requests that fit now."""
        self.hold(job, -size)
        self._admit()

    async def take(self, job: str, size: int, *, wait_s: float | None = None) -> None:
        """Wait until the job is admitted, then hold the bytes until `release`.

        Raises OverloadedError if that takes longer than `wait_s`, or if too many requests wait already.
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
            # Also if it is cancelled: who goes away leaves neither a place in the queue nor the bytes that it was just
            # given.
            self._withdraw(waiter)
            if isinstance(error, TimeoutError):
                raise self.full(size, "others hold it for long") from None
            raise

    def full(self, size: int, why: str) -> OverloadedError:
        """The error for a request that cannot be admitted now."""
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
            self.release(waiter.job, waiter.size)

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
