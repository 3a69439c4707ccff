"""What becomes of a request to submit a job: whether an existing job answers it, and how a new one is prepared.

A job's environment is made once to read its spaces, in a process that may hang or die.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from importlib.metadata import version

from marless.core.errors import AlreadyExistsError, OverloadedError, SpecError, UnreachableError
from marless.core.limits import MAX_NAME
from marless.jobs.examining import examined
from marless.jobs.job import PreparedJob, prepare
from marless.jobs.sinks.base import check_sinks
from marless.jobs.spec import JobSpec
from marless.services.coordinator.state.journal import check_costs
from marless.services.coordinator.state.status import JobStatus


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
        marless_version=version("marless"),
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


PREPARE_S = 60.0
"""Seconds that an environment may take to be made."""
MAX_AT_ONCE = 16
"""Jobs that are prepared at once, including those that have timed out and whose threads still run."""


class Preparing:
    """Prepares each job in a daemon thread of its own, so that an environment that hangs blocks neither the threads
    for file access nor the exit of this process.

    Args:
        make: Prepares the job of a spec; by default, its environment is made in a process of its own.
    """

    def __init__(self, make: Callable[[JobSpec], PreparedJob] | None = None) -> None:
        self._make = make or partial(prepare, examined=partial(examined, limit_s=PREPARE_S))
        self._threads = 0
        self._waiting: set[asyncio.Future[PreparedJob]] = set()

    async def prepared(self, spec: JobSpec, *, new: bool = False) -> PreparedJob:
        """Prepare the job of a spec; if it is `new`, its sinks and prices are checked first.

        Raises SpecError for an invalid job or one whose environment is not made within PREPARE_S, OverloadedError if
        MAX_AT_ONCE jobs are being prepared already, UnreachableError if this coordinator stops.
        """
        if self._threads >= MAX_AT_ONCE:
            raise OverloadedError(f"no room in the coordinator: {self._threads} jobs are being prepared already")
        done: asyncio.Future[PreparedJob] = asyncio.get_running_loop().create_future()
        make = partial(_checked, spec, self._make) if new else partial(self._make, spec)
        thread = threading.Thread(target=self._run, args=(make, done), name="prepare", daemon=True)
        self._threads += 1
        self._waiting.add(done)
        thread.start()
        try:
            async with asyncio.timeout(PREPARE_S):
                return await done
        except TimeoutError:
            raise SpecError(
                f"environment {spec.env.name}: was not made within {PREPARE_S:g} s; it hangs, or its options ask for "
                "too much"
            ) from None
        finally:
            self._waiting.discard(done)

    def stop(self) -> None:
        """Fail all waiting calls with UnreachableError; calling it twice is safe."""
        for done in self._waiting:
            if not done.done():
                done.set_exception(UnreachableError("this coordinator is stopping; the next one accepts the job"))

    def _run(self, make: Callable[[], PreparedJob], done: asyncio.Future[PreparedJob]) -> None:
        job: PreparedJob | None = None
        try:
            job, error = make(), None
        except Exception as problem:  # noqa: BLE001  # raised by `prepared`
            error = problem
        with suppress(RuntimeError):  # the loop has ended
            done.get_loop().call_soon_threadsafe(self._ended, done, job, error)

    def _ended(self, done: asyncio.Future[PreparedJob], job: PreparedJob | None, error: Exception | None) -> None:
        self._threads -= 1
        if done.done():
            return
        if job:
            done.set_result(job)
        else:
            done.set_exception(error or AssertionError)


def _checked(spec: JobSpec, make: Callable[[JobSpec], PreparedJob]) -> PreparedJob:
    check_sinks(*spec.sinks)
    check_costs(spec)
    return make(spec)
