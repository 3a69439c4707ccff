"""`python -m marless.fleet.launchers.template --module=MODULE --ahead=MODULES`: a process from which others are forked.

It imports modules once, those of --ahead while no order waits, and forks a process for each order: a worker of a pool,
or a service of a local stack. That takes milliseconds, where a new interpreter takes seconds to import torch. It must
stay safe to fork: it starts no thread and no event loop, opens no gRPC channel (gRPC supports a fork only before its
first one), and imports no code of users.

An order is one message on the socket that is its standard input: the JSON of a `ForkOrder`, and descriptors: a socket
for reports, up to three that become standard input, output and error, and others that the process only keeps open. On
its socket, the template reports the id of the forked process together with a pidfd (or a negative errno, if it cannot
fork), and later its exit code. When the other end of the orders is closed, the template ends, after its workers: they
notice the end of their pool by themselves, and those that hang are killed.

By default, `/proc` and so `ps` would show the template's command line and environment for a forked process. Both lie in
the memory of the process, which overwrites them within their length. Linux only.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

from marless.core import orphans

ORDER_BYTES = 2**16
DESCRIPTORS = 8
"""Most descriptors that come with an order."""
HUNG_S = 3.0
"""Seconds that workers may take to end after their pool."""
SETTINGS = "MARLESS_"
"""First letters of the environment variables that an order may set: those that Python and C libraries do not read."""
_MODULE, _AHEAD = "--module=", "--ahead="
_ROOM = 256
"""Bytes of padding on a template's command line beyond that of its processes: for the name of a worker."""
_STANDARD = 3


class ForkableProgram(Protocol):
    """What a module defines from which processes are forked."""

    def main(self, arguments: Sequence[str]) -> None:
        """Run one process with these command-line arguments, to its end."""
        ...


@dataclass(frozen=True, kw_only=True)
class ForkOrder:
    """What to fork."""

    module: str
    """As after `python -m`: a module, or a package with a `__main__`."""
    arguments: tuple[str, ...]
    """Its command-line arguments."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """All its MARLESS_* variables, which the template does not have; other variables are those of the template."""
    mark: str = ""
    """The mark of a worker, see `marless.core.orphans`; "": the process is no worker, and may outlive its template."""

    def to_bytes(self) -> bytes:
        """Encode; raises OSError if it is longer than a template reads."""
        encoded = json.dumps(asdict(self)).encode()
        if len(encoded) > ORDER_BYTES:
            raise OSError(errno.E2BIG, "arguments and MARLESS_* variables are too long")
        return encoded

    @classmethod
    def from_bytes(cls, encoded: bytes) -> Self:
        """Decode the output of `to_bytes`."""
        read = json.loads(encoded)
        return cls(**read | {"arguments": tuple(read["arguments"])})


def command(module: str, arguments: Sequence[str], ahead: Sequence[str] = ()) -> list[str]:
    """The command line that starts a template of a module, or package of modules, that are run with such arguments.

    It is padded, so that their command lines can be shown.
    """
    longest = len(os.fsencode(" ".join((module, *arguments))))
    flags = [_MODULE + module, _AHEAD + ",".join(ahead)]
    return [sys.executable, "-P", "-m", "marless.fleet.launchers.template", *flags, " " * (longest + _ROOM)]


def main() -> None:
    """Run a template; in each forked process, run its program."""
    gc.disable()  # what modules allocate stays
    orders = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    # Without the padding, which only makes room for what its processes show.
    show_command(sys.orig_argv[:-1])
    module, ahead = sys.argv[1].removeprefix(_MODULE), sys.argv[2].removeprefix(_AHEAD)
    importlib.import_module(module)
    forked = TemplateLoop(orders, ahead.split(",") if ahead else ()).run()
    if forked is not None:
        gc.enable()
        show_command([*sys.orig_argv[:3], forked.module, *forked.arguments])
        program: ForkableProgram = _imported(forked.module)
        program.main(forked.arguments)


def _imported(name: str) -> Any:  # Any: what a module defines
    """Import what `python -m NAME` runs."""
    module = importlib.import_module(name)
    return importlib.import_module(f"{name}.__main__") if hasattr(module, "__path__") else module


@dataclass(frozen=True)
class _Child:
    """A forked process that has not been waited for."""

    pid: int
    pidfd: int
    mark: str
    reports: socket.socket

    def close(self) -> None:
        os.close(self.pidfd)
        self.reports.close()


class TemplateLoop:
    """The loop of a template process."""

    def __init__(self, orders: socket.socket, ahead: Sequence[str] = ()) -> None:
        self._orders = orders
        self._ahead = deque(ahead)
        self._children: dict[int, _Child] = {}
        self._selector = selectors.PollSelector()
        self._selector.register(orders, selectors.EVENT_READ)

    def run(self) -> ForkOrder | None:
        """Fork a process for each order. Returns the order in that process, and None in the template at its end."""
        while True:
            while self._ahead and not self._selector.select(0):
                with suppress(Exception):  # whoever needs the module imports it again, and says what is wrong
                    _imported(self._ahead.popleft())
            for key, _ in self._selector.select():
                if key.fileobj is not self._orders:
                    self._wait_for(self._children.pop(key.fd))
                    continue
                message, descriptors, _, _ = socket.recv_fds(
                    self._orders, ORDER_BYTES, DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
                )
                if not message:
                    self._outlast_workers()
                    return None
                if self._fork(order := ForkOrder.from_bytes(message), *descriptors):
                    return order

    def _fork(self, order: ForkOrder, reports_to: int, *descriptors: int) -> bool:
        """Fork a process; returns whether this is the new one."""
        # Before the fork, so that the next process of this module finds it imported.
        _imported(order.module)
        gc.freeze()  # or garbage collections in the processes would copy every page that they share
        reports = socket.socket(fileno=reports_to)
        try:
            pid = os.fork()
        except OSError as error:
            _close(descriptors)
            _report(reports, -(error.errno or errno.EAGAIN))
            reports.close()
            return False
        if not pid:
            reports.close()
            self._become(order, descriptors)
            return True
        _close(descriptors)
        # A pidfd names this very process, also once another one has its number; whoever asked for it sends signals by
        # it.
        child = _Child(pid, os.pidfd_open(pid), order.mark, reports)
        self._children[child.pidfd] = child
        self._selector.register(child.pidfd, selectors.EVENT_READ)
        _report(reports, pid, child.pidfd)
        return False

    def _become(self, order: ForkOrder, descriptors: Sequence[int]) -> None:
        # While a process held these, nobody would notice the end of the template, which shows by their closing.
        for other in self._children.values():
            other.close()
        self._orders.close()
        os.setsid()
        for number, descriptor in enumerate(descriptors[:_STANDARD]):
            os.dup2(descriptor, number)
        _close(descriptors[:_STANDARD])
        os.environ.update(order.settings)
        if order.mark:
            show_variable(orphans.MARK, order.mark)
        if random := sys.modules.get("numpy.random"):
            random.seed()  # or environments that use NumPy's global generator would draw the same in all workers

    def _outlast_workers(self) -> None:
        """Wait for the workers, kill those that have not ended after a while, and what they have started."""
        self._selector.unregister(self._orders)
        give_up_s = time.monotonic() + HUNG_S
        while self._workers() and (left_s := give_up_s - time.monotonic()) > 0:
            for key, _ in self._selector.select(left_s):
                self._wait_for(self._children.pop(key.fd))
        for child in self._workers():
            os.kill(child.pid, signal.SIGKILL)
            orphans.end_below(child.pid, child.mark)

    def _workers(self) -> list[_Child]:
        return [child for child in self._children.values() if child.mark]

    def _wait_for(self, child: _Child) -> None:
        _, status = os.waitpid(child.pid, 0)
        self._selector.unregister(child.pidfd)
        _report(child.reports, os.waitstatus_to_exitcode(status))
        child.close()


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _report(reports: socket.socket, number: int, *descriptors: int) -> None:
    """Send the other end a process id, an exit code, or a negative errno; nothing if it is gone."""
    with suppress(OSError):
        socket.send_fds(reports, [str(number).encode()], descriptors)


_ARG_START, _ENV_END = 45, 48
"""Positions in /proc/self/stat, counted from the field after the command's name: proc(5) has them as 48 to 51."""


def show_command(words: Sequence[str]) -> None:
    """Show this command line, cut to the length of the one that this process was started with."""
    start, end, _, _ = _area()
    shown = b"\0".join(os.fsencode(word) for word in words)[: end - start - 1]
    ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)


def show_variable(name: str, value: str) -> None:
    """Set an environment variable, also in what /proc shows. It must have been set when this process was started.

    Raises ValueError unless the value is as long as the one before.
    """
    _, _, start, end = _area()
    # With the NUL before it, so that another variable whose name only ends like this one is not found.
    before, after = (os.fsencode(f"\0{name}={each}\0") for each in (os.environ.get(name, ""), value))
    position = (b"\0" + ctypes.string_at(start, end - start)).find(before)
    if position < 0 or len(before) != len(after):
        raise ValueError(f"{name}: set at the start, and as long as before, is what can be shown")
    ctypes.memmove(start + position, after[1:], len(after) - 1)
    os.environ[name] = value


def _area() -> tuple[int, int, int, int]:
    """Start and end of the command line, and of the environment, in this process's memory."""
    # The name of the command, in parentheses, may itself have spaces and parentheses.
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    arg_start, arg_end, env_start, env_end = map(int, fields[_ARG_START : _ENV_END + 1])
    return arg_start, arg_end, env_start, env_end


if __name__ == "__main__":
    main()
