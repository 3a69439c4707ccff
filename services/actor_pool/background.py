"""The background worker: one process of the lowest CPU priority, which plays what measures a job and trains nothing.

It is not one of the pool's `--actor-workers`, so it never keeps an actor waiting, and where all CPUs are busy the
system gives it next to nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from marless.rpc.workers.dispatch import Dispatcher
from marless.rpc.workers.fleet import Fleet
from marless.rpc.workers.launcher import LocalLauncher
from services.actor_pool.rollouts import Rollouts

PREFIX = "background"
KEEP_ALIVE_S = 10.0
"""Longest time that it is kept without work: what is measured once a job is not worth 65 MB for ever."""


class Background:
    """Rollouts that wait for the background worker, and the stream of that worker."""

    def __init__(self, dispatcher: Dispatcher, fleet: Fleet) -> None:
        self.dispatcher = dispatcher
        self.fleet = fleet
        self.rollouts = Rollouts(dispatcher, fleet)

    def launched(self, worker: str) -> bool:
        """True if this is the name of a background worker, which nobody else may have."""
        return worker.startswith(f"{PREFIX}-")


@asynccontextmanager
async def background(launcher: LocalLauncher, keep_alive_s: float) -> AsyncIterator[Background]:
    """The background worker ends with the context; it starts when it is needed."""
    dispatcher = Dispatcher()
    async with Fleet(
        *(dispatcher, launcher.also("--background")),
        prefix=PREFIX,
        limit=1,
        keep_alive_s=min(keep_alive_s, KEEP_ALIVE_S),
    ) as fleet:
        yield Background(dispatcher, fleet)
