"""The steps of a job's rounds: each is shown if it takes long, and abandoned if the job is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from services.coordinator.execution.cancellation import Cancellation
from services.coordinator.execution.reservations import SHOWN_AFTER_S


class Steps:
    """The steps of one job; `show` is called with the job's new `reason`."""

    def __init__(self, cancellation: Cancellation, show: Callable[[str], None]) -> None:
        self._cancellation = cancellation
        self._show = show

    @asynccontextmanager
    async def step(self, round_: int, doing: str) -> AsyncIterator[None]:
        """Wrap a step of a round: show it if it takes longer than SHOWN_AFTER_S, abandon it if the job is cancelled."""
        late = asyncio.get_running_loop().call_later(SHOWN_AFTER_S, self._show, f"round {round_ + 1}: {doing}")
        try:
            async with self._cancellation.abandoning():
                yield
        finally:
            late.cancel()
