"""What a user types."""

from __future__ import annotations

import os
import signal
import sys


def command() -> None:
    """The `marless` command. Ctrl-C is one sentence from the first moment on, also while the rest is imported."""
    # gRPC writes notes of lost connections to standard error; what matters of them, we say in a sentence.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        try:
            from marless.cli.main import main

            main()
        finally:  # what is left is the interpreter's own end, which an interrupt fills with tracebacks
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    except KeyboardInterrupt:
        print("marless: interrupted", file=sys.stderr)  # noqa: T201  # for people
        sys.exit(130)
