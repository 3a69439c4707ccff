"""What a user types."""

from __future__ import annotations

import sys


def command() -> None:
    """The `marless` command. Ctrl-C is one sentence from the first moment on, also while the rest is imported."""
    try:
        from marless.cli.main import main

        main()
    except KeyboardInterrupt:
        print("marless: interrupted; all services were stopped", file=sys.stderr)  # noqa: T201  # for people
        sys.exit(130)
