"""Orders of workers that arrive together go to their launcher as one batch."""

from __future__ import annotations

import asyncio

from marless.core.errors import MarlessError, told
from marless.fleet.launchers.base import Launch, Launcher, LaunchOrder, LaunchOutcome


class Batches:
    """Sends orders to a launcher, one batch at a time; orders that arrive meanwhile are the next batch."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._waiting: list[tuple[LaunchOrder, asyncio.Future[Launch]]] = []
        self._sending: asyncio.Task[None] | None = None

    async def launch(self, order: LaunchOrder) -> Launch:
        """Launch a worker. If the caller is cancelled, the worker is drained as soon as the launcher has answered."""
        answer: asyncio.Future[Launch] = asyncio.get_running_loop().create_future()
        self._waiting.append((order, answer))
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send())
        return await answer

    async def stop(self) -> None:
        """Send nothing more; what was launched is left to the launcher's `close`."""
        self._waiting.clear()
        if self._sending:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)

    async def _send(self) -> None:
        while self._waiting:
            # Nothing is launched for a caller that is gone: nobody would drain it.
            batch = [(order, answer) for order, answer in self._waiting if not answer.done()]
            self._waiting.clear()
            answers = await self._answers([order for order, _ in batch])
            for (order, answer), launch in zip(batch, answers, strict=True):
                if not answer.done():
                    answer.set_result(launch)
                elif launch.outcome in (LaunchOutcome.ACCEPTED, LaunchOutcome.UNKNOWN):
                    await self._launcher.drain(order.worker, 0.0)

    async def _answers(self, orders: list[LaunchOrder]) -> list[Launch]:
        try:
            answers = list(await self._launcher.launch(orders))
        except MarlessError as error:
            return [Launch(LaunchOutcome.FAILED, str(error))] * len(orders)
        except Exception as error:  # noqa: BLE001  # a bug of third parties: the workers may run all the same
            return [Launch(LaunchOutcome.UNKNOWN, f"the launcher failed: {told(error)}")] * len(orders)
        if len(answers) != len(orders):
            return [
                Launch(LaunchOutcome.UNKNOWN, f"the launcher gave {len(answers)} answers to {len(orders)} orders")
            ] * len(orders)
        return answers
