"""The lives of a worker that no pool has launched: one child process for each job, forked from a process that stays.

The process that stays runs no task, so that each child begins as the first one did; see `marless.fleet.tenancy`.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass

RENEWED = 77
"""Exit code of a child whose pool wants a fresh one in its place."""
_PR_SET_PDEATHSIG = 1
_SIGNALS = 128
"""What shells add to the number of the signal that has ended a process."""


@dataclass
class Life:
    """How the life of this process ends."""

    renewed: bool = False
    """True once the pool has asked for a fresh worker in its place."""


def begin() -> None:
    """Go on in a child process, and in another one whenever its pool has it renewed.

    Returns in each child only. The process that stays exits as its last child does. It may have no thread.
    """
    gc.freeze()  # or garbage collections in children would copy what they share
    here = os.getpid()
    while child := os.fork():
        code = _ended(child)
        if code != RENEWED:
            sys.exit(code if code >= 0 else _SIGNALS - code)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != here:
        os._exit(0)  # the one that stays was killed before the line above


def _ended(child: int) -> int:
    """Wait for the end of a child, and pass on signals meanwhile; returns its exit code, negative for a signal's."""

    def pass_on(number: int, _frame: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, number)

    passed = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGHUP)}
    passed[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the child, too
    try:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        for number, before in passed.items():
            signal.signal(number, before)
