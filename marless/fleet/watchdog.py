"""Ends the process of a worker that hangs, also in native code that holds the interpreter's lock (GIL).

Then no Python code can run, so that the process notices neither a signal nor the loss of its pool. A thread of the
standard library's faulthandler needs no lock: it writes to stderr where each thread hangs, and exits with code 1.
"""

from __future__ import annotations

import faulthandler

_STDERR = 2


class Watchdog:
    """The time limit of this process; there is one."""

    def __init__(self, *, ends_process: bool = False) -> None:
        """Without `ends_process`, it does nothing: for workers that share their process with other things."""
        self._ends_process = ends_process

    def arm(self, limit_s: float) -> None:
        """End the process in so many seconds, unless `disarm` is called before; replaces an earlier limit."""
        if self._ends_process:
            faulthandler.dump_traceback_later(limit_s, exit=True, file=_STDERR)

    def disarm(self) -> None:
        """Take the limit back."""
        if self._ends_process:
            faulthandler.cancel_dump_traceback_later()
