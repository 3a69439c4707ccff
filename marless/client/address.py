"""Where the coordinator is, if nobody says so."""

from __future__ import annotations

import json
import os
from pathlib import Path

from marless import private_files
from marless.errors import UnavailableError
from marless.private_files import UntrustedPathError

STACK_FILE = ".stack/stack.json"
"""In the directory of the run folders: what `marless up` started there."""


def find(coordinator: str | None = None, runs: Path | str | None = None) -> str:
    """The address given, else $MARLESS_COORDINATOR, else that of the stack which `marless up` left in `runs`.

    `runs` is $MARLESS_RUNS if it is not given, else "runs". Raises UnavailableError if nothing says where, or if what
    says so, or the socket that it names, was put there by another user.
    """
    if named := coordinator or os.environ.get("MARLESS_COORDINATOR"):
        return named
    stack = Path(runs or os.environ.get("MARLESS_RUNS") or "runs") / STACK_FILE
    try:
        private_files.check_way(stack)
        address = str(json.loads(stack.read_text(encoding="utf-8"))["coordinator"])
        if address.startswith("unix:"):
            private_files.check_way(Path(address.removeprefix("unix:")))
        return address
    except UntrustedPathError as error:
        raise UnavailableError(
            f"{error.filename}: {error.strerror}, and may lead to a coordinator of theirs; name yours with "
            "--coordinator or $MARLESS_COORDINATOR"
        ) from None
    except (OSError, ValueError, KeyError, TypeError):
        raise UnavailableError(
            f"no coordinator is known: {stack} is not there; start one with `marless up`, or name yours with "
            "--coordinator or $MARLESS_COORDINATOR"
        ) from None
