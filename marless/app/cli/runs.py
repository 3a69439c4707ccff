"""Finds unfinished jobs in a directory of run folders, without a coordinator."""

from __future__ import annotations

import fcntl
import json
from dataclasses import dataclass
from pathlib import Path

from marless.core import regular_files
from marless.core.errors import CorruptError, MarlessError, NotFoundError
from marless.core.limits import MAX_STATUS_BYTES

_UNFINISHED = ("PENDING", "RUNNING")


@dataclass(frozen=True, kw_only=True)
class Unfinished:
    """A job that has not ended."""

    job: str
    attached: bool
    """True if it was started by `marless train`; then only `marless train --resume` resumes it."""
    cancelling: bool
    """True if its user has cancelled it, and the services were stopped before it had ended."""
    run_by_somebody: bool
    """True if a coordinator is running it now."""


def unfinished(runs: Path) -> tuple[Unfinished, ...]:
    """The unfinished jobs in a directory of run folders."""
    found = []
    for path in sorted(runs.glob("*/job.json")):
        try:
            status = json.loads(regular_files.read(path, MAX_STATUS_BYTES))
            if status["state"] in _UNFINISHED:
                found.append(
                    Unfinished(
                        job=path.parent.name,
                        attached=bool(status.get("attached")),
                        cancelling=bool(status.get("cancelling")),
                        run_by_somebody=_is_locked(path.with_name("owner.lock")),
                    )
                )
        except (MarlessError, ValueError, KeyError, TypeError, RecursionError):
            continue  # not a readable job, so nothing to resume
    return tuple(found)


def _is_locked(path: Path) -> bool:
    try:
        with regular_files.opened(path) as file:
            # Shared, so that two commands that look at once do not take each other for a coordinator.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (NotFoundError, CorruptError):
        return False
    except BlockingIOError:
        return True
    return False
