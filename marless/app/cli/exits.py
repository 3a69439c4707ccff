"""Exit codes, so that scripts can tell what happened without parsing messages."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from marless.core.errors import MarlessError, NotFoundError, SpecError


class ExitCode(IntEnum):
    """The exit codes of all commands."""

    SUCCESS = 0
    ERROR = 1
    """Something was not available: a service, disk space, a permission."""
    USAGE = 2
    """An error on the command line or in a job file."""
    FAILED = 100
    UNFINISHED = 101
    """The job has not ended within the time given."""
    NOT_FOUND = 102
    CANCELLED = 103
    INTERRUPTED = 130
    """Ctrl-C."""


_OF_STATE = {"SUCCEEDED": ExitCode.SUCCESS, "FAILED": ExitCode.FAILED, "CANCELLED": ExitCode.CANCELLED}


def of_state(state: str) -> ExitCode:
    """Exit code of a command that waited for a job in this state."""
    return _OF_STATE.get(state, ExitCode.UNFINISHED)


def of_states(states: Iterable[str]) -> ExitCode:
    """Exit code of a command that waited for several jobs: the worst of their codes."""
    codes = {of_state(state) for state in states}
    worst = (ExitCode.FAILED, ExitCode.CANCELLED, ExitCode.UNFINISHED)
    return next((code for code in worst if code in codes), ExitCode.SUCCESS)


def of_error(error: MarlessError) -> ExitCode:
    """Exit code of a command that failed with this error."""
    match error:
        case SpecError():
            return ExitCode.USAGE
        case NotFoundError():
            return ExitCode.NOT_FOUND
    return ExitCode.ERROR
