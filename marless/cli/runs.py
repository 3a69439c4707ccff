"""What lies in a directory of run folders, read from outside while nobody may be there to ask."""

from __future__ import annotations

import fcntl
import json
from dataclasses import dataclass
from pathlib import Path

_UNFINISHED = ("PENDING", "RUNNING")


@dataclass(frozen=True, kw_only=True)
class Unfinished:
    """A job that has not ended."""

    job: str
    attached: bool
    """It was begun by `marless train`, and is continued by `marless train --resume` only."""
    run_by_somebody: bool
    """A coordinator runs it now."""


def unfinished(runs: Path) -> tuple[Unfinished, ...]:
    """The jobs of a directory of run folders that have not ended."""
    found = []
    for path in sorted(runs.glob("*/job.json")):
        try:
            status = json.loads(path.read_text(encoding="utf-8"))
            if status["state"] in _UNFINISHED:
                found.append(
                    Unfinished(
                        job=path.parent.name,
                        attached=bool(status.get("attached")),
                        run_by_somebody=_is_locked(path.with_name("owner.lock")),
                    )
                )
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue  # no job, or none that can be read: nothing that could be continued
    return tuple(found)


def _is_locked(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
