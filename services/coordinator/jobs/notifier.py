"""A notifier: wakes all tasks that wait for a change."""

from __future__ import annotations

import asyncio

GATHER_S = 0.05
"""Seconds for which rounds are gathered before they wake anyone: a job goes on before its progress is shown."""


class Notifier:
    """Wakes all waiting tasks after a change. To miss none, take `next`, then read the state, then wait for `next`."""

    def __init__(self) -> None:
        self.next = asyncio.Event()
        self._soon: asyncio.TimerHandle | None = None

    def tell(self) -> None:
        """Wake all waiting tasks: something has changed."""
        if self._soon:
            self._soon.cancel()
        self._soon = None
        self.next.set()
        self.next = asyncio.Event()

    def tell_soon(self) -> None:
        """Wake them within `GATHER_S`, with all that has changed until then."""
        if self._soon is None:
            self._soon = asyncio.get_running_loop().call_later(GATHER_S, self.tell)
