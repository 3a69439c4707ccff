"""What a simulation puts in the place of the outside world: clocks, random numbers, threads, files and gRPC.

Production code runs unchanged on it, because it reaches all of these through their modules.
"""

from __future__ import annotations

import gc
import os
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import grpc
import pytest

from marless.core import failpoint
from marless.core.log import structlog
from tests.simulation.channel import Channel
from tests.simulation.loop import START_S, THREAD_S, KilledError, Process, VirtualLoop, present
from tests.simulation.network import Network
from tests.simulation.server import Server


class Descriptors:
    """The file descriptors of each process: a dead process has none, so that its locks are free."""

    def __init__(self) -> None:
        self._owners: dict[int, tuple[Process | None, tuple[int, int]]] = {}
        """By descriptor: who opened it, and which file, as a file object may close it unseen."""
        self._open, self._close = os.open, os.close
        self._nothing = os.open(os.devnull, os.O_RDWR)

    def open(self, *arguments: Any, **options: Any) -> int:
        descriptor = self._open(*arguments, **options)
        self._owners[descriptor] = (present(), _file(descriptor))
        return descriptor

    def close(self, descriptor: int) -> None:
        self._owners.pop(descriptor, None)
        self._close(descriptor)

    def end(self, process: Process) -> None:
        """Close the files of a dead process, and keep their numbers from being used again."""
        for descriptor, (owner, file) in list(self._owners.items()):
            if owner is process and _file(descriptor) == file:
                os.dup2(self._nothing, descriptor, inheritable=False)
                self._owners[descriptor] = (None, _file(descriptor))

    def close_all(self) -> None:
        for descriptor, (_, file) in self._owners.items():
            if _file(descriptor) == file:
                self._close(descriptor)
        self._owners.clear()
        self._close(self._nothing)


def _file(descriptor: int) -> tuple[int, int]:
    try:
        status = os.fstat(descriptor)
    except OSError:
        return (0, 0)
    return status.st_dev, status.st_ino


class Trap:
    """Kills a process at a failpoint, the n-th time that any process passes it."""

    def __init__(self, kill: Callable[[Process], None], passed: Callable[[str], None]) -> None:
        self.at = ""
        self.left = 0
        self._kill = kill
        self._passed = passed

    def pass_by(self, name: str) -> None:
        process = present()
        if process and name == self.at:
            self.left -= 1
            if self.left == 0:
                self._kill(process)
                raise KilledError(name)
        self._passed(name)


class Complaints:
    """The errors that services log, which no fault explains."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def __call__(self, _logger: Any, _level: str, event: Mapping[str, Any]) -> Any:
        # Only faults kill here, and a pool is right to say so if three of them hit workers that had not started yet.
        by_a_fault = event.get("event") == "worker.given_up" and "could not start (killed)" in str(event.get("reason"))
        if not by_a_fault:
            self.found.append(f"{event.get('event')}: {event.get('error') or event.get('exception') or dict(event)}")
        raise structlog.DropEvent


@contextmanager
def surroundings(
    loop: VirtualLoop, network: Network, chance: random.Random, trap: Trap, descriptors: Descriptors
) -> Iterator[Complaints]:
    """Replace the outside world while the context lasts."""
    complaints, logging = Complaints(), structlog.get_config()
    with pytest.MonkeyPatch.context() as patched:
        _clocks(patched, loop)
        _chance(patched, chance)
        patched.setattr(threading, "Thread", _thread(loop, chance))
        patched.setattr(os, "open", descriptors.open)
        patched.setattr(os, "close", descriptors.close)
        patched.setattr(failpoint, "_pass_by", trap.pass_by)
        patched.setattr(grpc.aio, "insecure_channel", partial(Channel, network))
        patched.setattr(grpc.aio, "server", partial(Server, network))
        structlog.configure(processors=[complaints], wrapper_class=structlog.make_filtering_bound_logger(40))
        gc.disable()  # a collection would end the generators of killed processes at an accidental moment
        try:
            yield complaints
        finally:
            gc.enable()
            structlog.configure(**logging)
            descriptors.close_all()


def _clocks(patched: pytest.MonkeyPatch, loop: VirtualLoop) -> None:
    patched.setattr(time, "monotonic", loop.time)
    patched.setattr(time, "process_time", loop.time)
    patched.setattr(time, "time", lambda: START_S + loop.time())
    touch = os.utime

    def touched(path: Any, *arguments: Any, **options: Any) -> None:
        """Two moments of virtual time may be one of the kernel's."""
        now_ns = round((START_S + loop.time()) * 1e9)
        touch(path, *arguments, **(options or {} if arguments else {"ns": (now_ns, now_ns)}))

    patched.setattr(os, "utime", touched)


def _chance(patched: pytest.MonkeyPatch, chance: random.Random) -> None:
    real = random.Random

    class Seeded(real):  # type: ignore[misc,valid-type]
        def __init__(self, seed: Any = None) -> None:
            super().__init__(chance.getrandbits(64) if seed is None else seed)

    patched.setattr(random, "Random", Seeded)
    patched.setattr(secrets, "token_hex", lambda count=32: chance.randbytes(count).hex())
    patched.setattr(secrets, "token_urlsafe", lambda count=32: chance.randbytes(count).hex())


def _thread(loop: VirtualLoop, chance: random.Random) -> type:
    class Thread:
        def __init__(self, target: Any = None, args: Any = (), **_: Any) -> None:
            self._run = lambda: target(*args)

        def start(self) -> None:
            loop.call_later(chance.uniform(*THREAD_S), self._run)

    return Thread
