"""Supervises one service process: restarts it when it dies or does not answer, and gives up if it keeps dying.

Whether a service answers is known by its health, which is asked again and again, and by the file of its socket.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from marless.app.cli.service_process import PACKAGE, UNKNOWN, ServiceProcess, Start, Starter, arguments
from marless.core import private_files, regular_files
from marless.core.errors import MarlessError
from marless.fleet.launchers.forking import how
from marless.rpc.client import Peer
from marless.rpc.concurrency import delays
from marless.rpc.security import Security

STOP_S = 15.0
TRACED_S = 1.0
"""Seconds that a silent service has to write into its log where its threads are."""
LOG_BYTES = 16 * 2**20
"""Size at which a log file is rotated; one old file is kept."""
LOG_CHECK_S = 0.1
"""Seconds between looks at the size of a log: an environment may print hundreds of megabytes per second."""
_RESTARTS = {"first_s": 0.1, "longest_s": 2.0}
"""Delays before a service that did not answer is started again."""
_LAST_BYTES = 2**18
"""The end of a log in which an error message is searched for."""
SERVING = health_pb2.HealthCheckResponse.SERVING
RECONNECT_S = 0.05
_NO_ANSWER = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
"""Every other code is an answer, also a refusal."""


@dataclass(frozen=True)
class Endpoint:
    """Where a service listens, and how its health is asked."""

    listen: str
    address: str
    """The address to dial."""
    security: Security

    @property
    def socket(self) -> Path | None:
        """The file of its unix socket; None if it listens on a port."""
        return Path(self.listen.removeprefix("unix:")) if self.listen.startswith("unix:") else None


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long a service may be silent before it is replaced."""

    question_s: float = 5.0
    """Seconds that one question waits for its answer, and the time between two questions."""
    silent_s: float = 30.0
    """Seconds of silence, less those in which the service waited for a CPU."""
    first_s: float = 600.0
    """Seconds from the start until the first answer: a Redis may have gigabytes to read."""


async def statuses(address: str, security: Security) -> AsyncGenerator[int, None]:
    """Yield a service's health statuses, from its first answer on; reconnects when the service is restarted."""
    while True:
        peer = Peer(address, security)
        try:
            watch = health_pb2_grpc.HealthStub(peer.channel).Watch
            async for answer in watch(health_pb2.HealthCheckRequest(), metadata=peer.metadata, wait_for_ready=True):
                yield answer.status
        except grpc.aio.AioRpcError:
            pass  # it died; its successor will answer
        finally:
            await peer.close()
        await asyncio.sleep(RECONNECT_S)


async def no_answer(endpoint: Endpoint, pid: int, patience: Patience) -> str:
    """Wait until a running service, process `pid`, cannot be reached or has been silent too long; returns what it did.

    A service that the machine starves is not silent: what counts is the time in which it could have answered. Time in
    which the caller itself did not run does not count either.
    """
    silent_s = 0.0
    while True:
        await asyncio.sleep(patience.question_s)
        if endpoint.socket and not endpoint.socket.exists():
            return f"had lost its socket, {endpoint.socket}, which something removed"
        began_s, before = time.monotonic(), starved_s(pid)
        if await _answers(endpoint, patience.question_s):
            silent_s = 0.0
            continue
        asked_s = min(time.monotonic() - began_s, patience.question_s)
        # By how much the thread that waited longest for a CPU has waited meanwhile.
        starved = max((each - before.get(thread, each) for thread, each in starved_s(pid).items()), default=0.0)
        # Between two questions nobody would notice an answer, so that this time counts like that of the question.
        silent_s += 2 * max(asked_s - starved, 0.0)
        if silent_s >= patience.silent_s:
            return f"did not answer for {silent_s:.0f} s"


async def _answers(endpoint: Endpoint, limit_s: float) -> bool:
    peer = Peer(endpoint.address, endpoint.security)
    check = health_pb2_grpc.HealthStub(peer.channel).Check
    request = health_pb2.HealthCheckRequest()
    try:
        # A question waits for a connection, too: a failure at once would take no time, and so count as no silence.
        await check(request, timeout=limit_s, metadata=peer.metadata, wait_for_ready=True)
    except grpc.aio.AioRpcError as error:
        return error.code() not in _NO_ANSWER
    finally:
        await peer.close()
    return True


def starved_s(pid: int) -> dict[str, float]:
    """Seconds that each thread of a process has waited for a CPU so far; empty where Linux does not say."""
    waited = {}
    for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError, ValueError, IndexError):
            # The second number is the time on a run queue, in nanoseconds.
            waited[thread.parent.name] = int(thread.read_text("ascii").split()[1]) / 1e9
    return waited


@dataclass(frozen=True, kw_only=True)
class RestartLimits:
    """When to replace a service, and when to give up on one that keeps dying."""

    deaths: int = 5
    """Give up after this many deaths of any kind …"""
    within_s: float = 60.0
    """… within this many seconds."""
    unserved: int = 2
    """Give up after exiting by itself this many times in a row before ever answering: its installation is broken."""
    patience: Patience = field(default_factory=Patience)
    """How long it may be silent."""


class Log:
    """A log file of bounded size to which processes append."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self) -> BinaryIO:
        """Open for appending. Raises OSError."""
        descriptor = private_files.open_own(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        return os.fdopen(descriptor, "ab")

    def put_aside(self) -> None:
        """Rename the file to the old one, so that a new one is begun. Only while no process writes. Raises OSError."""
        with suppress(FileNotFoundError):
            self.path.replace(self._old)

    @property
    def is_too_long(self) -> bool:
        """True if the file has more than `LOG_BYTES`. Raises OSError."""
        return self.path.stat().st_size > LOG_BYTES

    def bound(self) -> None:
        """Keep the end of a file that is too long as the old one, and truncate it while others have it open for
        appending. If there is no room for the old one, its lines are lost. Raises OSError.
        """
        if not self.is_too_long:
            return
        with suppress(OSError):
            descriptor = private_files.open_own(self._old, os.O_WRONLY | os.O_CREAT)  # with the mode of the log itself
            with os.fdopen(descriptor, "wb") as old, self.path.open("rb") as file:
                old.truncate()
                if skipped := max(os.fstat(file.fileno()).st_size - LOG_BYTES, 0):
                    old.write(json.dumps({"event": "log.dropped", "bytes": skipped}).encode() + b"\n")
                file.seek(skipped)
                old.write(file.read(LOG_BYTES))  # no more, however fast its writers are
        with self.path.open("r+b") as file:
            file.truncate()

    def last_words(self) -> str:
        """The last line that is not JSON, which is an error message for people; "" if there is none."""
        lines = self._end().strip().splitlines()
        return next((line for line in reversed(lines) if not line.startswith("{")), "")

    def advice(self) -> tuple[str, ...]:
        """What warnings at its end advise, each once."""
        found: dict[str, None] = {}
        for line in self._end().splitlines():
            with suppress(ValueError, TypeError, AttributeError, RecursionError):
                fields = json.loads(line)
                if fields.get("level") == "warning" and isinstance(advice := fields.get("advice"), str):
                    found[advice] = None
        return tuple(found)

    def _end(self) -> str:
        try:
            with regular_files.opened(self.path) as file:
                file.seek(max(os.fstat(file.fileno()).st_size - _LAST_BYTES, 0))
                return file.read(_LAST_BYTES).decode(errors="replace")
        except MarlessError:
            return ""

    @property
    def _old(self) -> Path:
        return self.path.with_suffix(".log.1")


class SupervisedService:
    """A supervised service on this machine. Run `keep_alive` as a task for as long as the service is needed."""

    def __init__(
        self,
        name: str,
        *,
        endpoint: Endpoint,
        environment: Mapping[str, str],
        log: Log,
        limits: RestartLimits,
        told: Callable[[str], None],
        starter: Starter,
        inherited: tuple[int, ...] = (),
    ) -> None:
        self.name = name
        self.restarts = 0
        self.next_environment: dict[str, str] = {}
        """Additional environment variables for the next start only."""
        self._endpoint = endpoint
        self._environment = environment
        self._log = log
        self._limits = limits
        self._told = told
        self._starter = starter
        self._inherited = inherited
        self._unanswered = ""
        """What the present process did in place of answering; "" while it does."""
        self._process: ServiceProcess | None = None
        self._answered = False

    @property
    def pid(self) -> int:
        """Process id of the service, or of its last process."""
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._process.pid

    async def start(self) -> None:
        """Start the process, and make the directory of its socket anew if that is gone; raises OSError."""
        if socket := self._endpoint.socket:
            private_files.directory(socket.parent)
        environment = {**self._environment, **self.next_environment}
        self.next_environment = {}
        self._answered, self._unanswered = False, ""
        with self._log.open() as log:
            self._process = await self._starter.start(
                Start(
                    module=f"{PACKAGE}.{self.name}",
                    arguments=arguments(self._endpoint.listen),
                    environment=environment,
                    log=log,
                    inherited=self._inherited,
                )
            )

    async def keep_alive(self) -> str:
        """Restart the service whenever it dies or does not answer; returns the reason once it gives up.

        Raises OSError.
        """
        deaths: deque[float] = deque(maxlen=self._limits.deaths)
        unserved, pauses = 0, delays(**_RESTARTS)
        while True:
            code = await self._end()
            deaths.append(time.monotonic())
            # SIGKILL comes from outside, as when memory is short: it does not say that the installation is broken.
            unserved = 0 if self._answered or code == -signal.SIGKILL else unserved + 1
            if unserved == self._limits.unserved:
                return f"{self.name} ended: {self._last_words()}"
            if len(deaths) == deaths.maxlen and deaths[-1] - deaths[0] < self._limits.within_s:
                return (
                    f"{self.name} ended {len(deaths)} times within {deaths[-1] - deaths[0]:.0f} s, "
                    f"now {_how(code)}: {self._last_words()}"
                )
            if self._answered:
                pauses = delays(**_RESTARTS)
            else:
                await asyncio.sleep(next(pauses))
            what = self._unanswered or f"ended ({_how(code)})"
            await self.start()
            self.restarts += 1
            if not unserved:  # otherwise its error message is reported soon
                self._told(f"{self.name} {what}; it was started again")

    async def stop(self) -> None:
        """Stop the process: SIGTERM, then SIGKILL if it takes too long; idempotent."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            process.send_signal(signal.SIGKILL)
            await process.wait()

    async def _end(self) -> int:
        """Wait for the end of the process, and end it if it does not answer; returns its exit code.

        Meanwhile, note its first answer, and bound its log.
        """
        assert self._process
        answering = asyncio.create_task(self._end_unless_it_answers(self._process))
        bounding = asyncio.create_task(self._bound_log())
        try:
            return await self._process.wait()
        finally:
            for task in (answering, bounding):
                task.cancel()
            await asyncio.gather(answering, bounding, return_exceptions=True)

    async def _end_unless_it_answers(self, process: ServiceProcess) -> None:
        try:
            async with asyncio.timeout(self._limits.patience.first_s):
                async with aclosing(statuses(self._endpoint.address, self._endpoint.security)) as said:
                    await anext(said)
                self._answered = True
        except TimeoutError:
            self._unanswered = f"did not answer within {self._limits.patience.first_s:g} s of its start"
        else:
            self._unanswered = await no_answer(self._endpoint, process.pid, self._limits.patience)
        process.send_signal(signal.SIGUSR1)  # it writes where its threads are, unless it is stopped
        with suppress(TimeoutError):
            async with asyncio.timeout(TRACED_S):
                await process.wait()
        process.send_signal(signal.SIGKILL)  # what is lost is what a death loses

    async def _bound_log(self) -> None:
        while True:
            await asyncio.sleep(LOG_CHECK_S)
            with suppress(OSError):
                if self._log.is_too_long:
                    await asyncio.to_thread(self._log.bound)

    def _last_words(self) -> str:
        words = self._log.last_words().removeprefix(f"{self.name}: ") or "it left no message"
        return f"{words} (log: {self._log.path})"


def _how(code: int) -> str:
    return "at an unknown exit code" if code == UNKNOWN else how(code)
