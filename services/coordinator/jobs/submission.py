"""A client's request to submit a job, independent of protobuf."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum

from marless.core.errors import AlreadyExistsError, SpecError
from marless.core.limits import MAX_NAME
from marless.jobs.spec import JobSpec
from services.coordinator.state.status import JobStatus


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


def accepted(request: Submission, spec: JobSpec, reason: str) -> JobStatus:
    """The first status of the job, accepted now."""
    return JobStatus(
        job=request.job,
        state="PENDING",
        reason=reason,
        accepted_s=time.time(),
        request_id=request.request_id,
        attached=request.attached,
        env=spec.env.name,
        algorithm=spec.algorithm.name,
    )


def answered(request: Submission, spec: JobSpec, known_spec: JobSpec, known: JobStatus) -> bool:
    """True if an existing job answers the request, False if it is to be replaced; raises AlreadyExistsError."""
    equal = known_spec == spec
    if request.request_id and request.request_id == known.request_id:
        if not equal and not known.resumes:  # resumed ones may have other stop rules
            raise AlreadyExistsError(
                f"job {request.job!r}: this request_id was used with another spec; use a new request_id"
            )
        return True
    if request.if_exists is IfExists.REPLACE:
        return equal and not request.request_id
    if not equal:
        raise AlreadyExistsError(f"job {request.job!r} exists with another spec; choose another id")
    if request.if_exists is IfExists.FAIL and request.request_id:
        raise AlreadyExistsError(f"job {request.job!r} exists; choose another id, or say what to do if it exists")
    return True
