"""`python -m marless_ray.driver`: the process in which a pool uses Ray.

Lines of JSON come on standard input: the `Assignment`, then calls. Answers, and the ends of workers, go as lines to
what was standard output; all that Ray prints goes to standard error. At the end of its input, it ends all workers and
exits; if it is killed, Ray ends them.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from marless.core.errors import told
from marless_ray.places import Places
from marless_ray.sentences import Cluster, no_room, not_connected
from marless_ray.settings import Assignment, WorkerResources

_LINE_BYTES = 2**20
_REACH_S = 3.0
"""Seconds in which the host of a cluster must take a connection."""
_FAREWELL_S = 4.0
"""Seconds in which all workers end with their driver; then Ray ends them."""
Told = Mapping[str, Any]  # Any: JSON
Say = Callable[[Told], None]


class Driver:
    """Does what its pool calls for; answers go to `say`."""

    def __init__(self, ray: Any, assignment: Assignment, say: Say) -> None:  # Any: Ray has no types
        self._ray = ray
        self._assignment = assignment
        self._say = say
        self._places = Places(ray, assignment, self._has_room, lambda worker, how: say({"ended": worker, "how": how}))
        self._calls: set[asyncio.Task[None]] = set()

    def call(self, told_: Told) -> None:
        """Begin one call; several run at once."""
        task = asyncio.create_task(self._answer(told_))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def close(self) -> None:
        """End all workers."""
        for task in self._calls:
            task.cancel()
        await self._places.close()

    async def _answer(self, told_: Told) -> None:
        try:
            answer = await self._done(told_)
        except Exception as error:  # noqa: BLE001  # whatever Ray raises must reach the pool as an answer
            answer = {"outcome": "unknown", "reason": f"Ray failed: {told(error)}; see `ray status`"}
        self._say({"id": told_["id"], **answer})

    async def _done(self, told_: Told) -> Told:
        match told_["call"]:
            case "launch":
                return await self._launch(told_)
            case "end":
                await self._places.end(told_["worker"])
            case "hand":
                await self._places.hand_over(told_["worker"], told_["handover"])
            case "describe":
                cluster = await self._cluster()
                return {"cluster": str(cluster), "lacks": bool(cluster and cluster.lacks(self._assignment.demand))}
        return {}

    async def _launch(self, told_: Told) -> Told:
        # A worker of the lowest priority takes what is left over, and no place from an actor.
        demand = WorkerResources(cpus=0.0) if "--background" in told_["arguments"] else self._assignment.demand
        reason = await self._places.start(told_["worker"], told_["arguments"], told_["handover"], demand)
        if reason is None:
            return {"outcome": "refused", "reason": no_room(demand, await self._cluster())}
        return {"outcome": reason.outcome.value, "reason": reason.reason}

    async def _has_room(self, demand: WorkerResources) -> bool:
        cluster = await self._cluster()
        return bool(cluster and cluster.has_free(demand))

    async def _cluster(self) -> Cluster | None:
        def ask() -> Cluster:
            return Cluster.of(self._ray.nodes(), self._ray.available_resources())

        try:
            return await asyncio.wait_for(asyncio.to_thread(ask), self._assignment.ray_s / 3)
        except TimeoutError:
            return None


def main() -> None:
    """Connect, tell the pool, and serve it until it closes our input."""
    lines, answers = _own_streams()
    with lines, answers:

        def say(told_: Told) -> None:
            answers.write(json.dumps(told_).encode() + b"\n")

        assignment = Assignment.from_line(lines.readline())
        try:
            ray = connected(assignment.address)
        except Exception as error:  # noqa: BLE001  # Ray raises many kinds; the pool shows a sentence
            say({"refused": not_connected(assignment.address, error)})
            return
        address = ray.get_runtime_context().gcs_address if assignment.address == "auto" else assignment.address
        say({"connected": f"Ray {ray.__version__} at {address}"})
        asyncio.run(_serve(ray, assignment, lines, say))
        ray.shutdown()


def _own_streams() -> tuple[Any, Any]:  # Any: unbuffered binary files
    """Standard input and output, under other numbers, so that nothing else reads or writes them."""
    lines, answers = os.fdopen(os.dup(0), "rb", buffering=0), os.fdopen(os.dup(1), "wb", buffering=0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return lines, answers


def connected(address: str) -> Any:  # Any: the module `ray` has no types
    """Connect to a cluster; returns Ray. Raises whatever Ray raises, and OSError if nothing listens at the address."""
    parts = urlsplit(address if "://" in address else f"gcs://{address}")
    if parts.hostname and parts.port:
        socket.create_connection((parts.hostname, parts.port), _REACH_S).close()
    import ray

    ray.init(address=address, namespace="marless", logging_level="ERROR")
    return ray


async def _serve(ray: Any, assignment: Assignment, lines: Any, say: Say) -> None:  # Any: no types; a binary file
    driver = Driver(ray, assignment, say)
    reader = asyncio.StreamReader(limit=_LINE_BYTES)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), lines
    )
    try:
        while line := await reader.readline():
            driver.call(json.loads(line))
    finally:
        transport.close()
        async with asyncio.timeout(_FAREWELL_S):
            await driver.close()


if __name__ == "__main__":
    main()
