"""Finds the coordinator's address if none is given."""

from __future__ import annotations

import json
import os
from pathlib import Path

from marless.core import private_files, regular_files
from marless.core.errors import NotFoundError, UnavailableError
from marless.core.limits import MAX_SMALL_BYTES
from marless.core.private_files import UntrustedPathError

STACK_FILE = ".stack/stack.json"
"""Path, in the directory of the run folders, of the file in which `marless up` describes what it started."""


def find(coordinator: str | None = None, runs: Path | str | None = None) -> str:
    """The given address, else $MARLESS_COORDINATOR, else that of the stack that `marless up` started in `runs`.

    `runs` defaults to $MARLESS_RUNS, else "runs". Raises UnavailableError if no address is found, or if the stack file
    or the socket that it names was created by another user, CorruptError if the stack file is no file.
    """
    if named := coordinator or os.environ.get("MARLESS_COORDINATOR"):
        return named
    stack = Path(runs or os.environ.get("MARLESS_RUNS") or "runs") / STACK_FILE
    try:
        private_files.check_way(stack)
        address = str(json.loads(regular_files.read(stack, MAX_SMALL_BYTES))["coordinator"])
        if address.startswith("unix:"):
            private_files.check_way(Path(address.removeprefix("unix:")))
        return address
    except UntrustedPathError as error:
        raise UnavailableError(
            f"{error.filename}: {error.strerror}, and may lead to a coordinator of theirs; name yours with "
            "--coordinator or $MARLESS_COORDINATOR"
        ) from None
    except (OSError, NotFoundError, ValueError, KeyError, TypeError, RecursionError):
        raise UnavailableError(
            f"no coordinator is known: {stack} is not there; start one with `marless up`, or name yours with "
            "--coordinator or $MARLESS_COORDINATOR"
        ) from None
