"""A notifier: wakes all tasks that wait for a change."""

from __future__ import annotations

import asyncio
import math

GATHER_S = 0.04
"""Seconds after a change for which further ones are gathered: a job of quick rounds goes on before they are shown."""


class Notifier:
    """Wakes all waiting tasks after a change. To miss none, take `next`, then read the state, then wait for `next`."""

    def __init__(self) -> None:
        self.next = asyncio.Event()
        self._told_s = -math.inf
        self._soon: asyncio.TimerHandle | None = None

    def tell(self) -> None:
        """Wake all waiting tasks: something has changed."""
        if self._soon:
            self._soon.cancel()
        self._soon, self._told_s = None, asyncio.get_running_loop().time()
        self.next.set()
        self.next = asyncio.Event()

    def tell_soon(self) -> None:
        """Wake them, but not within `GATHER_S` after they were woken last; then, all changes until then are told."""
        if self._soon:
            return
        loop = asyncio.get_running_loop()
        if (left_s := self._told_s + GATHER_S - loop.time()) > 0:
            self._soon = loop.call_later(left_s, self.tell)
        else:
            self.tell()
