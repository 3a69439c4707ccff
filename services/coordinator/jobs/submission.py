"""A client's request to submit a job, independent of protobuf."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from marless.core.limits import MAX_NAME
from marless.errors import SpecError


class IfExists(Enum):
    """What to do if a job of this id exists."""

    FAIL = "fail"
    USE = "use"
    """Return the existing job if its spec is equal."""
    REPLACE = "replace"
    """Delete the existing job, in whatever state it is, and run the new one."""


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A request to run a job."""

    job: str
    spec_json: str
    request_id: str = ""
    """Idempotency key, the same in every repetition of the request; "": an equal spec counts as a repetition."""
    if_exists: IfExists = IfExists.FAIL
    attached: bool = False


def check_request_id(request_id: str) -> None:
    """Raise SpecError for an id longer than MAX_NAME."""
    if len(request_id) > MAX_NAME:
        raise SpecError(f"a request_id of {len(request_id):,} characters; at most {MAX_NAME} are taken")
