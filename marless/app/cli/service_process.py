"""Starts the process of a service: forked from a template where that gives the same process, else a new interpreter."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from marless.core import process_environment
from marless.fleet.launchers.forking import Forked, TemplateEndedError, TemplateProcess
from marless.fleet.launchers.template import SETTINGS, ForkOrder

PACKAGE = "marless.services"
"""The package of the services' programs."""
UNKNOWN = 255
"""Exit code of a process whose template ended before it, so that nobody knows."""
STARTED = ("learner_pool", "param_store", "actor_pool", "coordinator")
"""The services in the order of their starts: first the one whose workers, which import torch, take longest."""
ADDRESS_BYTES = 128
"""Longest address of a service that `ps` shows whole: enough for a unix socket."""


def arguments(listen: str) -> tuple[str, ...]:
    """The command-line arguments of a service."""
    return ("--listen", listen, "--exit-with-stdin")


class ServiceProcess(Protocol):
    """A process that was started, as asyncio's are."""

    @property
    def pid(self) -> int:
        """The process's id."""

    @property
    def returncode(self) -> int | None:
        """The process's exit code, negative if a signal killed it; None while it runs."""

    async def wait(self) -> int:
        """Wait for its end; returns its exit code."""

    def send_signal(self, signal: int) -> None:
        """Send it a signal."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """What a service is started with; it lives in a session of its own."""

    module: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    """All its environment variables."""
    log: BinaryIO
    """Its standard output and error."""
    inherited: Sequence[int]
    """Descriptors that it keeps open."""


class Starter:
    """Starts services: all that have the environment variables of the first one, but for MARLESS_*, from one template.

    Python and C libraries read other variables when a process starts, so a service with its own needs an interpreter of
    its own.
    """

    def __init__(
        self,
        package: str = PACKAGE,
        names: Sequence[str] = STARTED,
        longest: Sequence[str] = arguments("x" * ADDRESS_BYTES),
    ) -> None:
        """Prepare to start the services `names` of `package`; `longest` are as long as the longest arguments of one."""
        self._package = package
        self._modules = [f"{package}.{name}" for name in names]
        self._arguments = longest
        self._template: TemplateProcess | None = None
        self._others: Mapping[str, str] = {}

    def prepare(self, variables: Mapping[str, str]) -> TemplateProcess:
        """Start the template for services with these environment variables, unless it was. Raises OSError."""
        if self._template is None:
            self._others = _split(variables)[1]
            # One thread, because a process with several cannot be forked safely.
            of_template = {**self._others, **process_environment.ONE_THREAD}
            self._template = TemplateProcess(
                self._package, self._arguments, of_template, of_workers=False, quiet=True, ahead=self._modules
            )
            self._template.start()
        return self._template

    async def start(self, start: Start) -> ServiceProcess:
        """Start a service, whose standard input closes when this process ends. Raises OSError."""
        settings, others = _split(start.environment)
        template = self.prepare(start.environment)
        if others == self._others:
            order = ForkOrder(module=start.module, arguments=tuple(start.arguments), settings=settings)
            try:
                return await _fork(template, order, start)
            except (TemplateEndedError, TimeoutError):
                pass  # an interpreter of its own says in the service's log what is wrong
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            start.module,
            *start.arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=start.log,
            stderr=start.log,
            env=start.environment,
            pass_fds=start.inherited,
            start_new_session=True,  # Ctrl-C reaches only this process, which stops the services in order
        )

    def end(self) -> None:
        """End the template, after the services."""
        if self._template:
            self._template.end()


@contextmanager
def ahead() -> Iterator[Starter]:
    """A starter whose template imports the services from now on, while the caller does what has to be done first."""
    starter = Starter()
    try:
        with suppress(OSError):  # the start of the first service says so, too
            starter.prepare(os.environ)
        yield starter
    finally:
        starter.end()


async def _fork(template: TemplateProcess, order: ForkOrder, start: Start) -> ServiceProcess:
    theirs, ours = os.pipe()
    log = start.log.fileno()
    try:
        return _ForkedService(await template.fork(order, theirs, log, log, *start.inherited), ours)
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)


def _split(variables: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """MARLESS_* variables, and all others."""
    settings = {name: value for name, value in variables.items() if name.startswith(SETTINGS)}
    return settings, {name: value for name, value in variables.items() if name not in settings}


class _ForkedService:
    """A forked service, observed by a task of its own until it has ended."""

    def __init__(self, forked: Forked, standard_input: int) -> None:
        self.pid = forked.pid
        self._forked = forked
        self._standard_input = standard_input
        self._end = asyncio.create_task(self._ended())

    @property
    def returncode(self) -> int | None:
        return self._end.result() if self._end.done() else None

    async def wait(self) -> int:
        # Whoever gives up waiting must not end the task that alone learns how the service has ended.
        return await asyncio.shield(self._end)

    def send_signal(self, signal: int) -> None:
        if not self._end.done():
            self._forked.send_signal(signal)

    async def _ended(self) -> int:
        try:
            code = await self._forked.ended()
        finally:
            self._forked.close()
            os.close(self._standard_input)
        return UNKNOWN if code is None else code
