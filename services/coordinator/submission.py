"""What a client asks for when it submits a job."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from marless.errors import SpecError
from marless.limits import MAX_NAME


class IfExists(Enum):
    """What to do when the id of a new job is taken."""

    FAIL = "fail"
    USE = "use"
    """Answer the job that exists, if its spec is equal."""
    REPLACE = "replace"
    """Delete the job that exists, wherever it stands."""


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A request to run a job."""

    job: str
    spec_json: str
    request_id: str = ""
    """The same when the request is repeated; "": an equal spec is the same request."""
    if_exists: IfExists = IfExists.FAIL
    attached: bool = False


def check_request_id(request_id: str) -> None:
    """Raises SpecError for one that is too long."""
    if len(request_id) > MAX_NAME:
        raise SpecError(f"a request_id of {len(request_id):,} characters; at most {MAX_NAME} are taken")
