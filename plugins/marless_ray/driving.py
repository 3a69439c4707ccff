"""The driver process of a launcher `ray`, as its pool sees it: calls, answers, and its end."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from marless.core import orphans
from marless.core.errors import UnavailableError
from marless.fleet.launchers.forking import how
from marless_ray.settings import Assignment

START_S = 5.0
"""Seconds that a driver may take, beyond those of a call to Ray, to import Ray."""
_MODULE = "marless_ray.driver"
_QUIET = {"RAY_DEDUP_LOGS": "0", "RAY_COLOR_PREFIX": "0", "PYTHONUNBUFFERED": "1"}
Told = Mapping[str, Any]  # Any: JSON


class LostError(UnavailableError):
    """A driver has ended, or does not answer: whether it did what it was called for is not known."""


class Driven:
    """One driver process."""

    def __init__(self, process: Process, on_end: Callable[[Told], None], on_loss: Callable[[str], None]) -> None:
        self.cluster = ""
        """Version and address."""
        self._process = process
        self._on_end = on_end
        self._on_loss = on_loss
        self._serials = itertools.count()
        self._answers: dict[int, asyncio.Future[Told]] = {}
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        assignment: Assignment,
        environment: Mapping[str, str],
        on_end: Callable[[Told], None],
        on_loss: Callable[[str], None],
    ) -> Driven:
        """Start one, and wait until it is connected to Ray; raises UnavailableError.

        `on_end` is told each worker that has ended, `on_loss` how the driver did, with all workers.
        """
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            _MODULE,
            stdin=PIPE,
            stdout=PIPE,
            env={**environment, **_QUIET, orphans.MARK: orphans.new_mark()},
            cwd="/",  # which Ray adds to the paths from which actors import
            start_new_session=True,
        )
        driven = cls(process, on_end, on_loss)
        limit_s = assignment.ray_s + START_S
        try:
            driven._write(assignment.to_line())
            async with asyncio.timeout(limit_s):
                said = await driven._read()
        except TimeoutError:
            await driven.close(0.0)
            why = f"no Ray cluster answers at {assignment.address} within {limit_s:g} s; see `ray status`"
            raise UnavailableError(why) from None
        except BaseException:
            process.kill()
            raise
        if "connected" not in said:
            await driven.close(START_S)
            raise UnavailableError(said.get("refused", f"Ray's driver ended ({how(process.returncode or 0)})"))
        driven.cluster = said["connected"]
        driven._reading = asyncio.create_task(driven._follow())
        return driven

    @property
    def has_ended(self) -> bool:
        """True once its output has ended."""
        return self._reading is None or self._reading.done()

    async def ask(self, call: Told, limit_s: float) -> Told:
        """Make a call, and wait for its answer; raises LostError."""
        serial = next(self._serials)
        answer: asyncio.Future[Told] = asyncio.get_running_loop().create_future()
        self._answers[serial] = answer
        try:
            if self.has_ended:
                raise LostError("the connection to Ray is lost; it is made again")
            self._write(json.dumps({"id": serial, **call}).encode() + b"\n")
            async with asyncio.timeout(limit_s):
                return await answer
        except TimeoutError:
            raise LostError(f"Ray did not answer within {limit_s:g} s; see `ray status`") from None
        finally:
            self._answers.pop(serial, None)

    async def close(self, patience_s: float) -> None:
        """Have it end all workers, and itself; kill it if that takes longer. Idempotent."""
        if self._process.stdin:
            self._process.stdin.close()
        try:
            async with asyncio.timeout(patience_s):
                await self._process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
        await self._process.wait()
        if self._reading:
            await asyncio.gather(self._reading, return_exceptions=True)

    def _write(self, line: bytes) -> None:
        if self._process.stdin and not self._process.stdin.is_closing():
            self._process.stdin.write(line)

    async def _read(self) -> Told:
        """The next line; empty at the end."""
        line = await self._process.stdout.readline() if self._process.stdout else b""
        told: Told = json.loads(line) if line else {}
        return told

    async def _follow(self) -> None:
        while told := await self._read():
            if "ended" in told:
                self._on_end(told)
            elif (answer := self._answers.get(told["id"])) and not answer.done():
                answer.set_result(told)
        code = await self._process.wait()
        lost = f"the connection to Ray is lost (its driver ended: {how(code)})"
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(LostError(f"{lost}; it is made again"))
        self._on_loss(lost)
