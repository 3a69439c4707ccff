"""The background worker: one process of the lowest CPU priority, for episodes that measure a job but do not train it.

It does not count as one of the pool's `--actor-workers`, so that no actor waits for it. While all CPUs are busy, it
gets hardly any CPU time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from marless.fleet.dispatch import Dispatcher
from marless.fleet.fleet import Fleet
from marless.fleet.launchers.base import Launcher
from marless.fleet.machines import MachineAccounts
from services.actor_pool.rollouts import Rollouts

PREFIX = "background"
ATTEMPTS = 3
"""Workers that a batch of episodes may lose; without them a job goes on, and only lacks its random baseline."""
KEEP_ALIVE_S = 10.0
"""Seconds that it stays idle at most: it takes 65 MB, and is needed once per job."""


class Background:
    """The background worker's fleet of one, its queue, and the rollouts on it."""

    def __init__(self, dispatcher: Dispatcher, fleet: Fleet) -> None:
        self.dispatcher = dispatcher
        self.fleet = fleet
        self.rollouts = Rollouts(dispatcher, fleet)

    def launched(self, worker: str) -> bool:
        """True if this is the id of a background worker; no other worker has an id with this prefix."""
        return worker.startswith(f"{PREFIX}-")


@asynccontextmanager
async def background(launcher: Launcher, machines: MachineAccounts, keep_alive_s: float) -> AsyncIterator[Background]:
    """Provide the background worker: it starts when it is needed, and is stopped when the context ends."""
    dispatcher = Dispatcher(max_attempts=ATTEMPTS, machines=machines, apart=True)
    async with Fleet(
        dispatcher,
        launcher,
        prefix=PREFIX,
        limit=1,
        arguments=["--background"],
        keep_alive_s=min(keep_alive_s, KEEP_ALIVE_S),
    ) as fleet:
        yield Background(dispatcher, fleet)
