"""Where the coordinator is, if nobody says so."""

from __future__ import annotations

import json
import os
from pathlib import Path

from marless.errors import UnavailableError

STACK_FILE = ".stack/stack.json"
"""In the directory of the run folders: what `marless up` started there."""


def find(coordinator: str | None = None, runs: Path | str | None = None) -> str:
    """The address given, else $MARLESS_COORDINATOR, else that of the stack which `marless up` left in `runs`.

    `runs` is $MARLESS_RUNS if it is not given, else "runs". Raises UnavailableError if nothing says where.
    """
    if named := coordinator or os.environ.get("MARLESS_COORDINATOR"):
        return named
    stack = Path(runs or os.environ.get("MARLESS_RUNS") or "runs") / STACK_FILE
    try:
        return str(json.loads(stack.read_text(encoding="utf-8"))["coordinator"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UnavailableError(
            f"no coordinator is known: {stack} is not there; start one with `marless up`, or name yours with "
            "--coordinator or $MARLESS_COORDINATOR"
        ) from None
