"""A notifier: wakes all tasks that wait for a change."""

from __future__ import annotations

import asyncio


class Notifier:
    """Wakes all waiting tasks at each change. To miss none, take `next`, then read the state, then wait for `next`."""

    def __init__(self) -> None:
        self.next = asyncio.Event()

    def tell(self) -> None:
        """Wake all waiting tasks: something has changed."""
        self.next.set()
        self.next = asyncio.Event()
