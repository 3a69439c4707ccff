"""The commands of a schedule that are under way in one job, each a task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Self

from marless.errors import InternalError
from marless.schedules.base import Command


class CommandTasks:
    """A block that runs commands. When it ends, those that are still under way are cancelled, and have ended, too."""

    def __init__(self) -> None:
        self._tasks: dict[Command, asyncio.Task[None]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def __contains__(self, command: object) -> bool:
        return command in self._tasks

    def start(self, due: Iterable[Command], do: Callable[[Command], Coroutine[Any, Any, None]]) -> None:
        """Start those commands that are not under way."""
        for command in due:
            if command not in self._tasks:
                self._tasks[command] = asyncio.create_task(do(command))

    async def until_one_ends(self) -> None:
        """Wait until a command ends; raises its error if it has failed, InternalError if there is none to wait for."""
        if not self._tasks:
            raise InternalError("the job's schedule says that nothing is due, and the job has not ended")
        await asyncio.wait(self._tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        ended = [command for command, task in self._tasks.items() if task.done()]
        for task in [self._tasks.pop(command) for command in ended]:
            task.result()
