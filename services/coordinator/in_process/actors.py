"""Who plays: this process itself, or worker processes on the other cores."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from marless.core.state import PolicyState
from marless.learning.data.player import Player
from services.coordinator.in_process.tasks import ActorResult, ActorTask, perform


class Actors(Protocol):
    """Plays the tasks of actors."""

    async def play(
        self, tasks: Sequence[ActorTask], states: Mapping[tuple[str, int], PolicyState], loaded: Mapping[int, bytes]
    ) -> list[ActorResult]:
        """The result of each task, in order.

        Args:
            tasks: Of one rollout or evaluation.
            states: Every policy that they name, by name and version.
            loaded: The carry of each lane that goes on, by index.
        """
        ...

    async def close(self) -> None:
        """End; calling it twice MUST be safe."""
        ...


class PlainActors:
    """Plays by plain calls, one task after the other, in the thread of the caller: a breakpoint stops there."""

    def __init__(self) -> None:
        self._player = Player()

    async def play(
        self, tasks: Sequence[ActorTask], states: Mapping[tuple[str, int], PolicyState], loaded: Mapping[int, bytes]
    ) -> list[ActorResult]:
        """As `Actors.play`; between two tasks, others of the event loop get their turn."""
        results = []
        for task in tasks:
            acting = {agent: states[version] for agent, version in task.acting.items()}
            here = self._player.has_lane(task.env, (task.job, task.index), task.digest or "")
            results.append(perform(task, self._player, acting, b"" if here else loaded.get(task.index, b"")))
            await asyncio.sleep(0)
        return results

    async def close(self) -> None:
        """Close all environments."""
        self._player.close()
