"""The pool's side of the launcher `ray`: it tells a driver process which workers to start and to end."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from marless.core.errors import SpecError, UnavailableError
from marless.core.installing import how_to_install
from marless.fleet.handover import Handover
from marless.fleet.launchers.base import Condition, Launch, Launcher, LaunchOrder, LaunchOutcome, Options, WorkerProgram
from marless_ray.driving import Driven, LostError
from marless_ray.settings import NAME, Assignment, RaySettings, read

CHECK_S = 1.0
"""Seconds between checks for a new token to send to the workers."""
END_S = 6.0
"""Seconds in which a driver must have ended a worker, or itself; then it is killed, and Ray ends all its workers."""


class RayLauncher:
    """Starts workers in actors of a Ray cluster."""

    def __init__(self, program: WorkerProgram, settings: RaySettings) -> None:
        """A changed token of the program is sent to running workers."""
        self.connect_s = settings.connect_s
        self._program = program
        self._settings = settings
        self._driver: Driven | None = None
        self._connecting = asyncio.Lock()
        self._workers: dict[str, _Worker] = {}
        self._handing: asyncio.Task[None] | None = None
        self._closed = False

    def capacity(self) -> None:
        """Ray says so when it has no room, and an autoscaler may make some."""
        return

    async def launch(self, orders: Sequence[LaunchOrder]) -> Sequence[Launch]:
        """Have Ray place actors, and start workers in them. What Ray has no room for is ordered again by the pool."""
        try:
            driver = await self._connected()
        except UnavailableError as error:
            return [Launch(LaunchOutcome.REFUSED, str(error))] * len(orders)
        return await asyncio.gather(*(self._launch(driver, order) for order in orders))

    async def observe(self, worker: str) -> str:
        """Wait for the end of its process, its actor, its node, or the connection to Ray."""
        found = self._workers.get(worker)
        return await asyncio.shield(found.ended) if found else "not started"

    async def drain(self, worker: str, grace_s: float) -> None:
        """End its process, and all that it has started. If Ray does not answer, all workers are."""
        if found := self._workers.get(worker):
            with suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await asyncio.shield(found.ended)
            if not found.ended.done():
                await self._end(worker, found)
            self._workers.pop(worker, None)

    async def close(self) -> None:
        """End the driver, which ends all workers."""
        # First, so that nobody who waits for the lock connects anew.
        self._closed = True
        if self._handing:
            self._handing.cancel()
        async with self._connecting:
            if self._driver:
                await self._driver.close(END_S)

    async def check(self) -> Condition:
        """Ask the cluster for its nodes and resources; starts no actor."""
        try:
            driver = await self._connected()
            said = await driver.ask({"call": "describe"}, self._settings.ray_s)
        except UnavailableError as error:
            found, _, advice = str(error).partition("; ")
            return Condition(found, advice or "see `ray status`")
        where = f"{driver.cluster}: {said['cluster']}"
        if said["lacks"]:
            demand = self._settings.demand
            return Condition(f"{where}; none has {demand}, which a worker needs", "add such nodes, or ask for less")
        return Condition(f"{where}; a worker takes {self._settings.demand}")

    async def _connected(self) -> Driven:
        """The driver, which is started if there is none; raises UnavailableError."""
        async with self._connecting:
            if self._closed:
                raise UnavailableError("the pool is stopping")
            if self._driver is None or self._driver.has_ended:
                if self._driver:
                    await self._driver.close(END_S)
                assignment = Assignment.of(self._program, self._settings)
                self._driver = await Driven.start(assignment, self._program.environment, self._on_end, self._on_loss)
            return self._driver

    async def _launch(self, driver: Driven, order: LaunchOrder) -> Launch:
        worker = _Worker(partial(self._handover, order.ticket))
        # Before the call: if its actor is lost, its end is told before the answer.
        self._workers[order.worker] = worker
        call = {"call": "launch", "worker": order.worker, "handover": worker.line()}
        arguments = [*order.arguments, "--launched", "--worker", order.worker]
        # What a driver may take: for a place, for a node that is about to start it, for the start, and for looks at the
        # cluster.
        patience_s = self._settings.place_s + 3 * self._settings.ray_s
        try:
            said = await driver.ask(call | {"arguments": arguments}, patience_s)
        except LostError as error:
            return Launch(LaunchOutcome.UNKNOWN, str(error))
        launch = Launch(LaunchOutcome(said["outcome"]), said["reason"])
        if launch.outcome is LaunchOutcome.REFUSED:
            self._workers.pop(order.worker, None)
        elif self._handing is None or self._handing.done():
            self._handing = asyncio.create_task(self._hand_over())
        return launch

    async def _end(self, worker: str, found: _Worker) -> None:
        driver = self._driver
        if driver is None:
            return
        try:
            await driver.ask({"call": "end", "worker": worker}, END_S)
            found.end("ended by its pool")
        except LostError:
            await driver.close(0.0)

    async def _hand_over(self) -> None:
        """Send workers each new token."""
        while self._workers:
            await asyncio.sleep(CHECK_S)
            for name, worker in list(self._workers.items()):
                if self._driver and worker.is_out_of_date and not worker.ended.done():
                    with suppress(LostError):
                        call = {"call": "hand", "worker": name, "handover": worker.line()}
                        await self._driver.ask(call, self._settings.ray_s)

    def _handover(self, ticket: str) -> Handover:
        return Handover(ticket, self._program.token())

    def _on_end(self, told: Mapping[str, Any]) -> None:  # Any: JSON
        if found := self._workers.get(told["ended"]):
            found.end(told["how"])

    def _on_loss(self, how: str) -> None:
        for worker in self._workers.values():
            worker.end(how)


def make(program: WorkerProgram, options: Options) -> Launcher:
    """The launcher `ray`; its options are those of `marless_ray.settings.RaySettings`."""
    if importlib.util.find_spec("ray") is None:
        how = how_to_install("ray", "marless[ray]")
        raise SpecError(f"launcher {NAME}: the package `ray` is missing: {how}")
    return RayLauncher(program, read(program, options))


class _Worker:
    """A worker that was ordered."""

    def __init__(self, handover: Callable[[], Handover]) -> None:
        self._handover = handover
        self._handed: Handover | None = None
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def is_out_of_date(self) -> bool:
        return self._handed != self._handover()

    def line(self) -> str:
        """What to hand to it now. Secret."""
        self._handed = self._handover()
        return self._handed.to_line().decode()

    def end(self, how: str) -> None:
        if not self.ended.done():
            self.ended.set_result(how)
