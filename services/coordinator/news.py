"""Telling whoever watches that something changed."""

from __future__ import annotations

import asyncio


class News:
    """Wakes all who wait for what comes next. Take `next`, look at what there is, and only then wait."""

    def __init__(self) -> None:
        self.next = asyncio.Event()

    def tell(self) -> None:
        """Something changed."""
        self.next.set()
        self.next = asyncio.Event()
