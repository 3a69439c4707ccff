"""`Launcher`: the protocol of what starts workers."""

from __future__ import annotations

from typing import Protocol


class WorkerHandle(Protocol):
    """A launched worker."""

    async def ended(self) -> str:
        """Wait until it has ended; returns how, for logs and error messages."""
        ...

    def kill(self) -> None:
        """Kill it at once; idempotent."""
        ...


class Launcher(Protocol):
    """Starts workers on some kind of machine; they connect to their pool themselves."""

    async def launch(self, worker: str, ticket: str) -> WorkerHandle:
        """Start a worker that connects under this name with this ticket; raises UnavailableError if it cannot start.

        The ticket is secret: never put it on a command line or into an environment.
        """
        ...
