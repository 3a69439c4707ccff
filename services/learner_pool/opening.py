"""The order of requests to open a job: one that arrives late or twice must not undo what came after it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Opening:
    """One of the requests to open a job."""

    opener: str = ""
    """Who has sent it; "" if unknown."""
    number: int = 0
    """Among its opener's requests, in their order."""

    def is_past(self, newest: Opening) -> bool:
        """True if the same opener has sent the newest request later, or it is that one once more."""
        return bool(self.opener) and self.opener == newest.opener and self.number <= newest.number


UNKNOWN = Opening()
