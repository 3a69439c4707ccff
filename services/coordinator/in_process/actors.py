"""Who plays: this process itself, or worker processes on the other cores."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import Any, Protocol

from marless.core import errors, process_environment
from marless.core.errors import InternalError, MarlessError, UnavailableError, UnreachableError, contained
from marless.core.process_environment import ENV_MODULES
from marless.learning.data.episodes import EpisodeStats
from marless.learning.data.player import Player
from marless.learning.data.trajectory import Trajectory
from marless.learning.nets.acting import Acting
from marless.learning.nets.serial import encode_acting
from marless.services.coordinator.in_process.tasks import ActorResult, ActorTask, perform, receive, send

MOST_ATTEMPTS = 3
"""Of one task whose worker dies, or takes longer than `actors.timeout_s`."""
_WORKER = "marless.services.coordinator.in_process.worker"


class ActorRunner(Protocol):
    """Plays the tasks of actors."""

    async def play(
        self, tasks: Sequence[ActorTask], states: Mapping[tuple[str, int], Acting], loaded: Mapping[int, bytes]
    ) -> list[ActorResult]:
        """The result of each task, in order.

        Args:
            tasks: Of one rollout or evaluation.
            states: Every policy that they name, by name and version.
            loaded: The carry of each lane that goes on, by index.
        """
        ...

    async def close(self) -> None:
        """End; calling it twice MUST be safe."""
        ...


class PlainActors:
    """Plays by plain calls, one task after the other, in the thread of the caller: a breakpoint stops there."""

    def __init__(self) -> None:
        self._player = Player()

    async def play(
        self, tasks: Sequence[ActorTask], states: Mapping[tuple[str, int], Acting], loaded: Mapping[int, bytes]
    ) -> list[ActorResult]:
        results = []
        for task in tasks:
            acting = {agent: states[version] for agent, version in task.acting.items()}
            here = self._player.has_lane(task.env, (task.job, task.index), task.digest or "")
            start = b"" if here else loaded.get(task.index, b"")
            results.append(contained(partial(perform, task, self._player, acting, start)))
            await asyncio.sleep(0)  # others of the event loop get their turn
        return results

    async def close(self) -> None:
        """Close all environments."""
        self._player.close()


class ProcessActors:
    """Plays in worker processes, one for each of so many cores; this process is free for updates meanwhile.

    An actor always runs on the same worker, which then has its lane.
    """

    def __init__(self, workers: int) -> None:
        self._workers = [_WorkerProcess(number) for number in range(workers)]
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="actors")

    async def play(
        self, tasks: Sequence[ActorTask], states: Mapping[tuple[str, int], Acting], loaded: Mapping[int, bytes]
    ) -> list[ActorResult]:
        """Play on all workers at once. Raises UnavailableError if a task ends its worker again and again."""
        blobs = {version: encode_acting(state) for version, state in states.items()}
        loop, done = asyncio.get_running_loop(), dict[int, ActorResult]()

        def play(worker: _WorkerProcess, own: Sequence[ActorTask]) -> None:
            for task in own:
                done[task.index] = worker.play(task, blobs, loaded.get(task.index, b""))

        # A rollout of one actor, as asynchronous jobs have many under way, is played where its number says.
        first = tasks[0].round if len(tasks) == 1 and tasks[0].digest is None else 0
        shares = {
            worker: tasks[(worker.number - first) % len(self._workers) :: len(self._workers)]
            for worker in self._workers
        }
        await asyncio.gather(
            *(loop.run_in_executor(self._threads, play, worker, own) for worker, own in shares.items() if own)
        )
        return [done[task.index] for task in tasks]

    async def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            worker.end()
        await asyncio.to_thread(self._threads.shutdown)


class _WorkerProcess:
    """One worker, started again when it has died. Tasks of several threads take turns."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._turn = threading.Lock()
        self._ended = False
        self._start()

    def _start(self) -> None:
        here, there = socket.socketpair()
        with there:
            command = [sys.executable, "-P", "-m", _WORKER, str(there.fileno())]
            environment = process_environment.inherited(os.environ) | process_environment.ACTOR
            environment[ENV_MODULES] = os.environ.get(ENV_MODULES, "")
            self._process = subprocess.Popen(
                command, env=environment, pass_fds=[there.fileno()], stdin=subprocess.DEVNULL
            )
        self._sock = here
        self._has: set[tuple[str, int]] = set()
        """The versions that it was sent."""
        self._lanes: dict[int, str] = {}
        """The carry in which it left a lane, by index."""

    def play(self, task: ActorTask, blobs: Mapping[tuple[str, int], bytes], loaded: bytes) -> ActorResult:
        """The result of a task; blocks. An actor is a pure function, so a task whose worker dies is repeated."""
        with self._turn:
            for attempt in range(1, MOST_ATTEMPTS + 1):
                try:
                    return self._play(task, blobs, loaded, attempt)
                except (EOFError, OSError) as trouble:
                    self._stop()
                    if self._ended:
                        raise UnreachableError("the job's actors were ended") from None
                    why = "has ended; see what the environment writes to standard error"
                    if isinstance(trouble, TimeoutError):
                        why = f"took longer than actors.timeout_s ({task.timeout_s:g} s); raise it, or see what hangs"
                    self._start()
            raise UnavailableError(
                f"actor {task.index} of round {task.round + 1}: tried {MOST_ATTEMPTS} times, and each time its process "
                f"{why}"
            )

    def _play(
        self, task: ActorTask, blobs: Mapping[tuple[str, int], bytes], loaded: bytes, attempt: int
    ) -> ActorResult:
        missing = [version for version in blobs if version not in self._has]
        sent = [blobs[version] for version in missing]
        if self._lanes.get(task.index, "") != task.digest:
            sent.append(loaded)
        policies = [(*version, len(blobs[version])) for version in missing]
        self._sock.settimeout(task.timeout_s)
        send(self._sock, {"task": asdict(task), "policies": policies, "kept": list(blobs)}, sent)
        self._has = set(blobs)
        self._lanes.pop(task.index, None)
        found = receive(self._sock)
        if "error" in found.facts:
            raise _error_of(found.facts)
        carry = bytes(found.data)
        if carry:
            self._lanes[task.index] = hashlib.sha256(carry).hexdigest()
        facts = found.facts
        return ActorResult(
            worker=f"actor-{self.number}",
            attempt=attempt,
            stats=EpisodeStats(**facts.pop("stats")),
            trajectory=Trajectory(found.arrays) if found.arrays else None,
            carry=carry,
            **facts,
        )

    def end(self) -> None:
        """End the worker, and the task that it runs."""
        self._ended = True
        self._stop()

    def _stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._sock.close()


def _error_of(facts: Mapping[str, Any]) -> MarlessError:  # Any: JSON
    kind = getattr(errors, facts["error"]) if facts["error"] else InternalError
    error: MarlessError = kind(facts["text"])
    error.detail = facts["detail"]
    return error
