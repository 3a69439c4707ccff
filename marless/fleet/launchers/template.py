"""`python -m marless.fleet.launchers.template --module=MODULE`: the process from which a pool's workers are forked.

It imports the workers' module once, and then forks a worker for each order of its pool. That takes milliseconds, where
a new interpreter takes seconds to import torch. It must stay safe to fork: it starts no thread and no event loop, opens
no gRPC channel (gRPC supports a fork only before its first one), and imports no code of users.

An order is one message on the socket that is its standard input: JSON with the arguments and the mark of the worker,
and two descriptors, the worker's standard input and a socket for reports. To the latter, the template reports the
process id of the worker together with a pidfd (or a negative errno, if it cannot fork), and later the worker's exit
code. When the pool closes the socket of orders, or has ended, the template ends too, after its workers: they notice the
end of the pool by themselves, and those that hang are killed.
"""

from __future__ import annotations

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
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from marless.fleet import orphans
from marless.fleet.launchers import shown

ORDER_BYTES = 2**16
HUNG_S = 3.0
"""Seconds that workers may take to end after their pool."""
_FLAG = "--module="
_ROOM = 256
"""Bytes of padding on a template's command line beyond that of its workers: for the worker's name."""


class WorkerModule(Protocol):
    """What a module of workers defines."""

    def main(self, arguments: Sequence[str]) -> None:
        """Run one worker with these command-line arguments, to its end."""
        ...


def command(module: str, arguments: Sequence[str]) -> list[str]:
    """The command line that starts a template of workers with such arguments; padded, so that theirs can be shown."""
    longest = len(os.fsencode(" ".join((module, *arguments))))
    return [sys.executable, "-P", "-m", "marless.fleet.launchers.template", _FLAG + module, " " * (longest + _ROOM)]


def order(arguments: Sequence[str], mark: str) -> bytes:
    """Encode the order of a worker."""
    return json.dumps([list(arguments), mark]).encode()


def main() -> None:
    """Run a template; in each forked worker, run the worker."""
    orders = socket.socket(fileno=os.dup(0))
    _read_nothing()
    name = sys.argv[1].removeprefix(_FLAG)
    shown.show_command(sys.orig_argv[:-1])
    module: WorkerModule = importlib.import_module(name)
    gc.collect()
    gc.freeze()  # or garbage collections in the workers would copy every page that they share
    arguments = Template(orders).run()
    if arguments is not None:
        shown.show_command([*sys.orig_argv[:3], name, *arguments])
        module.main(arguments)


def _read_nothing() -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


@dataclass(frozen=True)
class _Child:
    """A forked worker that has not been waited for."""

    pid: int
    pidfd: int
    mark: str
    reports: socket.socket

    def close(self) -> None:
        os.close(self.pidfd)
        self.reports.close()


class Template:
    """The loop of a template process."""

    def __init__(self, orders: socket.socket) -> None:
        self._orders = orders
        self._children: dict[int, _Child] = {}
        self._selector = selectors.PollSelector()
        self._selector.register(orders, selectors.EVENT_READ)

    def run(self) -> list[str] | None:
        """Fork a worker for each order. Returns the arguments in the worker, and None in the template at its end."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is not self._orders:
                    self._wait_for(self._children.pop(key.fd))
                    continue
                message, descriptors, _, _ = socket.recv_fds(self._orders, ORDER_BYTES, 2, socket.MSG_CMSG_CLOEXEC)
                if not message:
                    self._outlast_workers()
                    return None
                if (arguments := self._fork(message, *descriptors)) is not None:
                    return arguments

    def _fork(self, message: bytes, standard_input: int, reports_to: int) -> list[str] | None:
        arguments: list[str]
        arguments, mark = json.loads(message)
        reports = socket.socket(fileno=reports_to)
        try:
            pid = os.fork()
        except OSError as error:
            os.close(standard_input)
            _report(reports, -(error.errno or errno.EAGAIN))
            reports.close()
            return None
        if not pid:
            reports.close()
            self._become_worker(standard_input, mark)
            return arguments
        os.close(standard_input)
        child = _Child(pid, os.pidfd_open(pid), mark, reports)
        self._children[child.pidfd] = child
        self._selector.register(child.pidfd, selectors.EVENT_READ)
        _report(reports, pid, child.pidfd)
        return None

    def _become_worker(self, standard_input: int, mark: str) -> None:
        for other in self._children.values():
            other.close()
        self._orders.close()
        os.setsid()
        os.dup2(standard_input, 0)
        os.close(standard_input)
        shown.show_variable(orphans.MARK, mark)
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed()  # or environments that use NumPy's global generator would draw the same in all workers

    def _outlast_workers(self) -> None:
        """Wait for the workers, kill those that have not ended after a while, and what they have started."""
        self._selector.unregister(self._orders)
        give_up_s = time.monotonic() + HUNG_S
        while self._children and (left_s := give_up_s - time.monotonic()) > 0:
            for key, _ in self._selector.select(left_s):
                self._wait_for(self._children.pop(key.fd))
        for child in self._children.values():
            os.kill(child.pid, signal.SIGKILL)
            orphans.end_below(child.pid, child.mark)

    def _wait_for(self, child: _Child) -> None:
        _, status = os.waitpid(child.pid, 0)
        self._selector.unregister(child.pidfd)
        _report(child.reports, os.waitstatus_to_exitcode(status))
        child.close()


def _report(reports: socket.socket, number: int, *descriptors: int) -> None:
    """Send the pool a process id, an exit code, or a negative errno; nothing if it is gone."""
    with suppress(OSError):
        socket.send_fds(reports, [str(number).encode()], descriptors)


if __name__ == "__main__":
    main()
