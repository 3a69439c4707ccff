"""The `marless` command-line interface."""

from __future__ import annotations

import os
import signal
import sys

from marless.app.cli import apart


def command() -> None:
    """The entry point of the `marless` command. Ctrl-C prints one line instead of a traceback, even during imports."""
    # gRPC logs lost connections to standard error; the command reports those that matter itself.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    if apart.is_wanted():
        sys.exit(apart.run())
    there = apart.begun()
    try:
        try:
            from marless.app.cli.main import main

            main()
        finally:  # an interrupt during the interpreter's shutdown would print tracebacks
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            apart.note_the_end(there)
    except KeyboardInterrupt:
        print("marless: interrupted", file=sys.stderr)  # noqa: T201  # for people
        sys.exit(130)
