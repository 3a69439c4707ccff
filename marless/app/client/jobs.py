"""The client's data classes: jobs, events, log lines, files and services, decoded from protobuf messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from marless.core.errors import CorruptError, SpecError, unknown_name
from marless.jobs.record import RoundRecord, from_json
from marless.rpc.v1 import coordinator_pb2 as pb


class JobState(StrEnum):
    """The states of a job's life cycle."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    INTERRUPTED = "INTERRUPTED"
    """It has not ended, and nobody runs it; coordinators, which run theirs, never answer this."""

    @property
    def ended(self) -> bool:
        """True for final states; only resuming the job changes them."""
        return self not in (JobState.PENDING, JobState.RUNNING, JobState.INTERRUPTED)

    @classmethod
    def named(cls, name: str) -> JobState:
        """The state of this name, in any case; raises SpecError with the nearest match."""
        try:
            return cls(name.upper())
        except ValueError:
            raise SpecError(unknown_name("state", name.upper(), map(str, cls))) from None


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job at one moment. Times are Unix seconds of the coordinator's clock."""

    job: str
    """Its id."""
    state: JobState
    reason: str
    """Why it ended, or what it waits for."""
    env: str
    algorithm: str
    rounds: int
    """Number of recorded rounds."""
    env_steps: int
    """Env steps sampled for training so far (one step: all agents act once in one copy)."""
    greedy_return: float | None
    """Mean return per agent in the newest evaluation."""
    random_return: float | None
    """Mean return per agent of the random baseline."""
    accepted_s: float
    ended_s: float | None
    resumes: int
    """How often it was resumed, after an interruption or after it had ended."""
    run_dir: str
    """Its run folder, on the coordinator's machine."""
    summary: Mapping[str, Any] | None  # Any: JSON
    """What `marless train -o json` prints, once the job has ended."""
    win_rate: float | None = None
    """Fraction of the newest evaluation's episodes that were won; None if the environment does not report wins."""
    random_win_rate: float | None = None
    """The same for the random baseline."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """An event of a job: a round was recorded, or its state changed. Exactly one of `record` and `job` is set."""

    cursor: int
    """Position after this event, from which a watch can continue."""
    record: RoundRecord | None = None
    job: Job | None = None


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """One line of a job's log."""

    cursor: int
    """Position after this line, from which reading can continue."""
    text: str
    """The line as written: one JSON object."""

    @property
    def fields(self) -> dict[str, Any]:  # Any: JSON
        """The parsed line: timestamp, level, event, and the fields of the event; what is no JSON is an event."""
        try:
            found = json.loads(self.text)
        except (ValueError, RecursionError):
            found = self.text
        return found if isinstance(found, dict) else {"event": found}


@dataclass(frozen=True, kw_only=True)
class File:
    """One file of a run folder."""

    path: str
    """Relative to the run folder, with forward slashes."""
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Service:
    """One service as the coordinator sees it."""

    name: str
    address: str
    serving: bool


@dataclass(frozen=True, kw_only=True)
class Info:
    """Information about a coordinator."""

    version: str
    now_s: float
    """Its clock, Unix seconds."""
    runs: str
    """Directory of the run folders, on its machine."""
    services: tuple[Service, ...]


def job_of(message: pb.Job) -> Job:
    """Decode a job from its protobuf message."""

    def known(name: str) -> float | None:
        return getattr(message, name) if message.HasField(name) else None  # type: ignore[arg-type]  # one of its fields

    return Job(
        job=message.job,
        state=JobState(pb.JobState.Name(message.state).removeprefix("JOB_STATE_")),
        reason=message.reason,
        env=message.env,
        algorithm=message.algorithm,
        rounds=message.rounds,
        env_steps=message.env_steps,
        greedy_return=known("greedy_return"),
        random_return=known("random_return"),
        win_rate=known("win_rate"),
        random_win_rate=known("random_win_rate"),
        accepted_s=message.accepted_s,
        ended_s=message.ended_s or None,
        resumes=message.resumes,
        run_dir=message.run_dir,
        summary=json.loads(message.summary_json) if message.summary_json else None,
    )


def event_of(message: pb.JobEvent) -> Event:
    """Decode an event from its protobuf message; raises CorruptError for an invalid round record."""
    if message.HasField("record_json"):
        try:
            return Event(cursor=message.cursor, record=from_json(message.record_json))
        except ValueError:
            raise CorruptError(f"the record of round {message.cursor} is damaged on the coordinator's disk") from None
    return Event(cursor=message.cursor, job=job_of(message.state))


def info_of(message: pb.GetInfoResponse) -> Info:
    """Decode a coordinator's information about itself from its protobuf message."""
    services = (Service(name=each.name, address=each.address, serving=each.serving) for each in message.services)
    return Info(version=message.version, now_s=message.now_s, runs=message.runs, services=tuple(services))
