"""Domain errors, and helpers for their messages.

Every message says what was wrong, where, and what to do. This module does not depend on gRPC: `marless.rpc.errors`
maps each class to a status code, and the CLI maps it to an exit code.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")
LONGEST_SHOWN = 80
"""Characters of a given value that an error message repeats."""
LONGEST_SENTENCE = 20_000
"""Characters of an error message: it may quote data of others, such as the names in a damaged file of 90 MB, and must
fit into a message between services, where a worker whose answer does not fit would be lost.
"""
_LONGEST_TOLD = 500
_MOST_NAMED = 40
_LONGEST_COMPARED = 100  # comparing takes time with the product of the lengths, for each name
_MOST_COMPARED = 500


class MarlessError(Exception):
    """Base of every error that marless raises on purpose; messages beyond `LONGEST_SENTENCE` are cut."""

    def __init__(self, sentence: str = "") -> None:
        super().__init__(_cut(sentence, LONGEST_SENTENCE))

    detail: str = ""
    """Extra information for debugging, such as the end of a traceback."""


class SpecError(MarlessError):
    """A job, option or argument is invalid; nothing has been started."""


class NotFoundError(MarlessError):
    """The named job, policy or version does not exist (any more)."""


class AlreadyExistsError(MarlessError):
    """The name is already used for different content."""


class ConflictError(MarlessError):
    """A compare-and-set lost: the head is not the version the writer started from."""


class FencedError(MarlessError):
    """The writer's epoch is older than the store's: a newer coordinator has taken over."""


class StaleError(MarlessError):
    """The data belong to an earlier round or version; they were counted and discarded."""


class CorruptError(MarlessError):
    """Bytes do not match their checksum, their declared shape, or the job's declared spaces."""


class JobStateError(MarlessError):
    """The job is not in a state that allows this: it has ended already, or has not ended yet."""


class OverloadedError(MarlessError):
    """A bounded queue or buffer is full; the same request may succeed later.

    Where a job may wait for room, the message starts with "no room in the <place>: ".
    """

    def __init__(self, sentence: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(sentence)
        self.retry_after_s = retry_after_s
        """Seconds after which a retry is worthwhile."""


class TooLargeError(MarlessError):
    """The request exceeds a limit of this installation; retrying does not help, raising the limit does."""


class UnavailableError(MarlessError):
    """A service, Redis, or a worker is temporarily unavailable."""


class UnreachableError(UnavailableError):
    """The called process did not answer: it or the network is down, or it hangs."""


class UnauthenticatedError(MarlessError):
    """The token is missing or wrong."""


class PermissionDeniedError(MarlessError):
    """The token is valid, but its role does not permit this call."""


class CancelledJobError(MarlessError):
    """The job was cancelled by its user."""


class InternalError(MarlessError):
    """A bug in marless; the log of the service that answered has the details."""


def contained(function: Callable[[], T]) -> T:
    """The result of code of others. A BaseException of it, such as SystemExit, is raised as InternalError: it would end
    this process, or a task of it, without a word.
    """
    try:
        return function()
    except Exception:
        raise
    except BaseException as error:
        raise InternalError(f"the code that ran tried to end its process: {told(error)}") from error


def require(kept: object, broken: str) -> None:
    """Raise AssertionError with the text `broken` unless `kept` is true, as contracts do even where asserts are off."""
    if not kept:
        raise AssertionError(broken)


def shown(value: object) -> str:
    """A given value as error messages repeat it: its repr, cut to `LONGEST_SHOWN` characters."""
    # Cut before `repr`, too, which takes time and memory with a long text.
    return _cut(repr(value[: LONGEST_SHOWN + 1] if isinstance(value, str) else value), LONGEST_SHOWN)


def told(error: BaseException) -> str:
    """An exception of third-party code as error messages repeat it: its class and up to `_LONGEST_TOLD` characters."""
    try:
        text = " ".join(str(error)[: 2 * _LONGEST_TOLD].split())  # it may have many megabytes
    except Exception:  # noqa: BLE001  # third parties define __str__, which may raise anything
        text = ""
    cut = _cut(text, _LONGEST_TOLD)
    return f"{type(error).__name__}: {cut}" if cut else type(error).__name__


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def denied(error: OSError) -> str:
    """What the system has denied, as error messages repeat it: the file, if it is about one, and why."""
    why = error.strerror or str(error)
    return f"{error.filename}: {why}" if error.filename else why


def some_of(names: Sequence[str]) -> str:
    """Names as a comma-separated list, cut after the first `_MOST_NAMED`."""
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def unknown_name(kind: str, name: str, known: Iterable[str], *, listed: bool = True) -> str:
    """The message for a name that is not registered, with the nearest match if there is one.

    Without `listed`, known names are left out: a message before has them.
    """
    names = sorted(known)
    comparable = {each.lower(): each for each in names[:_MOST_COMPARED]} if len(name) <= _LONGEST_COMPARED else {}
    close = difflib.get_close_matches(name.lower(), comparable, n=1, cutoff=0.5)
    hint = f"did you mean {comparable[close[0]]!r}?" if close else ""
    said = " ".join(filter(None, (hint, f"known: {some_of(names)}" if listed else "")))
    return f"unknown {kind} {shown(name)}" + (f"; {said}" if said else "")
