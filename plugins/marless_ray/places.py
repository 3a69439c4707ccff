"""Actors of Ray in which workers run: asked for, waited for, used, used again, and given back."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from marless.core.errors import told
from marless.fleet.launchers.base import ACCEPTED, Launch, LaunchOutcome
from marless_ray import sentences
from marless_ray.host import WorkerHost
from marless_ray.settings import Assignment, WorkerResources

KEEP_S = 12.0
"""Seconds for which a place is kept that no worker uses, or that Ray has not found yet. A pool asks for refused workers
again after five: meanwhile an autoscaler must see what they need."""
END_S = 2.0
"""Seconds in which an actor must have ended its worker; then Ray kills the actor. A lost node never answers."""
_CHECK_S = 1.0
HasRoom = Callable[[WorkerResources], Awaitable[bool]]
SayEnd = Callable[[str, str], None]


@dataclass(eq=False)
class ActorPlace:
    """One actor, placed or not."""

    actor: Any  # Any: Ray has no types
    demand: WorkerResources
    looked: asyncio.Future[str]
    """What the actor has found on its node, as soon as it is placed."""
    used_s: float = field(default_factory=time.monotonic)
    """When it was last asked for, or used."""
    ended: asyncio.Task[None] | None = None


class Places:
    """All actors of one driver."""

    def __init__(self, ray: Any, assignment: Assignment, has_room: HasRoom, say_end: SayEnd) -> None:  # Any: no types
        """`has_room` tells whether such resources are free; `say_end` is told which worker has ended, and how."""
        self._ray = ray
        self._kind = ray.remote(WorkerHost)
        self._assignment = assignment
        self._has_room = has_room
        self._say_end = say_end
        self._idle: list[ActorPlace] = []
        self._busy: dict[str, ActorPlace] = {}
        self._sweeping = asyncio.create_task(self._sweep())

    async def start(
        self, worker: str, arguments: Sequence[str], handover: str, demand: WorkerResources
    ) -> Launch | None:
        """Start a worker in a place; None if Ray finds none in time. Then what it needs stays asked for."""
        place = await self._taken(demand)
        await asyncio.wait([place.looked], timeout=self._assignment.place_s)
        if not place.looked.done() and await self._has_room(demand):  # a node is starting a process for it
            await asyncio.wait([place.looked], timeout=self._assignment.ray_s)
        if not place.looked.done():
            self._keep(place)
            return None
        try:
            node = json.loads(place.looked.result())
        except Exception as error:  # noqa: BLE001  # whatever Ray raises
            self._kill(place)
            return Launch(LaunchOutcome.REFUSED, sentences.no_place(error))
        if reason := sentences.unfit(node, self._assignment.arguments):
            self._kill(place)
            return Launch(LaunchOutcome.REFUSED, reason)
        return await self._started(place, worker, arguments, handover)

    async def end(self, worker: str) -> None:
        """End a worker; returns when it has ended, or Ray has been told to kill its actor."""
        if place := self._busy.get(worker):
            try:
                async with asyncio.timeout(END_S):
                    await _of_ray(place.actor.end.remote())
                    if place.ended:
                        await asyncio.shield(place.ended)
            except Exception as error:  # noqa: BLE001  # whatever Ray raises: the actor is given up
                self._give_up(worker, place, f"its actor did not answer ({told(error)})")

    async def hand_over(self, worker: str, handover: str) -> None:
        """Send a running worker a new token."""
        if place := self._busy.get(worker):
            await _of_ray(place.actor.hand_over.remote(handover))

    async def close(self) -> None:
        """End all workers and actors."""
        self._sweeping.cancel()
        await asyncio.gather(*(self.end(worker) for worker in self._busy))
        for place in self._idle:
            self._kill(place)
        self._idle.clear()

    async def _taken(self, demand: WorkerResources) -> ActorPlace:
        """A place that is not used: rather one that Ray has found already, if its node still answers."""
        while fitting := [each for each in self._idle if each.demand == demand]:
            place = next((each for each in fitting if each.looked.done()), fitting[0])
            self._idle.remove(place)
            if not place.looked.done() or await self._answers(place):
                return place
            self._kill(place)
        return self._asked_for(demand)

    async def _answers(self, place: ActorPlace) -> bool:
        place.looked = self._look(place.actor)
        await asyncio.wait([place.looked], timeout=END_S)
        return place.looked.done() and place.looked.exception() is None

    def _asked_for(self, demand: WorkerResources) -> ActorPlace:
        wanted = demand.of_ray()
        actor = self._kind.options(
            num_cpus=wanted.pop("CPU", 0),
            num_gpus=wanted.pop("GPU", 0),
            memory=wanted.pop("memory", None),
            resources=wanted or None,
            max_restarts=0,  # a lost node is a lost worker, which its pool replaces
            max_task_retries=0,
        ).remote()
        return ActorPlace(actor, demand, self._look(actor))

    def _look(self, actor: Any) -> asyncio.Future[str]:  # Any: Ray has no types
        looked = asyncio.ensure_future(_of_ray(actor.look.remote(json.dumps(self._assignment.arguments))))
        looked.add_done_callback(lambda done: done.cancelled() or done.exception())  # also if nobody asks again
        return looked

    async def _started(self, place: ActorPlace, worker: str, arguments: Sequence[str], handover: str) -> Launch:
        order = {
            "worker": worker,
            "module": self._assignment.module,
            "arguments": [*self._assignment.arguments, *arguments],
            "settings": self._assignment.settings | self._assignment.demand.limits,
        }
        # Before its start, so that a call to end it that comes meanwhile finds its actor.
        self._busy[worker] = place
        try:
            async with asyncio.timeout(self._assignment.ray_s):
                await _of_ray(place.actor.start.remote(json.dumps(order), handover))
        except Exception as error:  # noqa: BLE001  # whatever Ray raises
            self._give_up(worker, place, "its actor was lost")
            return Launch(LaunchOutcome.UNKNOWN, f"Ray lost the actor of worker {worker}: {told(error)}")
        place.ended = asyncio.create_task(self._follow(worker, place))
        return ACCEPTED

    async def _follow(self, worker: str, place: ActorPlace) -> None:
        try:
            ended = str(await _of_ray(place.actor.wait.remote()))
        except Exception as error:  # noqa: BLE001  # whatever Ray raises
            self._give_up(worker, place, f"its node or its actor was lost ({told(error)})")
            return
        # Otherwise it was given up meanwhile, and its end is told already.
        if self._busy.get(worker) is place:
            del self._busy[worker]
            self._keep(place)
            self._say_end(worker, ended)

    def _give_up(self, worker: str, place: ActorPlace, how: str) -> None:
        self._kill(place)
        if self._busy.get(worker) is place:
            del self._busy[worker]
            self._say_end(worker, how)

    def _keep(self, place: ActorPlace) -> None:
        place.used_s = time.monotonic()
        self._idle.append(place)

    def _kill(self, place: ActorPlace) -> None:
        place.looked.cancel()
        with suppress(Exception):  # it is dead already, or Ray is
            self._ray.kill(place.actor)

    async def _sweep(self) -> None:
        """Give places back that nobody has asked for or used for a while."""
        while True:
            await asyncio.sleep(_CHECK_S)
            for place in [each for each in self._idle if time.monotonic() - each.used_s > KEEP_S]:
                self._idle.remove(place)
                self._kill(place)


async def _of_ray(reference: Any) -> Any:  # Any: Ray has no types
    """Wait for a result of Ray; to be cancelled without effect on the call."""
    return await asyncio.wrap_future(reference.future())
