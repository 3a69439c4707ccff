"""Domain errors: what can go wrong, in words that a user can act on.

Every message says what was wrong, where, and what to do. Nothing here knows gRPC; `marless.rpc.errors` maps each
class to one status code, and the CLI maps each to an exit code.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

LONGEST_SHOWN = 80
"""Characters of what somebody gave that a sentence repeats."""
_LONGEST_TOLD = 500
_MOST_NAMED = 40
_LONGEST_COMPARED = 100  # comparing takes time with the product of the lengths, for each name
_MOST_COMPARED = 500


class MarlessError(Exception):
    """Base of every error that marless raises on purpose."""

    detail: str = ""
    """What a person who debugs wants to see beside the sentence: the end of a traceback."""


class SpecError(MarlessError):
    """A job, an option or an argument that cannot work; nothing has been started."""


class NotFoundError(MarlessError):
    """The named job, policy or version does not exist (any more)."""


class AlreadyExistsError(MarlessError):
    """The name is taken by something with other content."""


class ConflictError(MarlessError):
    """A compare-and-set lost: the head is not the version the writer started from."""


class FencedError(MarlessError):
    """The writer's epoch is older than the store's: a newer coordinator has taken over."""


class StaleError(MarlessError):
    """The data belong to a round or version that has passed; they were counted and not used."""


class CorruptError(MarlessError):
    """Bytes do not match their checksum, their declared shape, or the job's declared spaces."""


class JobStateError(MarlessError):
    """The job is not in a state that allows this: it has ended already, or has not ended yet."""


class OverloadedError(MarlessError):
    """A bounded queue or buffer is full now; the same request may be taken once others have been served.

    The sentence of one that a job may wait for starts with "no room in the <place>: ".
    """

    def __init__(self, sentence: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(sentence)
        self.retry_after_s = retry_after_s
        """Seconds after which it is worth trying again."""


class TooLargeError(MarlessError):
    """More than a limit of this installation takes at all: waiting does not help, raising the limit does."""


class UnavailableError(MarlessError):
    """A service, Redis, or a worker cannot be reached now."""


class UnreachableError(UnavailableError):
    """No answer at all: the process that was called is down, hangs, or the network between is."""


class UnauthenticatedError(MarlessError):
    """No token, or the wrong one."""


class PermissionDeniedError(MarlessError):
    """The token is good, and its role may not do this."""


class CancelledJobError(MarlessError):
    """The job was cancelled by its user."""


class InternalError(MarlessError):
    """A defect of ours; the log of the service that answered has the details."""


def shown(value: object) -> str:
    """What somebody gave, as a sentence repeats it: cut after `LONGEST_SHOWN` characters."""
    given = repr(value[: LONGEST_SHOWN + 1] if isinstance(value, str) else value)
    return given if len(given) <= LONGEST_SHOWN else given[: LONGEST_SHOWN - 1] + "…"


def told(error: BaseException) -> str:
    """What code of others has raised, as a sentence repeats it: its kind, and at most `_LONGEST_TOLD` characters."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001  # who writes an exception writes its __str__
        text = ""
    cut = text if len(text) <= _LONGEST_TOLD else text[: _LONGEST_TOLD - 1] + "…"
    return f"{type(error).__name__}: {cut}" if cut else type(error).__name__


def some_of(names: Sequence[str]) -> str:
    """Names in a sentence, of which there may be too many to be read."""
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def unknown_name(kind: str, name: str, known: Iterable[str]) -> str:
    """One sentence for a name that is not registered, with the nearest match if there is one."""
    names = sorted(known)
    comparable = names[:_MOST_COMPARED] if len(name) <= _LONGEST_COMPARED else ()
    close = difflib.get_close_matches(name, comparable, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"unknown {kind} {shown(name)}; {hint}known: {some_of(names)}"
