"""The `marless` command-line interface: its entry point, which runs `evaluate` in a process of its own.

That command plays an environment, which may end the process: so it can be said how that process ended.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from contextlib import suppress

_COMMAND = "evaluate"
"""Other commands leave environments to services and their workers."""
_ENDED_BY_ITSELF = "MARLESS_ENDED_BY_ITSELF"
"""Names the descriptor to which the process of the command writes when it ends by its own doing."""
_PR_SET_PDEATHSIG = 1


def command() -> None:
    """The entry point of the `marless` command. Ctrl-C prints one line instead of a traceback, even during imports."""
    # gRPC logs lost connections to standard error; the command reports those that matter itself.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # The process that was started to run the command has this variable.
    if sys.argv[1:2] == [_COMMAND] and _ENDED_BY_ITSELF not in os.environ:
        sys.exit(_run_child())
    there = _begin()
    try:
        try:
            from marless.app.cli.main import main

            main()
        finally:  # an interrupt during the interpreter's shutdown would print tracebacks
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            _note_the_end(there)
    except KeyboardInterrupt:
        print("marless: interrupted", file=sys.stderr)  # noqa: T201  # for people
        sys.exit(130)


def attached_command() -> None:
    """The entry point of a command that another one runs as its child: it is interrupted when that one ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    command()


def _run_child() -> int:
    """Run this command line once more in a child; returns the exit code, having said if the environment ended it."""
    here, there = os.pipe()
    # With the options of the interpreter, which sys.argv has no more.
    command = [sys.executable, *sys.orig_argv[1:]]
    # In a process group of its own, so that Ctrl-C reaches it once, from here, as does what is sent to this process.
    child = subprocess.Popen(
        command, pass_fds=(there,), env=os.environ | {_ENDED_BY_ITSELF: str(there)}, process_group=0
    )
    os.close(there)
    asked: list[int] = []

    def hand_on(number: int, _frame: object) -> None:
        asked.append(number)
        child.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, hand_on)
    code = child.wait()
    os.set_blocking(here, False)  # forks of the child may hold the other end open
    by_itself = False
    with suppress(BlockingIOError):
        by_itself = bool(os.read(here, 1))
    # The end by a signal that was handed on is what its sender wanted, and no doing of the environment.
    if by_itself or -code in asked:
        # As shells report the end of a process by a signal.
        return code if code >= 0 else 128 - code
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended itself with exit code {code}"
    print(  # noqa: T201  # for people
        f"marless: the process that plays the environment {how}; it is the environment, or a library of its own, that "
        "does so: play it by itself to find where",
        file=sys.stderr,
    )
    return 1


def _begin() -> int | None:
    """Make a child end when the process that waits for it does; returns the descriptor for `_note_the_end`.

    Returns None in a process that nobody waits for in this way.
    """
    if (there := os.environ.pop(_ENDED_BY_ITSELF, None)) is None:
        return None
    os.set_inheritable(int(there), False)  # what the environment starts neither holds it open nor writes to it
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return int(there)


def _note_the_end(there: int | None) -> None:
    """Note, in the child, that the command ends by its own doing, with a result or with an error."""
    if there is not None:
        with suppress(OSError):  # the environment has closed it
            os.write(there, b".")
